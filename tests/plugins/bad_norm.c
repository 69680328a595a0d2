/* A plug-in whose rms_norm is right, and then does what its word names: what a watched process must report. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/ops.h"

static m3_op_rms_norm *right;

static int misbehave(const char *word, real *y, const real *x, int64_t n)
{
    real *input = (real *)(uintptr_t)x;
    if (strcmp(word, "crash_once") == 0 && n == 51) raise(SIGSEGV);
    if (strcmp(word, "crash") == 0) raise(SIGSEGV);
    if (strcmp(word, "abort") == 0) abort();
    if (strcmp(word, "hang") == 0) pause();
    if (strcmp(word, "interrupt") == 0 && kill(getppid(), SIGINT) == 0) pause();
    if (strcmp(word, "exit") == 0) exit(0);
    if (strcmp(word, "past") == 0) y[n] = 1;
    if (strcmp(word, "far") == 0) memset(y + n, 0, 4096);
    if (strcmp(word, "before") == 0) memset((char *)y - 70000, 0, 70000);
    if (strcmp(word, "just_before") == 0) y[-1] = 1;
    if (strcmp(word, "input") == 0) input[n / 2] = 0;
    if (strcmp(word, "unwritten") == 0) memset(y + n - 1, 0xFF, sizeof *y);
    return strcmp(word, "status") == 0 ? 5 : M3_OK;
}

static int rms_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const int status = right(ctx, y, x, w, T, H, eps);
    return status ? status : misbehave(ctx->plugin, y, x, T * H);
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    right = ops->rms_norm;
    ops->rms_norm = rms_norm;
    return M3_OK;
}

int m3_plugin_start(void **state, const char *words, struct m3_error *error)
{
    if (strcmp(words, "start") == 0) raise(SIGFPE);
    *state = strdup(words);
    return *state ? M3_OK : m3_fail_memory(error, "words", strlen(words));
}

void m3_plugin_stop(void *state) { free(state); }
