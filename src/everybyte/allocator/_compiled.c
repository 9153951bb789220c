/* The peak of reserved bytes of PyTorch's caching allocator with default settings on a device without end: `everybyte.allocator.quick` in C.

   quick.py says what is done here and why, and does it where this module was not built; a test holds that both come to the same bytes.
   Built against the stable interface of Python 3.11, one file serves every later version. */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define MIN_BLOCK 512
#define SMALL_REQUEST MIB
#define SMALL_SEGMENT (2 * MIB)
#define SEGMENT (20 * MIB)
#define OWN_SEGMENT (10 * MIB)
#define SEGMENT_ROUNDING (2 * MIB)
#define RANGE ((int64_t)64 << 40)
#define ENDLESS_LIVING ((int64_t)16 << 40)
#define STREAM_BITS 40
#define STREAMS 64
#define EDGE (-1)

typedef struct {
    int64_t address, size;
    int32_t prev, next; /* neighbours in the segment, or EDGE */
    int is_free;
} Block;

typedef struct {
    int64_t size;
    int32_t block;
} Free;

typedef struct {
    int64_t key; /* 0: nothing yet */
    int64_t nbytes; /* 0: it does not live */
    int32_t block; /* of a large request */
    int32_t stream;
} Request;

typedef struct {
    int64_t name;
    Free *pool; /* by size, then address */
    int64_t count, room;
    int64_t top, reserved, peak;
    int64_t small, small_peak;
} Stream;

typedef struct {
    Block *blocks;
    int64_t count, room;
    int32_t unused; /* a block that was merged into another, the next one in its `next`; EDGE: none */
    Request *requests;
    uint64_t mask;
    Stream streams[STREAMS];
    int stream_count;
    int64_t living, living_peak;
    int expandable;
    int beyond; /* more lives than any device has: nothing but that is told any more */
} Heap;

static int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

static int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }

/* -- blocks and pools: each function that may need memory returns -1 without it ------------------------------------------------ */

static int32_t new_block(Heap *heap, int64_t address, int64_t size) {
    if (heap->unused != EDGE) {
        int32_t again = heap->unused;
        heap->unused = heap->blocks[again].next;
        heap->blocks[again] = (Block){address, size, EDGE, EDGE, 0};
        return again;
    }
    if (heap->count == heap->room) {
        int64_t room = heap->room ? 2 * heap->room : 1024;
        Block *more = room > INT32_MAX ? NULL : realloc(heap->blocks, (size_t)room * sizeof(Block));
        if (!more)
            return -1;
        heap->blocks = more;
        heap->room = room;
    }
    heap->blocks[heap->count] = (Block){address, size, EDGE, EDGE, 0};
    return (int32_t)heap->count++;
}

/* The first free block that is not before (size, address). */
static int64_t place(const Heap *heap, const Stream *stream, int64_t size, int64_t address) {
    int64_t low = 0, high = stream->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const Free *entry = &stream->pool[middle];
        if (entry->size < size || (entry->size == size && heap->blocks[entry->block].address < address))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int put(Heap *heap, Stream *stream, int32_t index) {
    Block *block = &heap->blocks[index];
    if (stream->count == stream->room) {
        int64_t room = stream->room ? 2 * stream->room : 256;
        Free *more = realloc(stream->pool, (size_t)room * sizeof(Free));
        if (!more)
            return -1;
        stream->pool = more;
        stream->room = room;
    }
    int64_t at = place(heap, stream, block->size, block->address);
    memmove(stream->pool + at + 1, stream->pool + at, (size_t)(stream->count - at) * sizeof(Free));
    stream->pool[at] = (Free){block->size, index};
    stream->count++;
    block->is_free = 1;
    return 0;
}

static void take(Heap *heap, Stream *stream, int64_t at) {
    heap->blocks[stream->pool[at].block].is_free = 0;
    stream->count--;
    memmove(stream->pool + at, stream->pool + at + 1, (size_t)(stream->count - at) * sizeof(Free));
}

static void take_block(Heap *heap, Stream *stream, int32_t index) {
    take(heap, stream, place(heap, stream, heap->blocks[index].size, heap->blocks[index].address));
}

static void forget(Heap *heap, int32_t index) {
    heap->blocks[index].next = heap->unused;
    heap->unused = index;
}

static int32_t allocate(Heap *heap, Stream *stream, int64_t nbytes) {
    int64_t size = round_up(nbytes, MIN_BLOCK);
    int64_t at = place(heap, stream, size, 0);
    int32_t index;
    if (at < stream->count) {
        index = stream->pool[at].block;
        take(heap, stream, at);
    } else {
        int64_t segment = size < OWN_SEGMENT ? SEGMENT : round_up(size, SEGMENT_ROUNDING);
        index = new_block(heap, stream->top, segment);
        if (index < 0)
            return -1;
        stream->top += segment + SEGMENT_ROUNDING;
        stream->reserved += segment;
        stream->peak = largest(stream->peak, stream->reserved);
    }
    int64_t rest = heap->blocks[index].size - size;
    if (rest >= (heap->expandable ? MIN_BLOCK : SMALL_REQUEST + 1)) {
        int32_t behind = new_block(heap, heap->blocks[index].address + size, rest);
        if (behind < 0)
            return -1;
        Block *block = &heap->blocks[index], *other = &heap->blocks[behind];
        other->prev = index;
        other->next = block->next;
        if (block->next != EDGE)
            heap->blocks[block->next].prev = behind;
        block->next = behind;
        block->size = size;
        if (put(heap, stream, behind) < 0)
            return -1;
    }
    if (heap->expandable) {
        int64_t end = heap->blocks[index].address + size;
        if (end > stream->peak)
            stream->peak = round_up(end, SEGMENT);
    }
    return index;
}

static int release(Heap *heap, Stream *stream, int32_t index) {
    Block *blocks = heap->blocks;
    int32_t before = blocks[index].prev, after = blocks[index].next;
    if (before != EDGE && blocks[before].is_free) {
        take_block(heap, stream, before);
        blocks[before].size += blocks[index].size;
        blocks[before].next = after;
        if (after != EDGE)
            blocks[after].prev = before;
        forget(heap, index);
        index = before;
    }
    if (after != EDGE && blocks[after].is_free) {
        take_block(heap, stream, after);
        blocks[index].size += blocks[after].size;
        blocks[index].next = blocks[after].next;
        if (blocks[after].next != EDGE)
            blocks[blocks[after].next].prev = index;
        forget(heap, after);
    }
    return put(heap, stream, index);
}

/* torch.cuda.empty_cache(): segments that are free as a whole are given back. */
static void empty(Heap *heap, Stream *stream) {
    int64_t left = 0;
    for (int64_t at = 0; at < stream->count; at++) {
        const Block *block = &heap->blocks[stream->pool[at].block];
        if (block->prev == EDGE && block->next == EDGE)
            stream->reserved -= block->size;
        else
            stream->pool[left++] = stream->pool[at];
    }
    stream->count = left;
}

/* -- requests ------------------------------------------------------------------------------------------------------------------- */

static Request *request_of(Heap *heap, int64_t key) {
    uint64_t at = (uint64_t)key + (uint64_t)(key >> STREAM_BITS) * 7919; /* keys follow one another, and so do their places */
    for (;; at++) {
        Request *request = &heap->requests[at & heap->mask];
        if (request->key == key || !request->key) {
            request->key = key;
            return request;
        }
    }
}

static int stream_of(Heap *heap, int64_t key) {
    int64_t name = key >> STREAM_BITS;
    for (int i = 0; i < heap->stream_count; i++)
        if (heap->streams[i].name == name)
            return i;
    if (heap->stream_count == STREAMS)
        return -1;
    Stream *stream = &heap->streams[heap->stream_count];
    memset(stream, 0, sizeof(Stream));
    stream->name = name;
    if (heap->expandable) { /* one block whose end is never used: best fit takes it last */
        int32_t whole = new_block(heap, 0, RANGE);
        if (whole < 0 || put(heap, stream, whole) < 0)
            return -1;
    }
    return heap->stream_count++;
}

static int begin(Heap *heap, int64_t key, int64_t nbytes) {
    Request *request = request_of(heap, key);
    request->nbytes = nbytes;
    heap->living += nbytes;
    heap->living_peak = largest(heap->living_peak, heap->living);
    heap->beyond |= heap->living > ENDLESS_LIVING;
    if (heap->beyond)
        return 0;
    request->stream = stream_of(heap, key);
    if (request->stream < 0)
        return -1;
    Stream *stream = &heap->streams[request->stream];
    if (nbytes > SMALL_REQUEST) {
        request->block = allocate(heap, stream, nbytes);
        return request->block < 0 ? -1 : 0;
    }
    stream->small += round_up(nbytes, MIN_BLOCK);
    stream->small_peak = largest(stream->small_peak, stream->small);
    return 0;
}

static int end(Heap *heap, int64_t key) {
    Request *request = request_of(heap, key);
    int64_t nbytes = request->nbytes;
    if (!nbytes)
        return -2;
    request->nbytes = 0;
    heap->living -= nbytes;
    if (heap->beyond)
        return 0;
    Stream *stream = &heap->streams[request->stream];
    if (nbytes > SMALL_REQUEST)
        return release(heap, stream, request->block);
    stream->small -= round_up(nbytes, MIN_BLOCK);
    return 0;
}

static int serve(Heap *heap, int64_t key, int64_t nbytes) {
    if (nbytes)
        return begin(heap, key, nbytes);
    if (key)
        return end(heap, key);
    for (int i = 0; i < heap->stream_count; i++)
        empty(heap, &heap->streams[i]);
    return 0;
}

/* -- the module ----------------------------------------------------------------------------------------------------------------- */

static int replay(Heap *heap, PyObject *events, Py_ssize_t length) {
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *event = PyList_GetItem(events, i);
        if (!event || !PyTuple_Check(event) || PyTuple_Size(event) != 2) {
            PyErr_SetString(PyExc_TypeError, "an event is (key, bytes)");
            return -1;
        }
        int64_t key = PyLong_AsLongLong(PyTuple_GetItem(event, 0)), nbytes = PyLong_AsLongLong(PyTuple_GetItem(event, 1));
        if ((key == -1 || nbytes == -1) && PyErr_Occurred())
            return -1;
        if (key < 0 || nbytes < 0 || heap->living > INT64_MAX - nbytes) {
            PyErr_SetString(PyExc_ValueError, "an event that this loop does not know");
            return -1;
        }
        int done = serve(heap, key, nbytes);
        if (done == -2)
            PyErr_SetObject(PyExc_KeyError, PyTuple_GetItem(event, 0));
        else if (done)
            PyErr_NoMemory();
        if (done)
            return -1;
    }
    return 0;
}

static PyObject *endless_peak(PyObject *self, PyObject *args) {
    PyObject *events;
    int expandable;
    if (!PyArg_ParseTuple(args, "O!p:endless_peak", &PyList_Type, &events, &expandable))
        return NULL;
    Py_ssize_t length = PyList_Size(events);
    uint64_t room = 64;
    while (room < 2 * (uint64_t)length)
        room *= 2;
    Heap heap = {.expandable = expandable, .unused = EDGE, .mask = room - 1, .requests = calloc(room, sizeof(Request))};
    PyObject *answer = NULL;
    if (!heap.requests)
        PyErr_NoMemory();
    else if (!replay(&heap, events, length)) {
        int64_t sum = 0;
        for (int i = 0; i < heap.stream_count; i++)
            sum += heap.streams[i].peak + round_up(heap.streams[i].small_peak, SMALL_SEGMENT);
        answer = Py_BuildValue("LL", (long long)(heap.beyond ? heap.living_peak : sum), (long long)heap.living_peak);
    }
    for (int i = 0; i < heap.stream_count; i++)
        free(heap.streams[i].pool);
    free(heap.blocks);
    free(heap.requests);
    return answer;
}

static PyMethodDef methods[] = {
    {"endless_peak", endless_peak, METH_VARARGS, "endless_peak(events, expandable) -> (bytes reserved, bytes that live)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_compiled", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModuleDef_Init(&module); }
