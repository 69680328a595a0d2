/* A plug-in that keeps something: how often embed was called since it was started. At its end it writes that to the
 * file that its words name. The word "refuse" makes it refuse with a reason, "silent" without. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

struct counter {
    FILE *file;
    int calls;
};

static int embed(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    struct counter *counter = ctx->plugin;
    counter->calls++;
    for (int64_t t = 0; t < T; t++) m3_expand_f32(y + t * w->cols, w, ids[t], 0, w->cols);
    return M3_OK;
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    ops->embed = embed;
    return M3_OK;
}

int m3_plugin_start(void **state, const char *words, struct m3_error *error)
{
    if (strcmp(words, "refuse") == 0) return m3_fail(error, M3_UNAVAILABLE, "counting_embed: no abacus");
    if (strcmp(words, "silent") == 0) return M3_UNAVAILABLE;
    struct counter *counter = calloc(1, sizeof *counter);
    if (!counter) return m3_fail_memory(error, "a counter", sizeof *counter);
    counter->file = fopen(words, "a");
    *state = counter;
    return M3_OK;
}

void m3_plugin_stop(void *state)
{
    struct counter *counter = state;
    fprintf(counter->file, "embed %d\n", counter->calls);
    fclose(counter->file);
    free(counter);
}
