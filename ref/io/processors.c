#include "io/processors.h"

#include <inttypes.h>
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096 };

/* The first two numbers of a file. "max", or -1, means that there is no limit. */
static int read_numbers(int64_t *first, int64_t *second, const char *folder, const char *name)
{
    char path[PATH + 64];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    const int count = fscanf(file, "%" SCNd64 " %" SCNd64, first, second);
    fclose(file);
    return count;
}

/* The quota of one group, rounded up; 0: none. Version 2 has both numbers in one file, version 1 in two. */
static int quota_of(const char *folder)
{
    int64_t quota, period, unused;
    if (read_numbers(&quota, &period, folder, "cpu.max") != 2 &&
        (read_numbers(&quota, &unused, folder, "cpu.cfs_quota_us") < 1 ||
         read_numbers(&period, &unused, folder, "cpu.cfs_period_us") < 1))
        return 0;
    if (quota <= 0 || period <= 0) return 0;
    const int64_t processors = quota / period + (quota % period != 0);
    return processors < INT_MAX ? (int)processors : 0;
}

/* From the group `path` up to the root. Inside a container the folder of the root may be that of the container's
 * group, and `path` may not exist there. */
static int smallest_quota(const char *mount, const char *path)
{
    char folder[PATH];
    int least = 0;
    if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= (int)sizeof folder) return 0;
    for (;;) {
        const int quota = quota_of(folder);
        if (quota && (!least || quota < least)) least = quota;
        if (strlen(folder) <= strlen(mount)) return least;
        *strrchr(folder, '/') = '\0';
    }
}

/* Is `name` one of the words of a list with commas? */
static int has_word(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *word = list; word; word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL)
        if (strncmp(word, name, length) == 0 && (word[length] == ',' || word[length] == '\0')) return 1;
    return 0;
}

int m3_processor_quota(const char *root)
{
    char path[PATH], mount[PATH], line[PATH];
    int least = 0;
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= (int)sizeof path) return 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    /* "4:cpu,cpuacct:/path" is a hierarchy of version 1; "0::/path" the one of version 2. */
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        *group++ = '\0';
        const char *folder = controllers[1] == '\0' ? "" : has_word(controllers + 1, "cpu") ? "/cpu" : NULL;
        if (!folder || snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, folder) >= (int)sizeof mount) continue;
        const int quota = smallest_quota(mount, group);
        if (quota && (!least || quota < least)) least = quota;
    }
    fclose(file);
    return least;
}

int m3_processors(void)
{
    if (getenv("OMP_NUM_THREADS")) return omp_get_max_threads();
    const int present = omp_get_num_procs(), quota = m3_processor_quota("");
    return quota && quota < present ? quota : present;
}
