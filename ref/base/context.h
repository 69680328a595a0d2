/* What an operator uses besides its operands: threads, scratch memory, the state of a plug-in, and a record of where
 * it failed. One context serves one forward pass at a time. */
#ifndef M3_BASE_CONTEXT_H
#define M3_BASE_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

enum m3_linear { M3_LINEAR_BLAS, M3_LINEAR_ORDERED };

/* A call of `linear` over at most this many rows gives each row the bits that it would get alone, whatever the body.
 * Because of it the output of greedy speculative decoding equals that of greedy decoding. */
enum { M3_ALONE_ROWS = 31 };

/* Where an operator failed; the model adds layer and tap. Coordinates that do not apply are -1. */
struct m3_failure {
    const char *what;       /* "NaN in a block score" */
    int64_t row, group, block;
};

struct m3_ctx {
    int threads;            /* >= 1; results do not depend on it */
    enum m3_linear linear;  /* which body of `linear` runs */
    void *plugin;           /* state of a plug-in; the reference leaves it alone */
    struct m3_failure failure;
    struct m3_scratch *scratch;
};

/* The number of threads, of those of the context or of `threads`, for about that many operations. Small work uses one.
 * Results do not depend on it. */
int m3_team(const struct m3_ctx *ctx, int64_t operations);
int m3_team_of(int threads, int64_t operations);

/* m3_ctx_init returns 0, or M3_INTERNAL if memory is short or threads < 1. m3_ctx_free may follow either, also
 * twice. */
int m3_ctx_init(struct m3_ctx *ctx, int threads, enum m3_linear linear);
void m3_ctx_free(struct m3_ctx *ctx);

/* Scratch memory, 64-byte aligned, uninitialised, reused by later calls. An operator takes all it needs before it
 * starts threads, and then releases it: mark, take, ..., release. Take returns NULL if memory is short or count * size
 * overflows; ctx->failure then says so. */
size_t m3_scratch_mark(const struct m3_ctx *ctx);
void *m3_scratch_take(struct m3_ctx *ctx, int64_t count, size_t size);
void m3_scratch_release(struct m3_ctx *ctx, size_t mark);

/* Records the place of a failure in ctx->failure and returns `status`. */
int m3_fail_at(struct m3_ctx *ctx, int status, const char *what, int64_t row, int64_t group, int64_t block);

#endif
