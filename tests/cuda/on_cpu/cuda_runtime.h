/* The part of the CUDA runtime that ref/cuda uses, for a CPU: runtime.cc has devices and memory, launcher.cc runs
 * kernels. Everything is done before its call returns, whatever the stream. */
#ifndef M3_CUDA_ON_CPU_RUNTIME_H
#define M3_CUDA_ON_CPU_RUNTIME_H

#include "threads.h"

/* How many devices there are, and what each has. */
#ifndef M3_FAKE_DEVICES
#define M3_FAKE_DEVICES 1
#endif
#ifndef M3_FAKE_DEVICE_BYTES
#define M3_FAKE_DEVICE_BYTES ((size_t)4 << 30)
#endif

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorIllegalAddress = 700,
    cudaErrorNotSupported = 801,
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs;                /* none is understood */
    unsigned numAttrs;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();                 /* and forgets it */
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **p, size_t bytes);                 /* every byte 0xFF */
cudaError_t cudaFree(void *p);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);

template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes) { return cudaMalloc((void **)p, bytes); }

/* Remembers an error for cudaGetLastError, and returns it. */
cudaError_t m3_remember(cudaError_t error);

/* NULL, or a place in device memory, or just after an allocation. */
bool m3_for_device(const void *p);

/* Only what is a pointer is looked at, not what is in a struct. */
template <class T> static inline bool m3_fits_device(const T &) { return true; }

template <class T> static inline bool m3_fits_device(T *const &p) { return m3_for_device(p); }

/* Calls thread(call) once for each thread of the grid. */
cudaError_t m3_run_grid(const cudaLaunchConfig_t *config, const void *kernel, void (*thread)(void *call), void *call);

template <class... Parameters, class... Arguments>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                                             Arguments &&...arguments)
{
    if (!(m3_fits_device(static_cast<Parameters>(arguments)) && ...)) return m3_remember(cudaErrorIllegalAddress);
    auto call = [&] { kernel(static_cast<Parameters>(arguments)...); };
    return m3_run_grid(config, (const void *)kernel, [](void *p) { (*(decltype(call) *)p)(); }, &call);
}

#endif
