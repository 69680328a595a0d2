#include "ranks/ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

const char *const m3_sent_names[M3_SENT_KINDS] = { "orders", "states", "keys", "tokens", "results", "taps" };

struct m3_ranks {
    void *library;
    struct m3_transport *transport;
    struct m3_ranks_work work;
    const void *model;
    unsigned char *has_spoken;  /* [count] */
    int silent;                 /* other ranks that have not said a word */
    int is_broken, is_ended;
    int failed;                 /* the lowest rank that has failed; or -1 */
    struct m3_word word;        /* its word */
};

/* Open MPI's launcher says so in the environment; only the launcher knows. */
int m3_ranks_several(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    return size && atoi(size) > 1;
}

static int reach(struct m3_ranks *r, const char *path, struct m3_error *error)
{
    struct m3_transport *(*open)(void) = NULL;
    r->library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!r->library) return m3_fail(error, M3_UNAVAILABLE, "%s: %s", path, dlerror());
    *(void **)&open = dlsym(r->library, "m3_transport_open");
    if (!open) return m3_fail(error, M3_UNAVAILABLE, "%s: got no m3_transport_open, expected one", path);
    r->transport = open();
    if (!r->transport || r->transport->abi_version != M3_TRANSPORT_ABI)
        return m3_fail(error, M3_UNAVAILABLE, "%s: the other ranks cannot be reached", path);
    r->silent = r->transport->count - 1;
    r->has_spoken = calloc((size_t)r->transport->count, 1);
    return r->has_spoken ? M3_OK : m3_fail_memory(error, "the ranks", (size_t)r->transport->count);
}

int m3_ranks_open(struct m3_ranks **ranks, const char *path, struct m3_error *error)
{
    struct m3_ranks *r = *ranks = calloc(1, sizeof *r);
    if (!r) return m3_fail_memory(error, "the ranks", sizeof *r);
    r->failed = -1;
    return reach(r, path, error);
}

int m3_ranks_rank(const struct m3_ranks *r) { return r->transport->rank; }
int m3_ranks_count(const struct m3_ranks *r) { return r->transport->count; }
struct m3_ranks_work *m3_ranks_work(struct m3_ranks *r) { return &r->work; }
void m3_ranks_share(struct m3_ranks *r, const void *model) { r->model = model; }
int m3_ranks_shares(const struct m3_ranks *r, const void *model) { return r->model == model; }
int m3_ranks_ended(const struct m3_ranks *r) { return r->is_ended; }

static void note(struct m3_ranks *r, const struct m3_word *word, int from)
{
    if (!r->has_spoken[from]) r->silent--;
    r->has_spoken[from] = 1;
    r->is_broken = 1;
    if (word->kind == M3_WORD_END) r->is_ended = 1;
    if (word->kind != M3_WORD_FAILED || (r->failed >= 0 && r->failed <= from)) return;
    r->failed = from;
    r->word = *word;
}

static void tell_all(struct m3_ranks *r, const struct m3_word *word)
{
    for (int to = 0; to < r->transport->count; to++)
        if (to != r->transport->rank) r->transport->tell(r->transport, to, word);
}

/* Says a word to all, and waits until all have said theirs: from then on nobody reads this rank's memory. */
static void stop(struct m3_ranks *r, const struct m3_word *word)
{
    struct m3_word heard;
    int from;
    if (!r->is_ended) tell_all(r, word);
    while (r->silent > 0 && !r->is_ended && r->transport->hear(r->transport, &heard, &from) == 0) note(r, &heard, from);
    r->is_broken = 1;
}

/* The failure of another rank, as one line. */
static int report(const struct m3_ranks *r, struct m3_error *error)
{
    if (r->failed < 0) return m3_fail(error, M3_INTERNAL, "the other ranks have ended");
    return m3_fail(error, (enum m3_status)r->word.status, "rank %d: %s", r->failed, r->word.text);
}

int m3_ranks_exchange(struct m3_ranks *r, enum m3_sent kind, const struct m3_parcel *out, int outs,
                      const struct m3_parcel *in, int ins, struct m3_error *error)
{
    struct m3_word word = { 0 };
    const struct m3_word stopped = { .kind = M3_WORD_STOPPED };
    int from = -1;
    if (r->is_broken) return report(r, error);
    const double start = m3_seconds();
    const int result = r->transport->exchange(r->transport, out, outs, in, ins, &word, &from);
    r->work.waited += m3_seconds() - start;
    for (int i = 0; i < outs; i++) r->work.sent[kind] += (int64_t)out[i].bytes;
    if (result == 0) return M3_OK;
    if (result < 0) return m3_fail(error, M3_IO, "rank %d: MPI failed", r->transport->rank);
    note(r, &word, from);
    stop(r, &stopped);
    return report(r, error);
}

void m3_ranks_fail(struct m3_ranks *r, const struct m3_error *error)
{
    struct m3_word word = { .kind = M3_WORD_FAILED, .status = (int32_t)error->status };
    const char *at = m3_error_lines(error);
    size_t length = 0;
    const char *line = at ? m3_next_line(&at, &length) : NULL;
    if (r->is_broken) return;
    snprintf(word.text, sizeof word.text, "%.*s", (int)length, line ? line : "failed");
    stop(r, &word);
}

void m3_ranks_close(struct m3_ranks *r)
{
    const struct m3_word end = { .kind = M3_WORD_END };
    struct m3_word word;
    int from;
    if (!r) return;
    if (r->transport && r->transport->rank == 0) tell_all(r, &end);
    while (r->transport && r->transport->rank > 0 && !r->is_ended &&
           r->transport->hear(r->transport, &word, &from) == 0)
        note(r, &word, from);
    if (r->transport) r->transport->close(r->transport);
    free(r->has_spoken);
    free(r);            /* the library stays: MPI has threads of its own */
}
