#include "base/context.h"

#include <stdlib.h>

#include "base/minmax.h"
#include "base/room.h"
#include "base/status.h"

enum { ALIGNMENT = 64, SMALLEST_CHUNK = 1 << 20 };

/* A stack of chunks. Allocated memory never moves: when a chunk is full, the next one is used. A mark counts the bytes
 * of the chunks before the current one, plus those used in it. Chunks after the current one are always empty. */
struct chunk {
    char *bytes;
    size_t size, used;
};

struct m3_scratch {
    struct chunk *chunks;
    size_t count, current;
};

int m3_ctx_init(struct m3_ctx *ctx, int threads, enum m3_linear linear)
{
    *ctx = (struct m3_ctx){ .threads = threads, .linear = linear };
    ctx->failure = (struct m3_failure){ NULL, -1, -1, -1 };
    if (threads < 1) return m3_fail_at(ctx, M3_INTERNAL, "fewer than 1 thread", -1, -1, -1);
    ctx->scratch = calloc(1, sizeof *ctx->scratch);
    return ctx->scratch ? M3_OK : m3_fail_at(ctx, M3_INTERNAL, "no memory for a context", -1, -1, -1);
}

void m3_ctx_free(struct m3_ctx *ctx)
{
    struct m3_scratch *scratch = ctx->scratch;
    if (scratch) {
        for (size_t i = 0; i < scratch->count; i++) free(scratch->chunks[i].bytes);
        free(scratch->chunks);
        free(scratch);
    }
    ctx->scratch = NULL;
}

size_t m3_scratch_mark(const struct m3_ctx *ctx)
{
    const struct m3_scratch *scratch = ctx->scratch;
    size_t mark = scratch->current < scratch->count ? scratch->chunks[scratch->current].used : 0;
    for (size_t i = 0; i < scratch->current; i++) mark += scratch->chunks[i].size;
    return mark;
}

void m3_scratch_release(struct m3_ctx *ctx, size_t mark)
{
    struct m3_scratch *scratch = ctx->scratch;
    for (size_t i = 0; i < scratch->count; i++) {
        struct chunk *chunk = &scratch->chunks[i];
        if (mark <= chunk->size) {
            chunk->used = mark;
            scratch->current = i;
            for (size_t j = i + 1; j < scratch->count; j++) scratch->chunks[j].used = 0;
            return;
        }
        mark -= chunk->size;
    }
}

/* Replaces the empty chunks from `first` on, which are too small, by one of at least `bytes`. Sizes double, so that a
 * context stops allocating after a few calls. */
static int replace_chunks(struct m3_scratch *scratch, size_t first, size_t bytes)
{
    size_t size = SMALLEST_CHUNK;
    for (size_t i = 0; i < scratch->count; i++) size += scratch->chunks[i].size;
    if (size < bytes) size = bytes;
    while (scratch->count > first) free(scratch->chunks[--scratch->count].bytes);

    struct chunk *chunks = realloc(scratch->chunks, (first + 1) * sizeof *chunks);
    if (!chunks) return 0;
    scratch->chunks = chunks;
    chunks[first] = (struct chunk){ aligned_alloc(ALIGNMENT, size), size, 0 };
    if (!chunks[first].bytes) return 0;
    m3_large_pages(chunks[first].bytes, size);
    scratch->count = first + 1;
    return 1;
}

static void *take(struct m3_scratch *scratch, size_t bytes)
{
    for (size_t i = scratch->current;; i++) {
        if (i == scratch->count || (scratch->chunks[i].used == 0 && scratch->chunks[i].size < bytes)) {
            if (!replace_chunks(scratch, i, bytes)) return NULL;
        }
        struct chunk *chunk = &scratch->chunks[i];
        if (chunk->size - chunk->used >= bytes) {
            void *taken = chunk->bytes + chunk->used;
            chunk->used += bytes;
            scratch->current = i;
            return taken;
        }
    }
}

void *m3_scratch_take(struct m3_ctx *ctx, int64_t count, size_t size)
{
    size_t bytes;
    void *taken = NULL;
    if (count >= 0 && !__builtin_mul_overflow((size_t)count, size, &bytes) && bytes <= PTRDIFF_MAX - ALIGNMENT) {
        bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        taken = take(ctx->scratch, bytes ? bytes : ALIGNMENT);
    }
    if (!taken) m3_fail_at(ctx, M3_INTERNAL, "no scratch memory", -1, -1, -1);
    return taken;
}

int m3_fail_at(struct m3_ctx *ctx, int status, const char *what, int64_t row, int64_t group, int64_t block)
{
    ctx->failure = (struct m3_failure){ what, row, group, block };
    return status;
}

int m3_team_of(int threads, int64_t operations)
{
    const int64_t worth_a_thread = 1 << 17;         /* waking a thread that sleeps takes about 50 us */
    return (int)m3_max(1, m3_min(threads, operations / worth_a_thread));
}

int m3_team(const struct m3_ctx *ctx, int64_t operations) { return m3_team_of(ctx->threads, operations); }
