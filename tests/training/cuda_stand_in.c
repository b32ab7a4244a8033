// A GPU that does nothing, for tests/training/test_cuda_path.py: kernels return at once, and all memory reads as zeros.
// Here are the functions of CUDA's runtime, driver and cuBLAS that must give an answer, with those of their parameters
// that matter to it. All others the test makes: they do nothing and return 0, which means success.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <driver_types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY (140ull << 30)
#define FIRST_ADDRESS (1ull << 46)  // where Linux puts nothing of a process: what the host reads there ends it
#define MULTIPROCESSORS 132
#define SHARED_MEMORY 232448

static size_t used;  // never less: the runs are short
static int capturing;
static FILE *calls;  // a line for each wait, each CUDA graph, and each launch of a kernel that was compiled here

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CUDA_CALLS");
    if (path && (calls = fopen(path, "a"))) setvbuf(calls, 0, _IOLBF, 0);  // whole lines, however the process ends
}
static int say(const char *call) { return calls && fprintf(calls, "%s\n", call) < 0; }

// ---- the device ----
int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int cudaGetDevice(int *device) { return *device = 0, 0; }
int cudaDriverGetVersion(int *version) { return *version = 13000, 0; }
int cudaRuntimeGetVersion(int *version) { return *version = 13000, 0; }
static int is_blackwell(void) { return getenv("CUDA_BLACKWELL") != 0; }  // a B200 in place of an H200
int cuCtxGetCurrent(void **context) { return *context = &used, 0; }
int cudaGetDeviceProperties(struct cudaDeviceProp *properties) {
    *properties = (struct cudaDeviceProp){
        .major = is_blackwell() ? 10 : 9, .totalGlobalMem = MEMORY, .multiProcessorCount = MULTIPROCESSORS,
        .warpSize = 32, .maxThreadsPerBlock = 1024, .maxThreadsPerMultiProcessor = 2048, .regsPerMultiprocessor = 65536,
        .maxThreadsDim = {1024, 1024, 64}, .maxGridSize = {2147483647, 65535, 65535}, .sharedMemPerBlock = 49152,
        .sharedMemPerBlockOptin = SHARED_MEMORY, .sharedMemPerMultiprocessor = SHARED_MEMORY};
    strcpy(properties->name, is_blackwell() ? "NVIDIA B200 (stand-in)" : "NVIDIA H200 (stand-in)");
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return *value = is_blackwell() ? 10 : 9, 0;
    case cudaDevAttrComputeCapabilityMinor: return *value = 0, 0;
    case cudaDevAttrMultiProcessorCount: return *value = MULTIPROCESSORS, 0;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return *value = SHARED_MEMORY, 0;
    default: return *value = 1024, 0;
    }
}
int cudaDeviceGetAttribute(int *value, int attribute) { return cuDeviceGetAttribute(value, attribute); }
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, long flags, int *found) {
    return *function = dlsym(RTLD_DEFAULT, name), *found = cudaDriverEntryPointSuccess, 0;
}

// ---- memory: addresses with nothing behind them ----
static int on_device(size_t p) { return p >= FIRST_ADDRESS && p < FIRST_ADDRESS + MEMORY; }
int cudaMalloc(size_t *p, size_t bytes) {
    *p = FIRST_ADDRESS + __atomic_fetch_add(&used, (bytes + 511) & ~511ull, __ATOMIC_RELAXED);
    return used > MEMORY ? cudaErrorMemoryAllocation : 0;
}
int cudaMemGetInfo(size_t *unused, size_t *all) { return *unused = MEMORY - used, *all = MEMORY, 0; }
int cudaHostAlloc(void **p, size_t bytes) { return *p = calloc(1, bytes), 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes) {
    if (!on_device((size_t)to)) memset(to, 0, bytes);
    return 0;
}
int cudaPointerGetAttributes(struct cudaPointerAttributes *found, size_t p) {
    *found = (struct cudaPointerAttributes){.type = on_device(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered};
    return 0;
}

// ---- launches and waits; a kernel's handle is its name ----
int cuModuleGetFunction(char **function, void *module, const char *name) { return *function = strdup(name), 0; }
int cuFuncGetAttribute(int *value, int attribute) { return *value = attribute ? 0 : 1024, 0; }  // 0: threads at most
int cuLaunchKernel(const char *function) { return say(function); }
int cuLaunchKernelEx(void *config, const char *function) { return say(function); }
int cudaFuncGetAttributes(struct cudaFuncAttributes *attributes) {
    *attributes = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .binaryVersion = 90, .ptxVersion = 90};
    return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks) { return *blocks = 1, 0; }
int cudaStreamSynchronize(void) { return say("wait for stream"); }
int cudaEventSynchronize(void) { return say("wait for event"); }
int cudaDeviceSynchronize(void) { return say("wait for device"); }
int cudaEventElapsedTime(float *milliseconds) { return *milliseconds = 1, 0; }

// ---- CUDA graphs and cuBLAS ----
int cudaStreamBeginCapture(void) { return capturing = cudaStreamCaptureStatusActive, 0; }
int cudaStreamIsCapturing(void *stream, int *status) { return *status = capturing, 0; }
int cudaStreamGetCaptureInfo(void *stream, int *status) { return *status = capturing, 0; }
int cudaStreamEndCapture(void *stream, void **graph) { return capturing = 0, *graph = &used, 0; }
int cudaGraphGetNodes(void *graph, void *nodes, size_t *count) { return *count = 1, 0; }
int cudaGraphLaunch(void) { return say("graph"); }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *algorithms, int *found) {
    return *found = 1, 0;
}
