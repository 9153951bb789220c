/* A CUDA device without silicon: memory is a number, streams and events are counters.
 *
 * Loaded before PyTorch's CUDA build (LD_PRELOAD), it answers the calls that c10/cuda/CUDACachingAllocator.cpp makes, so that PyTorch's own compiled
 * allocator serves requests on a machine that has no GPU. Kernels cannot be launched. FAKE_CUDA_MEMORY is the device's memory in bytes.
 */
#include <cuda_runtime_api.h>
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STREAMS 256
#define START (20ull << 32)   /* a multiple of both sizes of pages */
#define MIB (1ull << 20)

static size_t total, used;
static uintptr_t next_address = START;
static unsigned long given[MAX_STREAMS], done[MAX_STREAMS];
static int streams = 1;

struct event { int stream; unsigned long at; };

static size_t memory(void) {
    if (!total) {
        const char *text = getenv("FAKE_CUDA_MEMORY");
        total = text ? strtoull(text, NULL, 10) : 80ull << 30;
    }
    return total;
}

/* Sizes of what cudaMalloc gave, in a table with open addressing. */
#define SLOTS (1u << 20)
static struct { uintptr_t address; size_t size; } slots[SLOTS];

static size_t *size_at(uintptr_t address) {
    unsigned i = (unsigned)(address >> 21) % SLOTS;
    while (slots[i].address && slots[i].address != address) i = (i + 1) % SLOTS;
    slots[i].address = address;
    return &slots[i].size;
}

/* For the recording script: a stream has done all that it was given. */
void fake_cuda_finish(int stream) { done[stream] = given[stream]; }

cudaError_t cudaMalloc(void **p, size_t size) {
    if (used + size > memory()) return cudaErrorMemoryAllocation;
    used += size;
    *p = (void *)next_address;
    *size_at(next_address) = size;
    next_address += size + 2 * MIB;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    if (p) used -= *size_at((uintptr_t)p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = memory() - used;
    *total_bytes = memory();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *d) { *d = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "fake");
    p->totalGlobalMem = memory();
    p->major = 8;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { for (int i = 0; i < streams; i++) fake_cuda_finish(i); return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -1; return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) { *s = (cudaStream_t)(uintptr_t)streams++; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { *e = (cudaEvent_t)calloc(1, sizeof(struct event)); return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    struct event *event = (struct event *)e;
    event->stream = (int)(uintptr_t)s;
    event->at = ++given[event->stream];
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    struct event *event = (struct event *)e;
    return event->at <= done[event->stream] ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return cudaSuccess; }

/* The driver's functions for mapping pages. */
static CUresult reserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr at, unsigned long long flags) {
    size_t page = size % (20 * MIB) ? 2 * MIB : 20 * MIB;
    *p = (next_address + page - 1) / page * page;
    next_address = *p + size + 2 * MIB;
    return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    if (used + size > memory()) return CUDA_ERROR_OUT_OF_MEMORY;
    used += size;
    *handle = size;
    return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle handle) { used -= handle; return CUDA_SUCCESS; }
static CUresult nothing(void) { return CUDA_SUCCESS; }

static cudaError_t entry(const char *symbol, void **function, enum cudaDriverEntryPointQueryResult *result) {
    if (result) *result = cudaDriverEntryPointSuccess;
    if (!strcmp(symbol, "cuMemAddressReserve")) *function = (void *)reserve;
    else if (!strcmp(symbol, "cuMemCreate")) *function = (void *)create;
    else if (!strcmp(symbol, "cuMemRelease")) *function = (void *)release;
    else *function = (void *)nothing;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    return entry(symbol, function, result);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    return entry(symbol, function, result);
}
/* Asked when PyTorch starts: whether the device has a context already. */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { *flags = 0; *active = 1; return CUDA_SUCCESS; }

/* The management library, asked whether GPUs are wired together before pages are mapped: it starts, and knows nothing (NVML_ERROR_NOT_SUPPORTED). */
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return 0; }
int nvmlDeviceGetGpuFabricInfoV(void) { return 3; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 3; }
int nvmlDeviceGetComputeRunningProcesses(void) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(void) { return 3; }
