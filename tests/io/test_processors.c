/* How many processors a process may use: the quotas of control groups, from folders that the test makes. */
#include "files.h"

#include <omp.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/processors.h"

static void setup(void) { make_folder(); }
static void teardown(void) { remove_folder(); }

FIXTURE(setup, teardown);

/* Writes a file, with its folders, below the test's folder. */
static void write_below(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s", in_folder(path));
    for (char *slash = strchr(whole + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    write_bytes(whole, text, strlen(text));
}

enum { FILES = 5 };

static const struct {
    const char *what;
    int want;
    const char *files[FILES][2];
} quotas[] = {
    { "no control groups", 0, { { NULL } } },
    { "version 2, no limit", 0, { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "max 100000\n" } } },
    { "version 2", 2, { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "200000 100000\n" } } },
    { "rounded up", 2, { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "100001 100000\n" } } },
    { "less than one", 1, { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "1000 100000\n" } } },
    { "of a group above",
      3,
      { { "proc/self/cgroup", "0::/a/b/c\n" },
        { "sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n" },
        { "sys/fs/cgroup/a/cpu.max", "300000 100000\n" } } },
    { "the smallest",
      2,
      { { "proc/self/cgroup", "0::/a/b\n" },
        { "sys/fs/cgroup/a/b/cpu.max", "150000 100000\n" },
        { "sys/fs/cgroup/a/cpu.max", "300000 100000\n" } } },
    { "in a container, whose folder is the root",
      4,
      { { "proc/self/cgroup", "0::/elsewhere\n" }, { "sys/fs/cgroup/cpu.max", "400000 100000\n" } } },
    { "version 1",
      3,
      { { "proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/a\n0::/\n" },
        { "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000\n" },
        { "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n" } } },
    { "version 1, no limit",
      0,
      { { "proc/self/cgroup", "4:cpuacct,cpu:/\n" },
        { "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n" },
        { "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n" } } },
    { "version 1, another controller",
      0,
      { { "proc/self/cgroup", "4:cpuacct:/a\n" },
        { "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n" },
        { "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n" } } },
    { "both versions, the smaller",
      2,
      { { "proc/self/cgroup", "4:cpu:/a\n0::/b\n" },
        { "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "500000\n" },
        { "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n" },
        { "sys/fs/cgroup/b/cpu.max", "200000 100000\n" } } },
    { "no numbers", 0, { { "proc/self/cgroup", "0::/a\nrubbish\n4:cpu\n" }, { "sys/fs/cgroup/a/cpu.max", "many\n" } } },
    { "a period of 0", 0, { { "proc/self/cgroup", "0::/a\n" }, { "sys/fs/cgroup/a/cpu.max", "100000 0\n" } } },
};
enum { QUOTAS = sizeof quotas / sizeof quotas[0] };

/* Goal:  the quota that the kernel enforces is the smallest one on the way from the group to the root.
 * Seen to fail with: only the own group; rounded down; "cpuacct" taken for "cpu". */
LOOP_TEST(quota, QUOTAS)
{
    for (int i = 0; i < FILES && quotas[_i].files[i][0]; i++)
        write_below(quotas[_i].files[i][0], quotas[_i].files[i][1]);
    const int got = m3_processor_quota(in_folder(""));
    ck_assert_msg(got == quotas[_i].want, "%s: got %d, expected %d", quotas[_i].what, got, quotas[_i].want);
}

/* Goal:  the user's word counts; else no more threads than processors of the affinity mask.
 * Seen to fail with OMP_NUM_THREADS left alone. */
TEST(default_threads)
{
    unsetenv("OMP_NUM_THREADS");
    const int present = omp_get_num_procs(), quota = m3_processor_quota("");
    ck_assert_int_eq(m3_processors(), quota && quota < present ? quota : present);
    setenv("OMP_NUM_THREADS", "7", 1);
    omp_set_num_threads(7);         /* as the runtime does at the start of a process */
    ck_assert_int_eq(m3_processors(), 7);
}
