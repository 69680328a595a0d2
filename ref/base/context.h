/* What an operator may use besides its operands: threads, scratch memory, the plug-in's own state, and a place to
 * say where it failed. One context serves one forward pass at a time. */
#ifndef M3_BASE_CONTEXT_H
#define M3_BASE_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

enum m3_linear { M3_LINEAR_BLAS, M3_LINEAR_ORDERED };

/* A call of `linear` over no more rows gives each the bits that it has alone, whatever the body. Greedy speculative
 * output equals greedy output because of it. */
enum { M3_ALONE_ROWS = 31 };

/* Where an operator failed; the model adds layer and tap. Coordinates that do not apply are -1. */
struct m3_failure {
    const char *what;       /* "NaN in a block score" */
    int64_t row, group, block;
};

struct m3_ctx {
    int threads;            /* >= 1; no result depends on it */
    enum m3_linear linear;  /* which body of `linear` */
    void *plugin;           /* state of a plug-in; the reference leaves it alone */
    struct m3_failure failure;
    struct m3_scratch *scratch;
};

/* How many threads for about that many operations: a team costs more than a small array. No result depends on it. */
int m3_team(const struct m3_ctx *ctx, int64_t operations);

/* 0, or M3_INTERNAL if memory is short or threads < 1; m3_ctx_free is fine after either, and twice. */
int m3_ctx_init(struct m3_ctx *ctx, int threads, enum m3_linear linear);
void m3_ctx_free(struct m3_ctx *ctx);

/* Scratch memory, 64-byte aligned, uninitialised, kept from call to call. An operator takes all it needs before it
 * starts threads, and gives back what it took: mark, take, ..., release. NULL if memory is short or count * size
 * overflows; ctx->failure then says so. */
size_t m3_scratch_mark(const struct m3_ctx *ctx);
void *m3_scratch_take(struct m3_ctx *ctx, int64_t count, size_t size);
void m3_scratch_release(struct m3_ctx *ctx, size_t mark);

/* Records the place and returns `status`. */
int m3_fail_at(struct m3_ctx *ctx, int status, const char *what, int64_t row, int64_t group, int64_t block);

#endif
