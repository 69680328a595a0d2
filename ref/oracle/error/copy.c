#include "oracle/error/private/recompute.h"

#include <string.h>

/* ---- copy: bits are equal, B = 0 */

static int value(struct m3_recomputing *m)
{
    memcpy(m->y, m->in[0].values, (size_t)m->count * sizeof *m->y);
    return M3_OK;
}

/* A copy has the error of its source. */
static int propagate(struct m3_recomputing *m)
{
    m3_propagate_add(&m->spread, &m->in[0].off, NULL, m->count);
    return M3_OK;
}

/* Four patches become one row of projector.merged. */
static void rows(struct m3_recomputing *m)
{
    if (m->tap != M3_TAP_MERGED) {
        m3_rows_in_common(m);
        return;
    }
    m3_rows_of_pictures(m);
    if (m->rows > 0) m->in[0] = *m->operands[0], m->in[0].width = m->width;
}

const struct m3_error_operator m3_error_copy = {
    .name = "copy",
    .sections = { "6. The forward pass" },
    .value = value,
    .propagate = propagate,
    .rows = rows,
    .copies = 1,
};

/* ---- scatter: embeddings, and features of pictures at the places of their tokens */

/* The row of the pictures' features for each token; -1: the embedding stays. Without pictures a placeholder is an
 * ordinary token. */
static int64_t *features(struct m3_recomputing *m)
{
    const struct m3_case *c = m->setting->the_case;
    const struct m3_vision_config *v = &m->config->vision;
    const int sees = c->pictures.P > 0;
    int64_t image = 0, video = sees ? m3_pictures_image_tokens(&c->pictures, v) : 0;
    int64_t *out = m3_recompute_scratch(m, c->T, sizeof *out);
    for (int64_t t = 0; out && t < c->T; t++) {
        out[t] = -1;
        if (sees && c->ids[t] == v->image_token) out[t] = image++;
        else if (sees && c->ids[t] == v->video_token) out[t] = video++;
    }
    return out;
}

/* The rows whose embedding or feature is known. */
static void scattered_rows(struct m3_recomputing *m)
{
    const struct m3_case *c = m->setting->the_case;
    const int64_t *feature = features(m);
    int64_t missing = -1;
    m->in[0].width = m->in[1].width = m->width;         /* copied later, by gather */
    for (int64_t t = 0; feature && t < c->T; t++) {
        int from = feature[t] >= 0;
        if (m3_tap_values_row(m->operands[from], from ? feature[t] : t) >= 0) m->numbers[m->rows++] = t;
        else if (missing < 0) missing = t;
    }
    if (!feature || m->rows > 0) return;
    int from = feature[missing] >= 0;
    m3_recompute_missing_rows(m, from, from ? feature[missing] : missing, from ? m->operands[1]->rows : c->T);
}

/* Makes the scattered rows operand 0. */
static int gather(struct m3_recomputing *m)
{
    const int64_t *feature = features(m), H = m->width;
    const size_t bytes = (size_t)H * sizeof(double);
    double *x = m3_recompute_scratch(m, m->count, sizeof *x), *off = NULL;
    for (int64_t r = 0; !m->status && r < m->rows; r++) {
        const int64_t t = m->numbers[r];
        const struct m3_tap_values *v = m->operands[feature[t] >= 0];
        const int64_t at = m3_tap_values_row(v, feature[t] >= 0 ? feature[t] : t) * H;
        memcpy(x + r * H, v->values + at, bytes);
        if (!v->off.error) continue;
        if (!off && (off = m3_recompute_scratch(m, 2 * m->count, sizeof *off)))
            memset(off, 0, 2 * (size_t)m->count * sizeof *off);
        if (!off) continue;
        memcpy(off + r * H, v->off.error + at, bytes);
        memcpy(off + m->count + r * H, v->off.variance + at, bytes);
    }
    m->in[0] = (struct m3_tap_values){ .values = x, .width = H };
    if (off) m->in[0].off = (struct m3_spread){ off, off + m->count };
    return m->status;
}

const struct m3_error_operator m3_error_scatter = {
    .name = "scatter",
    .sections = { "5.21 scatter" },
    .value = value,
    .propagate = propagate,
    .prepare = gather,
    .rows = scattered_rows,
    .copies = 1,
};
