/* A driver that is not there: two GPUs, and the process that FAKE_NVML_PID names (or the caller's parent's child) on the first, growing with every look. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_t;
static int looks = 0;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *v, unsigned int n) { strncpy(v, "999.1", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **h) { *h = (void *)(unsigned long)(i + 1); return 0; }
int nvmlDeviceGetName(void *h, char *name, unsigned int n) { strncpy(name, "NVIDIA Fake 80GB", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) {
    m->total = 80ull << 30;
    m->used = h == (void *)1 ? (10ull << 30) + ((unsigned long long)(looks++) << 20) : 1ull << 20;
    m->free = m->total - m->used;
    return 0;
}
static int running(void *h, unsigned int *n, process_t *p) {
    const char *file = getenv("FAKE_NVML_PID_FILE");
    char text[32] = {0};
    int fd, got = 0;
    if (h != (void *)1 || !file) { *n = 0; return 0; }
    if ((fd = open(file, 0)) >= 0) { got = read(fd, text, 31); close(fd); }
    if (got <= 0) { *n = 0; return 0; }
    if (*n < 1 || !p) { *n = 1; return 7; }
    *n = 1; p[0].pid = atoi(text); p[0].used = 9ull << 30; p[0].gi = p[0].ci = 0xFFFFFFFF;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned int *n, process_t *p) { return running(h, n, p); }
int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned int *n, process_t *p) { return running(h, n, p); }
const char *nvmlErrorString(int code) { return "fake"; }
