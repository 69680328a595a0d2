/* Devices and their memory, for a CPU. */
#include <cuda_runtime.h>

#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

namespace {

enum { PROCESSORS = 4, MOST_SHARED = 99 << 10, ALIGNMENT = 256 };

struct allocation {
    size_t bytes;
    int device;
};

std::map<const char *, allocation> allocations;
size_t used[M3_FAKE_DEVICES + 1];
int device_now;
cudaError_t last_error;

/* Do the bytes lie in one allocation? */
bool on_device(const void *p, size_t bytes)
{
    auto after = allocations.upper_bound((const char *)p);
    if (after == allocations.begin()) return false;
    const auto &[start, a] = *--after;
    const size_t offset = (size_t)((const char *)p - start);
    return offset < a.bytes && bytes <= a.bytes - offset;
}

/* Of what is not on the device, only that the first byte is not is known. */
bool on_host(const void *p) { return p && !on_device(p, 0); }

}

bool m3_for_device(const void *p)
{
    return !p || on_device(p, 0) || on_device((const char *)p - 1, 1);
}

cudaError_t m3_remember(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNotSupported: return "operation not supported";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetLastError()
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = M3_FAKE_DEVICES;
    return m3_remember(M3_FAKE_DEVICES ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (M3_FAKE_DEVICES == 0) return m3_remember(cudaErrorNoDevice);
    if (device < 0 || device >= M3_FAKE_DEVICES) return m3_remember(cudaErrorInvalidDevice);
    device_now = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (M3_FAKE_DEVICES == 0) return m3_remember(cudaErrorNoDevice);
    if (device < 0 || device >= M3_FAKE_DEVICES) return m3_remember(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "CPU in place of a device");
    properties->totalGlobalMem = M3_FAKE_DEVICE_BYTES;
    properties->sharedMemPerBlockOptin = MOST_SHARED;
    properties->major = 8;
    properties->multiProcessorCount = PROCESSORS;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    if (M3_FAKE_DEVICES == 0) return m3_remember(cudaErrorNoDevice);
    *total = M3_FAKE_DEVICE_BYTES;
    *free = *total - used[device_now];
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = NULL;
    if (M3_FAKE_DEVICES == 0) return m3_remember(cudaErrorNoDevice);
    if (bytes == 0) return cudaSuccess;
    if (bytes > M3_FAKE_DEVICE_BYTES - used[device_now] || posix_memalign(p, ALIGNMENT, bytes) != 0)
        return m3_remember(cudaErrorMemoryAllocation);
    memset(*p, 0xFF, bytes);
    allocations[(const char *)*p] = { bytes, device_now };
    used[device_now] += bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p) return cudaSuccess;
    auto a = allocations.find((const char *)p);
    if (a == allocations.end()) return m3_remember(cudaErrorInvalidValue);
    used[a->second.device] -= a->second.bytes;
    allocations.erase(a);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t)
{
    if (bytes == 0) return cudaSuccess;
    const bool to_fits = kind == cudaMemcpyDeviceToHost ? on_host(to) : on_device(to, bytes);
    const bool from_fits = kind == cudaMemcpyHostToDevice ? on_host(from) : on_device(from, bytes);
    if (!to_fits || !from_fits) return m3_remember(cudaErrorInvalidValue);
    memmove(to, from, bytes);
    return cudaSuccess;
}

/* Of the target the whole extent must be there; gaps keep their bytes. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream)
{
    if (bytes > to_pitch || bytes > from_pitch) return m3_remember(cudaErrorInvalidValue);
    for (size_t i = 0; i < rows; i++) {
        const cudaError_t error = cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, bytes,
                                                  kind, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t)
{
    if (bytes == 0) return cudaSuccess;
    if (!on_device(to, bytes)) return m3_remember(cudaErrorInvalidValue);
    memset(to, byte, bytes);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    *stream = NULL;
    if (M3_FAKE_DEVICES == 0) return m3_remember(cudaErrorNoDevice);
    *stream = (cudaStream_t)malloc(1);      /* so that one that is not destroyed is found as a leak */
    return m3_remember(*stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

/* The time of the record is in it. */
struct CUevent_st {
    struct timespec time;
};

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = (cudaEvent_t)calloc(1, sizeof **event);
    return m3_remember(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    return m3_remember(clock_gettime(CLOCK_MONOTONIC, &event->time) == 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    *milliseconds = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                            (double)(to->time.tv_nsec - from->time.tv_nsec) / 1e6);
    return cudaSuccess;
}
