/* --max-memory SIZE, an option of every command. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "io/memory.h"
#include "io/processors.h"

/* OpenBLAS maps a buffer of 128 MiB for each thread that multiplies, and for each of its own, and waits for ever if it
 * cannot. Its buffers and the threads' stacks are therefore mapped before memory is limited, and do not count. The C
 * library reserves 128 MiB of addresses for a thread that allocates. */
enum { MOST_THREADS = 1024, BUFFER = 128 << 20, STACK = 8 << 20, ADDRESSES = 128 << 20 };
/* Threads end and start again between operators; the C library keeps the stacks of so many that ended. */
enum { KEPT_STACKS = 4 };
__attribute__((weak)) void *blas_memory_alloc(int place);
__attribute__((weak)) void blas_memory_free(void *buffer);

static int at_most(int threads) { return threads < MOST_THREADS ? threads : MOST_THREADS; }

struct words {
    uint64_t size;              /* 0: no --max-memory */
    int threads;                /* as many as the command may start */
    int will_fork;              /* --ops, --perf: a process with threads cannot go on in a child */
    int only_says;              /* --help, --version: starts no thread */
};

/* Returns the memory that threads will still need. */
static uint64_t reserve_threads(const struct words *w)
{
    void *buffers[2 * MOST_THREADS];
    int started = 0, count = 0;
#pragma omp parallel num_threads(w->will_fork ? 1 : w->threads) reduction(+ : started)
    started++;
    while (blas_memory_alloc && blas_memory_free && count < w->threads + at_most(openblas_get_num_threads()))
        buffers[count++] = blas_memory_alloc(0);
    while (count > 0) blas_memory_free(buffers[--count]);
    const int kept = started < KEPT_STACKS ? started : KEPT_STACKS;
    return (uint64_t)(w->threads - kept) * STACK;
}

/* "4096", "512M", "8G": units of 1024. */
static int parse_size(uint64_t *size, const char *text, struct m3_error *error)
{
    static const char units[] = "KMGT";
    char *end;
    const unsigned long long number = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int bits = unit ? 10 * (int)(unit - units + 1) : 0;
    if (text[0] < '0' || text[0] > '9' || end[unit ? 1 : 0] || !number || number > (uint64_t)INT64_MAX >> bits)
        return m3_fail(error, M3_USAGE, "--max-memory: got %s, expected a size such as 512M or 8G", text);
    *size = (uint64_t)number << bits;
    return M3_OK;
}

/* The value of option argv[i], "--name=value" or "--name value"; NULL if it is another word. *words: how many it is. */
static const char *value_of(const char *name, int argc, char **argv, int i, int *words)
{
    const size_t length = strlen(name);
    *words = 1;
    if (strncmp(argv[i], name, length) != 0) return NULL;
    if (argv[i][length] == '=') return argv[i] + length + 1;
    if (argv[i][length] || i + 1 == argc) return argv[i][length] ? NULL : "nothing";
    *words = 2;
    return argv[i + 1];
}

/* Takes the option out of argv. */
static int take(struct words *w, int *argc, char **argv, struct m3_error *error)
{
    int kept = 0, status = M3_OK, words, only_names = 0;
    for (int i = 0; i < *argc; i += words) {
        only_names |= strcmp(argv[i], "--") == 0;
        const char *threads = value_of("--threads", *argc, argv, i, &words);
        if (threads && atoi(threads) > 0) w->threads = at_most(atoi(threads));
        w->will_fork |= value_of("--ops", *argc, argv, i, &words) != NULL || strcmp(argv[i], "--perf") == 0;
        const char *text = only_names ? NULL : value_of("--max-memory", *argc, argv, i, &words);
        if (text) {
            if (!status) status = parse_size(&w->size, text, error);
            continue;
        }
        words = 1;
        w->only_says |= !only_names && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"));
        argv[kept++] = argv[i];
    }
    argv[ *argc = kept] = NULL;
    w->only_says |= kept < 2 || strcmp(argv[1], "--version") == 0;
    return status;
}

int m3_cli_memory(int *argc, char **argv, struct m3_error *error)
{
    struct words w = { .threads = at_most(m3_processors()) };
    int status = take(&w, argc, argv, error);
    const int is_limited = m3_memory_is_limited();
    if (status || w.only_says || (!w.size && !is_limited)) return status;
    const uint64_t needed = (uint64_t)w.threads * (BUFFER + STACK + ADDRESSES) +
                            (uint64_t)at_most(openblas_get_num_threads()) * (BUFFER + STACK);
    if (is_limited) status = m3_memory_check(needed, "the threads", error);
    if (status) return status;
    const uint64_t stacks = reserve_threads(&w);
    return w.size ? m3_memory_limit(w.size + stacks, error) : M3_OK;
}
