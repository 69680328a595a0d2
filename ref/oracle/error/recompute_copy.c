#include "oracle/error/private/recompute.h"

#include <string.h>

void m3_recompute_grid(struct m3_recomputing *m)
{
    const struct m3_pictures *p = &m->setting->the_case->pictures;
    for (int64_t i = 0; i < m->count; i++) m->out->ids[i] = (int32_t)p->grid[m->numbers[i / 3]][i % 3];
}

void m3_recompute_pixels(struct m3_recomputing *m)
{
    const float *pixels = m->setting->the_case->pictures.pixels;
    for (int64_t i = 0; i < m->count; i++)
        m->out->y[i] = (double)pixels[m->numbers[i / m->width] * m->width + i % m->width];
    m3_recompute_check(m, m3_bound_copy(m->setting->ctx, &m->bound, m->count));
}

void m3_recompute_embed(struct m3_recomputing *m)
{
    const int32_t *ids = m->setting->the_case->ids;
    const struct m3_weight *w = m3_recompute_weight(m, 0);
    m3_recompute_check(m, m->ops->embed(m->setting->ctx, m->out->y, ids, w, m->rows));
    m3_recompute_check(m, m3_bound_embed(m->setting->ctx, &m->bound, ids, w, m->rows, &m->how));
}

void m3_recompute_copy(struct m3_recomputing *m)
{
    const struct m3_given *x = &m->in[0];
    const size_t bytes = (size_t)m->count * sizeof(double);
    struct m3_spread *extra = m3_is_off(x) ? m3_recompute_extra(m) : NULL;
    memcpy(m->out->y, x->x, bytes);
    if (extra) memcpy(extra->error, x->off.error, bytes);
    if (extra) memcpy(extra->variance, x->off.variance, bytes);
    m3_recompute_check(m, m3_bound_copy(m->setting->ctx, &m->bound, m->count));
}

/* Which row of the pictures' features goes to each token; -1: the embedding stays. Without pictures a placeholder is a
 * token like any other. */
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

void m3_scatter_rows(struct m3_recomputing *m)
{
    const struct m3_case *c = m->setting->the_case;
    const int64_t *feature = features(m);
    int64_t missing = -1;
    for (int64_t t = 0; feature && t < c->T; t++) {
        int from = feature[t] >= 0;
        if (m3_value_row(m->operands[from], from ? feature[t] : t) >= 0) m->numbers[m->rows++] = t;
        else if (missing < 0) missing = t;
    }
    if (!feature || m->rows > 0) return;
    int from = feature[missing] >= 0;
    m3_recompute_missing_rows(m, from, from ? feature[missing] : missing, from ? m->operands[1]->rows : c->T);
}

void m3_recompute_scatter(struct m3_recomputing *m)
{
    const int64_t *feature = features(m), H = m->width;
    const size_t bytes = (size_t)H * sizeof(double);
    for (int64_t r = 0; feature && r < m->rows; r++) {
        const int64_t t = m->numbers[r];
        const struct m3_value *v = m->operands[feature[t] >= 0];
        const int64_t at = m3_value_row(v, feature[t] >= 0 ? feature[t] : t) * H;
        struct m3_spread *extra = v->off.error ? m3_recompute_extra(m) : NULL;
        memcpy(m->out->y + r * H, v->values + at, bytes);
        if (extra) memcpy(extra->error + r * H, v->off.error + at, bytes);
        if (extra) memcpy(extra->variance + r * H, v->off.variance + at, bytes);
    }
    m3_recompute_check(m, m3_bound_copy(m->setting->ctx, &m->bound, m->count));
}
