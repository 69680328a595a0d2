#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include "io/leftover.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_OF_NAME = 200 };    /* a name has at most 255 bytes */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Where the number of a process means something: this start of the machine, and this container. 0: not known. */
static uint64_t place_of_processes(void)
{
    char boot[40];
    struct stat space;
    uint64_t hash = 0xcbf29ce484222325;         /* FNV-1a */
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t count = fd >= 0 ? read(fd, boot, sizeof boot) : -1;
    if (fd >= 0) close(fd);
    if (count < 36 || stat("/proc/self/ns/pid", &space) != 0) return 0;
    for (ssize_t i = 0; i < 36; i++) hash = (hash ^ (unsigned char)boot[i]) * 0x100000001b3;
    return (hash ^ (uint64_t)space.st_ino) | 1;
}

char *m3_leftover_name(const char *folder, const char *path, int number)
{
    char *name;
    const int length = asprintf(&name, "%s/.%.*s.m3ref.%" PRIx64 ".%ld.%d.tmp", folder, MOST_OF_NAME, base_of(path),
                                place_of_processes(), (long)getpid(), number);
    return length < 0 ? NULL : name;
}

void m3_leftover_empty(DIR *folder)
{
    const struct dirent *entry;
    rewinddir(folder);
    while ((entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
}

static void remove_ended(int folder, const char *name)
{
    if (unlinkat(folder, name, 0) == 0 || (errno != EISDIR && errno != EPERM)) return;
    const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries) m3_leftover_empty(entries);
    if (entries) closedir(entries);
    else if (fd >= 0) close(fd);
    if (fd >= 0) unlinkat(folder, name, AT_REMOVEDIR);
}

/* What another machine or container left is not ours to judge. */
static int is_ended(const char *name, const char *prefix)
{
    char *end;
    const size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0) return 0;
    const long process = strtol(name + length, &end, 10);
    return end != name + length && *end == '.' && process > 0 && strcmp(end + strlen(end) - 4, ".tmp") == 0 &&
           kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

void m3_leftover_sweep(const char *folder, const char *path)
{
    char prefix[MOST_OF_NAME + 40];
    const struct dirent *entry;
    const uint64_t here = place_of_processes();
    DIR *dir = here ? opendir(folder) : NULL;
    if (!dir) return;
    snprintf(prefix, sizeof prefix, ".%.*s.m3ref.%" PRIx64 ".", MOST_OF_NAME, base_of(path), here);
    while ((entry = readdir(dir)))
        if (is_ended(entry->d_name, prefix)) remove_ended(dirfd(dir), entry->d_name);
    closedir(dir);
}
