/* The functions that allocate, for the whole process: the program, jansson, OpenSSL, libpng, libc. They forward to those
 * of the address sanitizer, which finds leaks and wrong accesses. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What the functions forward to: the sanitizer's, or without it those of glibc. */
#ifdef M3_SANITIZED
#define BELOW(name) __interceptor_##name
#else
#define BELOW(name) __libc_##name
#endif
void *BELOW(malloc)(size_t bytes);
void *BELOW(calloc)(size_t count, size_t size);
void *BELOW(realloc)(void *old, size_t bytes);
void *BELOW(memalign)(size_t alignment, size_t bytes);

static int fails(size_t bytes)
{
    const int error = fault_event(FAULT_MEMORY, 0, bytes, 0);
    if (error) errno = error;
    return error;
}

/* The code of OpenBLAS. */
struct code {
    const char *first, *end;
};

static int take_code(struct dl_phdr_info *library, size_t size, void *self)
{
    struct code *code = self;
    (void)size;
    for (int i = 0; strstr(library->dlpi_name, "libopenblas") && i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        code->first = (const char *)library->dlpi_addr + part->p_vaddr;
        code->end = code->first + part->p_memsz;
    }
    return 0;
}

static struct code blas;
__attribute__((constructor)) static void find_blas(void) { dl_iterate_phdr(take_code, &blas); }

/* OpenBLAS's kernels for small matrices write to what malloc returns, without a look at it. */
static int is_never_checked(const char *caller)
{
    Dl_info at;
    if (caller < blas.first || caller >= blas.end) return 0;
    return dladdr(caller, &at) && at.dli_sname && strstr(at.dli_sname, "_small_kernel_");
}

void *malloc(size_t bytes)
{
    return !is_never_checked(__builtin_return_address(0)) && fails(bytes) ? NULL : BELOW(malloc)(bytes);
}

void *calloc(size_t count, size_t size) { return fails(count * size) ? NULL : BELOW(calloc)(count, size); }

void *realloc(void *old, size_t bytes) { return fails(bytes) ? NULL : BELOW(realloc)(old, bytes); }

void *reallocarray(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(old, bytes);
}

void *memalign(size_t alignment, size_t bytes) { return fails(bytes) ? NULL : BELOW(memalign)(alignment, bytes); }

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    const int saved = errno;
    void *taken = memalign(alignment, bytes);
    errno = saved;
    if (!taken) return ENOMEM;
    *memory = taken;
    return 0;
}

/* The sanitizer's own copies of strings would not pass by malloc above. */
char *strndup(const char *text, size_t most)
{
    const size_t length = strnlen(text, most);
    char *copy = malloc(length + 1);
    if (!copy) return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

char *strdup(const char *text) { return strndup(text, strlen(text)); }
char *__strdup(const char *text) { return strdup(text); }
char *__strndup(const char *text, size_t most) { return strndup(text, most); }

struct begun {
    void *(*start)(void *);
    void *self;
};

/* What the sanitizer allocates for a thread before this does not belong to the program. */
static void *begin(void *self)
{
    const struct begun b = *(struct begun *)self;
    free(self);
    fault_thread_begins();
    return b.start(b.self);
}

/* A thread is memory too: its stack. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *self)
{
    if (fault_event(FAULT_MEMORY, 0, 0, 0)) return EAGAIN;
    struct begun *begun = BELOW(malloc)(sizeof *begun);
    if (!begun) return EAGAIN;
    *begun = (struct begun){ start, self };
    int (*below)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&below, &symbol, sizeof below);
    const int error = below(thread, attributes, begin, begun);
    if (error) free(begun);
    return error;
}
