/* How many processors the process may use. */
#ifndef M3_IO_PROCESSORS_H
#define M3_IO_PROCESSORS_H

/* The default number of threads, at least 1: what OMP_NUM_THREADS says; without it the processors of the affinity mask,
 * but no more than the CPU quota of the process's control group pays for, rounded up. */
int m3_processors(void);

/* The quota in processors, rounded up; 0: there is none. The smallest one from the group of the process up to the root
 * counts, in version 1 and in version 2 of control groups. `root` comes before /proc/self/cgroup and /sys/fs/cgroup. */
int m3_processor_quota(const char *root);

#endif
