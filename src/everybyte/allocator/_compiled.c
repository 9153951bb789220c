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
    int16_t stream;
    int16_t waits; /* it is freed, but work on other streams uses it */
} Request;

typedef struct {
    int64_t key, stream;
} Use;

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
    Use *uses; /* of requests by work on other streams that is not known to be done */
    int64_t use_count, use_room;
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

static int finish(Heap *heap, int64_t stream, int all);

/* A new segment, or OUT_OF_MEMORY where the device is full even after all that is cached was given back. */
static int32_t obtain(Heap *heap, Stream *stream, const Pool *pool, int64_t size) {
    int64_t segment = pool->is_small ? SMALL_SEGMENT : size < OWN_SEGMENT ? SEGMENT : round_up(size, SEGMENT_ROUNDING);
    if (heap->limit && heap->reserved + segment > heap->limit) {
        if (finish(heap, 0, 1))
            return -1;
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
    int stream = stream_of(heap, key);
    if (stream < 0)
        return -1;
    request->nbytes = nbytes;
    request->stream = (int16_t)stream;
    request->waits = 0;
    heap->living += nbytes;
    heap->living_peak = largest(heap->living_peak, heap->living);
    heap->beyond |= heap->living > ENDLESS_LIVING;
    if (heap->beyond)
        return 0;
    if (heap->limit || nbytes > SMALL_REQUEST) {
        request->block = allocate(heap, &heap->streams[stream], nbytes);
        return request->block < 0 ? request->block : 0;
    }
    heap->streams[stream].small += round_up(nbytes, MIN_BLOCK);
    heap->streams[stream].small_peak = largest(heap->streams[stream].small_peak, heap->streams[stream].small);
    return 0;
}

static int let_go(Heap *heap, Request *request) {
    int64_t nbytes = request->nbytes;
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

static int is_used(const Heap *heap, int64_t key) {
    for (int64_t i = 0; i < heap->use_count; i++)
        if (heap->uses[i].key == key)
            return 1;
    return 0;
}

static int end(Heap *heap, int64_t key) {
    Request *request = request_of(heap, key);
    if (!request->nbytes || request->waits)
        return NOT_THERE;
    if (heap->use_count && is_used(heap, key)) {
        request->waits = 1;
        return 0;
    }
    return let_go(heap, request);
}

/* Tensor.record_stream: work on another stream uses a request. */
static int use(Heap *heap, int64_t key, int64_t stream) {
    if (heap->limit && stream == key >> STREAM_BITS)
        return 0;
    if (heap->use_count == heap->use_room) {
        int64_t room = heap->use_room ? 2 * heap->use_room : 64;
        Use *more = realloc(heap->uses, (size_t)room * sizeof(Use));
        if (!more)
            return -1;
        heap->uses = more;
        heap->use_room = room;
    }
    heap->uses[heap->use_count++] = (Use){key, stream};
    return 0;
}

/* A stream, or every one, has done all that it was given: what waited for it alone is free. */
static int finish(Heap *heap, int64_t stream, int all) {
    int64_t count = heap->use_count, end_of_uses = count;
    for (int64_t i = 0; i < count;) {
        Use each = heap->uses[i];
        if (!request_of(heap, each.key)->waits || (!all && each.stream != stream)) {
            i++;
            continue;
        }
        heap->uses[i] = heap->uses[--count]; /* those that are done come behind the others */
        heap->uses[count] = each;
    }
    heap->use_count = count;
    for (int64_t i = count; i < end_of_uses; i++) {
        Request *request = request_of(heap, heap->uses[i].key);
        if (!request->waits || is_used(heap, request->key))
            continue;
        request->waits = 0;
        if (let_go(heap, request))
            return -1;
    }
    return 0;
}

static int serve(Heap *heap, int64_t key, int64_t nbytes) {
    if (nbytes > 0)
        return begin(heap, key, nbytes);
    if (nbytes < 0)
        return use(heap, key, -1 - nbytes);
    if (key > 0)
        return end(heap, key);
    if (key < 0)
        return finish(heap, -1 - key, 0);
    if (heap->limit && finish(heap, 0, 1))
        return -1;
    empty(heap);
    return 0;
}

/* -- the module ----------------------------------------------------------------------------------------------------------------- */

/* 0, or -1 with an exception, or OUT_OF_MEMORY. */
static int told(int done, int64_t key) {
    if (done == NOT_THERE)
        PyErr_Format(PyExc_KeyError, "%lld", (long long)key);
    else if (done == -1 && !PyErr_Occurred())
        PyErr_NoMemory();
    return done == NOT_THERE ? -1 : done;
}

/* Reads two whole numbers. */
static int pair(PyObject *item, int64_t *first, int64_t *second) {
    if (!item || !PyTuple_Check(item) || PyTuple_Size(item) != 2) {
        PyErr_SetString(PyExc_TypeError, "an event is (key, bytes)");
        return -1;
    }
    *first = PyLong_AsLongLong(PyTuple_GetItem(item, 0));
    *second = PyLong_AsLongLong(PyTuple_GetItem(item, 1));
    return (*first == -1 || *second == -1) && PyErr_Occurred() ? -1 : 0;
}

static int serve_one(Heap *heap, int64_t key, int64_t nbytes) {
    if (nbytes > 0 && (key <= 0 || heap->living > INT64_MAX - nbytes)) {
        PyErr_SetString(PyExc_OverflowError, "a key below 1, or more bytes than can be counted");
        return -1;
    }
    return told(serve(heap, key, nbytes), key);
}

/* Rows of (slot, bytes) with a list of the keys of all slots. */
static int serve_rows(Heap *heap, PyObject *rows, PyObject *keys) {
    Py_ssize_t slots = PyList_Size(keys), length = PyList_Size(rows);
    int64_t *key_of = malloc((size_t)(slots + 1) * sizeof(int64_t));
    int done = key_of ? 0 : -1;
    for (Py_ssize_t i = 0; !done && i < slots; i++) {
        key_of[i] = PyLong_AsLongLong(PyList_GetItem(keys, i));
        done = key_of[i] == -1 && PyErr_Occurred() ? -1 : 0;
    }
    for (Py_ssize_t i = 0; !done && i < length; i++) {
        int64_t slot, nbytes;
        done = pair(PyList_GetItem(rows, i), &slot, &nbytes);
        if (!done && (slot < 0 || slot >= slots)) {
            PyErr_SetString(PyExc_IndexError, "a row without a key");
            done = -1;
        }
        if (!done)
            done = serve_one(heap, key_of[slot], nbytes);
    }
    free(key_of);
    return told(done, 0);
}

static int replay(Heap *heap, PyObject *events, Py_ssize_t length) {
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = PyList_GetItem(events, i);
        PyObject *rows = item && PyTuple_Check(item) && PyTuple_Size(item) == 2 ? PyTuple_GetItem(item, 0) : NULL;
        int done;
        if (rows && PyList_Check(rows) && PyList_Check(PyTuple_GetItem(item, 1))) {
            done = serve_rows(heap, rows, PyTuple_GetItem(item, 1));
        } else {
            int64_t key, nbytes;
            done = pair(item, &key, &nbytes);
            if (!done)
                done = serve_one(heap, key, nbytes);
        }
        if (done)
            return done;
    }
    return 0;
}

/* No more keys than these come in a list of events. */
static Py_ssize_t requests_at_most(PyObject *events, Py_ssize_t length) {
    Py_ssize_t most = length;
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = PyList_GetItem(events, i);
        PyObject *keys = item && PyTuple_Check(item) && PyTuple_Size(item) == 2 ? PyTuple_GetItem(item, 1) : NULL;
        if (keys && PyList_Check(keys))
            most += PyList_Size(keys);
    }
    return most;
}

/* Replays a list of events on an empty heap; what `replay` says. The heap is to be cleared whatever that is. */
static int run(Heap *heap, PyObject *events) {
    Py_ssize_t length = PyList_Size(events);
    uint64_t room = 64;
    while (room < 2 * (uint64_t)requests_at_most(events, length))
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
    free(heap->uses);
}

static PyObject *endless_peak(PyObject *self, PyObject *args) {
    PyObject *events, *answer = NULL;
    int expandable;
    if (!PyArg_ParseTuple(args, "O!p:endless_peak", &PyList_Type, &events, &expandable))
        return NULL;
    Heap heap = {.expandable = expandable};
    if (!run(&heap, events)) {
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
        answer = Py_BuildValue("LLL", (long long)heap.peak, (long long)heap.retries, (long long)heap.reserved);
    else if (done != -1)
        answer = Py_BuildValue("");
    clear(&heap);
    return answer;
}

static PyMethodDef methods[] = {
    {"endless_peak", endless_peak, METH_VARARGS, "endless_peak(events, expandable) -> (bytes reserved, bytes that live)"},
    {"limited_peak", limited_peak, METH_VARARGS, "limited_peak(events, limit) -> (bytes reserved, times that the cache was emptied for want of room, bytes reserved at the end), or None"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_compiled", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModuleDef_Init(&module); }
