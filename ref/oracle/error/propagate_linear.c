#include "oracle/error/private/bounds_dot.h"
#include "oracle/error/propagate.h"

enum { LANES = M3_DOT_LANES };

struct linear {
    struct m3_spread *out;
    const struct m3_spread *of_x;
    const int64_t *rows;            /* those of x that may be off at all */
    int64_t outputs, cols;
};

static void place(const void *self, int64_t i, const struct m3_panel *panel)
{
    const struct linear *a = self;
    double error[LANES], variance[LANES];
    int64_t t = a->rows[i];
    m3_dot_spread(error, variance, a->of_x->error + t * a->cols, a->of_x->variance + t * a->cols, panel->values,
                  a->cols);
    for (int64_t l = 0; l < panel->lanes; l++) {
        int64_t at = t * a->outputs + panel->n0 + l;
        a->out->error[at] += error[l];
        a->out->variance[at] += variance[l];
    }
}

static int is_off(const struct m3_spread *s, int64_t at, int64_t n)
{
    for (int64_t i = at; i < at + n; i++)
        if (s->error[i] != 0 || s->variance[i] != 0) return 1;
    return 0;
}

/* error |W| e, variance W^2 v */
int m3_propagate_linear(struct m3_ctx *ctx, struct m3_spread *out, const struct m3_spread *of_x, const struct m3_weight *w,
                   int64_t T)
{
    if (m3_is_exact(of_x)) return M3_OK;
    int64_t cols = w->cols, count = 0;
    size_t mark = m3_scratch_mark(ctx);
    int64_t *rows = m3_scratch_take(ctx, T, sizeof *rows);
    if (!rows) return M3_INTERNAL;
    for (int64_t t = 0; t < T; t++)
        if (is_off(of_x, t * cols, cols)) rows[count++] = t;
    struct linear linear = { out, of_x, rows, w->rows, cols };
    int status = count ? m3_dot_panels(ctx, place, &linear, w, NULL, count) : M3_OK;
    m3_scratch_release(ctx, mark);
    return status;
}
