/* The peak of reserved bytes of PyTorch's caching allocator with default settings: `everybyte.allocator.endless` and `replay` in C.

   quick.py and caching.py say what is done here and why, and do it where this module was not built; a test holds that both come to the same bytes.
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
#define OUT_OF_MEMORY (-3)
#define UNKNOWN (-4)
#define NOT_THERE (-2)

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
    Free *entries; /* by size, then address */
    int64_t count, room;
    int64_t least_rest; /* what is left of a block is a block of its own from this size on */
    int is_small;
} Pool;

typedef struct {
    int64_t name;
    Pool pools[2]; /* of large requests, and of small ones */
    int64_t reserved, peak;
    int64_t small, small_peak; /* without a limit, small requests are added up instead */
} Stream;

typedef struct {
    Block *blocks;
    int64_t count, room;
    int32_t unused; /* a block that was merged into another, the next one in its `next`; EDGE: none */
    Request *requests;
    uint64_t mask;
    Stream streams[STREAMS];
    int stream_count;
    int64_t top; /* the address of the next segment */
    int64_t living, living_peak;
    int64_t limit; /* bytes that may be reserved; 0: without end */
    int64_t reserved, peak, retries;
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
static int64_t place(const Heap *heap, const Pool *pool, int64_t size, int64_t address) {
    int64_t low = 0, high = pool->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const Free *entry = &pool->entries[middle];
        if (entry->size < size || (entry->size == size && heap->blocks[entry->block].address < address))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int put(Heap *heap, Pool *pool, int32_t index) {
    Block *block = &heap->blocks[index];
    if (pool->count == pool->room) {
        int64_t room = pool->room ? 2 * pool->room : 256;
        Free *more = realloc(pool->entries, (size_t)room * sizeof(Free));
        if (!more)
            return -1;
        pool->entries = more;
        pool->room = room;
    }
    int64_t at = place(heap, pool, block->size, block->address);
    memmove(pool->entries + at + 1, pool->entries + at, (size_t)(pool->count - at) * sizeof(Free));
    pool->entries[at] = (Free){block->size, index};
    pool->count++;
    block->is_free = 1;
    return 0;
}

static void take(Heap *heap, Pool *pool, int64_t at) {
    heap->blocks[pool->entries[at].block].is_free = 0;
    pool->count--;
    memmove(pool->entries + at, pool->entries + at + 1, (size_t)(pool->count - at) * sizeof(Free));
}

static void take_block(Heap *heap, Pool *pool, int32_t index) {
    take(heap, pool, place(heap, pool, heap->blocks[index].size, heap->blocks[index].address));
}

static void forget(Heap *heap, int32_t index) {
    heap->blocks[index].next = heap->unused;
    heap->unused = index;
}

/* torch.cuda.empty_cache(): segments that are free as a whole are given back. */
static void empty(Heap *heap) {
    for (int i = 0; i < 2 * heap->stream_count; i++) {
        Stream *stream = &heap->streams[i / 2];
        Pool *pool = &stream->pools[i % 2];
        int64_t left = 0;
        for (int64_t at = 0; at < pool->count; at++) {
            int32_t index = pool->entries[at].block;
            const Block *block = &heap->blocks[index];
            if (block->prev != EDGE || block->next != EDGE) {
                pool->entries[left++] = pool->entries[at];
                continue;
            }
            stream->reserved -= block->size;
            heap->reserved -= block->size;
            forget(heap, index);
        }
        pool->count = left;
    }
}

/* A new segment, or OUT_OF_MEMORY where the device is full even after all that is cached was given back. */
static int32_t obtain(Heap *heap, Stream *stream, const Pool *pool, int64_t size) {
    int64_t segment = pool->is_small ? SMALL_SEGMENT : size < OWN_SEGMENT ? SEGMENT : round_up(size, SEGMENT_ROUNDING);
    if (heap->limit && heap->reserved + segment > heap->limit) {
        empty(heap);
        heap->retries++;
        if (heap->reserved + segment > heap->limit)
            return OUT_OF_MEMORY;
    }
    int32_t index = new_block(heap, heap->top, segment);
    heap->top += segment + SEGMENT_ROUNDING;
    heap->reserved += segment;
    heap->peak = largest(heap->peak, heap->reserved);
    stream->reserved += segment;
    stream->peak = largest(stream->peak, stream->reserved);
    return index;
}

/* Makes two blocks of one: `size` bytes, and the rest, which is free. */
static int split(Heap *heap, Pool *pool, int32_t index, int64_t size) {
    int32_t behind = new_block(heap, heap->blocks[index].address + size, heap->blocks[index].size - size);
    if (behind < 0)
        return -1;
    Block *block = &heap->blocks[index], *other = &heap->blocks[behind];
    other->prev = index;
    other->next = block->next;
    if (block->next != EDGE)
        heap->blocks[block->next].prev = behind;
    block->next = behind;
    block->size = size;
    return put(heap, pool, behind);
}

static int32_t allocate(Heap *heap, Stream *stream, int64_t nbytes) {
    int64_t size = round_up(nbytes, MIN_BLOCK);
    Pool *pool = &stream->pools[size <= SMALL_REQUEST];
    int64_t at = place(heap, pool, size, 0);
    int32_t index;
    if (at < pool->count) {
        index = pool->entries[at].block;
        take(heap, pool, at);
    } else {
        index = obtain(heap, stream, pool, size);
        if (index < 0)
            return index;
    }
    if (heap->blocks[index].size - size >= pool->least_rest && split(heap, pool, index, size) < 0)
        return -1;
    if (heap->expandable) {
        int64_t end = heap->blocks[index].address + size;
        if (end > stream->peak)
            stream->peak = round_up(end, SEGMENT);
    }
    return index;
}

static int release(Heap *heap, Pool *pool, int32_t index) {
    Block *blocks = heap->blocks;
    int32_t before = blocks[index].prev, after = blocks[index].next;
    if (before != EDGE && blocks[before].is_free) {
        take_block(heap, pool, before);
        blocks[before].size += blocks[index].size;
        blocks[before].next = after;
        if (after != EDGE)
            blocks[after].prev = before;
        forget(heap, index);
        index = before;
    }
    if (after != EDGE && blocks[after].is_free) {
        take_block(heap, pool, after);
        blocks[index].size += blocks[after].size;
        blocks[index].next = blocks[after].next;
        if (blocks[after].next != EDGE)
            blocks[blocks[after].next].prev = index;
        forget(heap, after);
    }
    return put(heap, pool, index);
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
    stream->pools[0].least_rest = heap->expandable ? MIN_BLOCK : SMALL_REQUEST + 1;
    stream->pools[1].least_rest = MIN_BLOCK;
    stream->pools[1].is_small = 1;
    if (heap->expandable) { /* one block whose end is never used: best fit takes it last */
        int32_t whole = new_block(heap, 0, RANGE);
        if (whole < 0 || put(heap, &stream->pools[0], whole) < 0)
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
    if (heap->limit || nbytes > SMALL_REQUEST) {
        request->block = allocate(heap, stream, nbytes);
        return request->block < 0 ? request->block : 0;
    }
    stream->small += round_up(nbytes, MIN_BLOCK);
    stream->small_peak = largest(stream->small_peak, stream->small);
    return 0;
}

static int end(Heap *heap, int64_t key) {
    Request *request = request_of(heap, key);
    int64_t nbytes = request->nbytes;
    if (!nbytes)
        return NOT_THERE;
    request->nbytes = 0;
    heap->living -= nbytes;
    if (heap->beyond)
        return 0;
    Stream *stream = &heap->streams[request->stream];
    if (heap->limit || nbytes > SMALL_REQUEST)
        return release(heap, &stream->pools[nbytes <= SMALL_REQUEST], request->block);
    stream->small -= round_up(nbytes, MIN_BLOCK);
    return 0;
}

static int serve(Heap *heap, int64_t key, int64_t nbytes) {
    if (nbytes)
        return begin(heap, key, nbytes);
    if (key)
        return end(heap, key);
    empty(heap);
    return 0;
}

/* -- the module ----------------------------------------------------------------------------------------------------------------- */

/* 0, or -1 with an exception, or OUT_OF_MEMORY, or UNKNOWN for an event that says how streams use memory. */
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
        if (key < 0 || nbytes < 0)
            return UNKNOWN;
        if (heap->living > INT64_MAX - nbytes) {
            PyErr_SetString(PyExc_OverflowError, "more bytes than can be counted");
            return -1;
        }
        int done = serve(heap, key, nbytes);
        if (done == OUT_OF_MEMORY)
            return done;
        if (done == NOT_THERE)
            PyErr_SetObject(PyExc_KeyError, PyTuple_GetItem(event, 0));
        else if (done)
            PyErr_NoMemory();
        if (done)
            return -1;
    }
    return 0;
}

/* Replays a list of events on an empty heap; what `replay` says. The heap is to be cleared whatever that is. */
static int run(Heap *heap, PyObject *events) {
    Py_ssize_t length = PyList_Size(events);
    uint64_t room = 64;
    while (room < 2 * (uint64_t)length)
        room *= 2;
    heap->mask = room - 1;
    heap->unused = EDGE;
    heap->requests = calloc(room, sizeof(Request));
    if (heap->requests)
        return replay(heap, events, length);
    PyErr_NoMemory();
    return -1;
}

static void clear(Heap *heap) {
    for (int i = 0; i < 2 * heap->stream_count; i++)
        free(heap->streams[i / 2].pools[i % 2].entries);
    free(heap->blocks);
    free(heap->requests);
}

static PyObject *endless_peak(PyObject *self, PyObject *args) {
    PyObject *events, *answer = NULL;
    int expandable;
    if (!PyArg_ParseTuple(args, "O!p:endless_peak", &PyList_Type, &events, &expandable))
        return NULL;
    Heap heap = {.expandable = expandable};
    int done = run(&heap, events);
    if (done == UNKNOWN)
        answer = Py_BuildValue("");
    else if (!done) {
        int64_t sum = 0;
        for (int i = 0; i < heap.stream_count; i++)
            sum += heap.streams[i].peak + round_up(heap.streams[i].small_peak, SMALL_SEGMENT);
        answer = Py_BuildValue("LL", (long long)(heap.beyond ? heap.living_peak : sum), (long long)heap.living_peak);
    }
    clear(&heap);
    return answer;
}

static PyObject *limited_peak(PyObject *self, PyObject *args) {
    PyObject *events, *answer = NULL;
    long long limit;
    if (!PyArg_ParseTuple(args, "O!L:limited_peak", &PyList_Type, &events, &limit))
        return NULL;
    Heap heap = {.limit = limit};
    int done = limit > 0 ? run(&heap, events) : OUT_OF_MEMORY;
    if (!done && !heap.beyond)
        answer = Py_BuildValue("LL", (long long)heap.peak, (long long)heap.retries);
    else if (done == UNKNOWN)
        PyErr_SetString(PyExc_ValueError, "events that say how streams use memory are not known here");
    else if (done != -1)
        answer = Py_BuildValue("");
    clear(&heap);
    return answer;
}

static PyMethodDef methods[] = {
    {"endless_peak", endless_peak, METH_VARARGS, "endless_peak(events, expandable) -> (bytes reserved, bytes that live), or None"},
    {"limited_peak", limited_peak, METH_VARARGS, "limited_peak(events, limit) -> (bytes reserved, times that the cache was emptied for want of room), or None"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_compiled", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModuleDef_Init(&module); }
