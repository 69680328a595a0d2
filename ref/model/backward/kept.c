/* Parts of the pass computed again: its taps, kept by a sink. The arithmetic is that of the forward pass, and so are the bits
 * and the choices. */
#include <stdlib.h>
#include <string.h>

#include "model/backward/backward.h"
#include "model/forward/layer.h"

/* Taps that no derivative reads: sums, what only a rotation or the residual stream reads, and the scores of blocks. */
static int is_read(enum m3_tap tap)
{
    switch (tap) {
    case M3_TAP_Q_NORM:
    case M3_TAP_K_NORM:
    case M3_TAP_INDEX_Q_NORM:
    case M3_TAP_INDEX_K_NORM:
    case M3_TAP_INDEX_BLOCK_SCORES:
    case M3_TAP_ATTN_OUT:
    case M3_TAP_EXPERT_OUT:
    case M3_TAP_ROUTED:
    case M3_TAP_SHARED:
    case M3_TAP_MLP:
    case M3_TAP_VISION_GRID:
    case M3_TAP_VISION_Q_PROJ:
    case M3_TAP_VISION_K_PROJ:
    case M3_TAP_VISION_ATTN_OUT:
    case M3_TAP_VISION_MLP:
    case M3_TAP_VISION_OUT:
    case M3_TAP_LINEAR_2:
    case M3_TAP_PROJECTOR_OUT: return 0;
    default: return tap < M3_TAP_EMBED || (tap >= M3_TAP_ATTN_NORM && tap < M3_TAP_FINAL_NORM);
    }
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    (void)self, (void)layer;
    return is_read(tap);
}

static int keep(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                struct m3_error *error)
{
    struct m3_backward *b = self;
    const size_t size = m3_tap_table[tap].kind == M3_KIND_REALS ? sizeof(real) : sizeof(int32_t);
    const int64_t width = m3_pass_width(&b->f, tap);
    (void)layer, (void)row, (void)error; /* these taps come whole */
    free(b->kept.at[tap]);
    b->kept.at[tap] = m3_pass_need(&b->f, rows, width, size);
    if (b->kept.at[tap]) memcpy(b->kept.at[tap], data, (size_t)(rows * width) * size);
    return b->f.status;
}

void m3_keep_begin(struct m3_backward *b)
{
    m3_keep_nothing(b);
    b->keeper = (struct m3_sink){ .self = b, .wants = wants, .write = keep };
    b->how.sink = &b->keeper;
}

void m3_keep_end(struct m3_backward *b) { b->how.sink = NULL; }

void m3_keep_layer(struct m3_backward *b, int64_t layer, const real *input)
{
    struct m3_activations a = { 0 };
    struct m3_pass *f = &b->f;
    m3_keep_begin(b);
    f->layer = layer;
    m3_activations_make(f, &a);
    m3_pass_copy(f, a.hidden, input);
    if (!f->status) {
        memcpy(a.angles.cos, b->angles.cos, (size_t)(f->rows * b->angles.R / 2) * sizeof(real));
        memcpy(a.angles.sin, b->angles.sin, (size_t)(f->rows * b->angles.R / 2) * sizeof(real));
    }
    if (m3_mtp_module_of(layer) >= 0) m3_layer_run(f, &a); /* the head of a module reads the output */
    else m3_layer_run_for_gradient(f, &a);
    m3_activations_free(&a);
    m3_keep_end(b);
}

void m3_keep_nothing(struct m3_backward *b)
{
    for (int tap = 0; tap < M3_TAPS; tap++) free(b->kept.at[tap]);
    b->kept = (struct m3_kept){ 0 };
}
