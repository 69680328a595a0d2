#include "io/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t page_bytes(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

/* What counts towards RLIMIT_AS, and what towards RLIMIT_DATA; 0 where the system does not say. */
static void read_use(uint64_t *all, uint64_t *data)
{
    FILE *file = fopen("/proc/self/statm", "r");
    *all = *data = 0;
    if (!file) return;
    if (fscanf(file, "%" SCNu64 " %*u %*u %*u %*u %" SCNu64, all, data) != 2) *all = *data = 0;
    fclose(file);
    *all *= page_bytes();
    *data *= page_bytes();
}

static uint64_t room_in(int resource, uint64_t used, uint64_t most)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return most;
    const uint64_t room = limit.rlim_cur > used ? limit.rlim_cur - used : 0;
    return room < most ? room : most;
}

uint64_t m3_memory_room(void)
{
    uint64_t all, data;
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * page_bytes();
    read_use(&all, &data);
    return room_in(RLIMIT_AS, all, room_in(RLIMIT_DATA, data, machine));
}

int m3_memory_is_limited(void)
{
    return room_in(RLIMIT_AS, 0, UINT64_MAX) != UINT64_MAX || room_in(RLIMIT_DATA, 0, UINT64_MAX) != UINT64_MAX;
}

int m3_memory_limit(uint64_t bytes, struct m3_error *error)
{
    uint64_t all, data;
    struct rlimit limit;
    read_use(&all, &data);
    if (!data) return m3_fail(error, M3_INTERNAL, "--max-memory: /proc/self/statm cannot be read");
    int failed = getrlimit(RLIMIT_DATA, &limit);
    if (!failed && data < limit.rlim_cur && bytes < limit.rlim_cur - data) limit.rlim_cur = data + bytes;
    if (!failed) failed = setrlimit(RLIMIT_DATA, &limit);
    return failed ? m3_fail(error, M3_INTERNAL, "--max-memory: cannot be set: %s", strerror(errno)) : M3_OK;
}

int m3_fail_room(uint64_t bytes, const char *what, struct m3_error *error)
{
    return m3_fail(error, M3_INTERNAL,
                   "%s: needs %" PRIu64 " bytes of memory, expected at most %" PRIu64
                   ", what --max-memory, a limit of the process or the machine leaves",
                   what, bytes, m3_memory_room());
}

int m3_memory_check(uint64_t bytes, const char *what, struct m3_error *error)
{
    return bytes <= m3_memory_room() ? M3_OK : m3_fail_room(bytes, what, error);
}
