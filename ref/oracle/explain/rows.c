#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/explain/private/explaining.h"

int m3_explain_patch(struct m3_explaining *e, struct m3_patch *patch, int64_t row)
{
    const struct m3_pictures *pictures = &e->how->the_case->pictures;
    const size_t P = (size_t)pictures->P;
    int64_t *places = malloc(P * 4 * sizeof *places), *ends = places ? places + 3 * P : NULL;
    if (!places) return e->steps->status = m3_fail_memory(e->error, "explain", P * 4 * sizeof *places);
    const int64_t segments =
        m3_pictures_segments(ends, places, pictures, &e->config->vision, e->how->semantics->vision_boundary);
    memcpy(patch->place, places + 3 * row, sizeof patch->place);
    patch->first = 0;
    int64_t s = 0, i = 0, before = 0;
    for (; s < segments - 1 && ends[s] <= row; s++) patch->first = ends[s];
    patch->end = ends[s];
    free(places);
    for (; i < pictures->images + pictures->videos - 1; i++) {
        const int64_t patches = pictures->grid[i][0] * pictures->grid[i][1] * pictures->grid[i][2];
        if (row < before + patches) break;
        before += patches;
    }
    patch->kind = i < pictures->images ? "image" : "video";
    patch->picture = i < pictures->images ? i : i - pictures->images;
    return M3_OK;
}

int m3_explain_embed(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const struct m3_weight *w = m3_explain_weight(e, 0);
    const int32_t id = e->how->the_case->ids[e->row];
    char name[200], from[256];
    m3_explain_weight_name(e, name, sizeof name, w);
    snprintf(from, sizeof from, "%s, row %d, %s", name, id, m3_dtype_name(w->dtype));
    m3_explain_equation(e, "embed");
    m3_given_number(s, M3_STEP_INT, "ids[t]", "the token's id", id);
    const int row = m3_given_row(s, "w[ids[t]]", from, w, id);
    const int at = m3_given_number(s, M3_STEP_INT, "i", "the channel", (double)e->channel);
    const struct m3_stored stored = m3_weight_stored(w, id, e->channel);
    m3_explain_note(e, "The element is stored as %s %0*" PRIx64 ".", m3_dtype_name(w->dtype),
                    2 * (int)m3_dtype_bytes(w->dtype), stored.code);
    return m3_step(s, M3_BY_PICK, M3_STEP_F32, "y", "element i of this row", row, at);
}

/* The row of the pictures' features that a token takes; -1: it keeps its embedding. */
static int64_t feature(const struct m3_explaining *e)
{
    const struct m3_case *c = e->how->the_case;
    const struct m3_vision_config *v = &e->config->vision;
    int64_t image = 0, video = c->pictures.P > 0 ? m3_pictures_image_tokens(&c->pictures, v) : 0;
    if (c->pictures.P == 0) return -1;
    for (int64_t t = 0; t < e->row; t++) {
        image += c->ids[t] == v->image_token;
        video += c->ids[t] == v->video_token;
    }
    return c->ids[e->row] == v->image_token ? image : c->ids[e->row] == v->video_token ? video : -1;
}

/* One element of a row, which is copied. */
static int copied(struct m3_explaining *e, enum m3_tap tap, int64_t layer, int64_t row, int64_t channel)
{
    char from[112];
    const float *x = m3_kept_row(e, tap, layer, row);
    m3_explain_source(e, from, sizeof from, tap, layer, row);
    const int all = m3_given_floats(e->steps, "x", from, x, m3_tap_width(&e->setting, tap, layer));
    const int at = m3_given_number(e->steps, M3_STEP_INT, "i", "the channel", (double)channel);
    return m3_step(e->steps, M3_BY_PICK, M3_STEP_F32, "y", "element i of this row", all, at);
}

int m3_explain_scatter(struct m3_explaining *e)
{
    const int64_t k = feature(e);
    m3_explain_equation(e, "scatter");
    if (k < 0) {
        m3_explain_note(e, "The token is not a placeholder of a picture: it keeps its embedding.");
        return copied(e, M3_TAP_EMBED, -1, e->row, e->channel);
    }
    m3_explain_note(e, "The token, id %d, is a placeholder: it takes row %" PRId64 " of projector.out.",
                    e->how->the_case->ids[e->row], k);
    return copied(e, M3_TAP_PROJECTOR_OUT, -1, k, e->channel);
}

int m3_explain_copy(struct m3_explaining *e)
{
    const struct m3_node *from = e->node->inputs[0];
    m3_explain_equation(e, "copy");
    if (e->tap != M3_TAP_MERGED) return copied(e, from->tap, from->layer, e->row, e->channel);
    const int64_t merge = e->config->vision.spatial_merge * e->config->vision.spatial_merge, H = e->config->H;
    const int64_t part = e->channel / H;
    m3_explain_note(e,
                    "A merged row is the rows of %" PRId64 " neighbouring patches side by side: this channel is "
                    "channel %" PRId64 " of patch %" PRId64 ".",
                    merge, e->channel % H, e->row * merge + part);
    return copied(e, from->tap, from->layer, e->row * merge + part, e->channel % H);
}

int m3_explain_input(struct m3_explaining *e)
{
    const struct m3_vision_config *v = &e->config->vision;
    struct m3_patch patch;
    m3_explain_equation(e, "input");
    if (m3_explain_patch(e, &patch, e->row)) return -1;
    const int64_t size = v->patch * v->patch, c = e->channel;
    m3_explain_note(e,
                    "The patch is at time %" PRId64 ", row %" PRId64 ", column %" PRId64 " of %s %" PRId64
                    "; the element is colour channel %" PRId64 ", frame %" PRId64 ", row %" PRId64 ", column %" PRId64
                    " within the patch.",
                    patch.place[0], patch.place[1], patch.place[2], patch.kind, patch.picture,
                    c / size / v->temporal_patch, c / size % v->temporal_patch, c % size / v->patch, c % v->patch);
    const float *x = m3_kept_row(e, e->tap, e->layer, e->row);
    return m3_given_floats(e->steps, "y", "the pixels of the case", x ? x + e->channel : NULL, 1);
}

int m3_explain_counts(struct m3_explaining *e)
{
    static const char *const what[] = { "steps of time", "rows of patches", "columns of patches" };
    m3_explain_equation(e, "input");
    const int32_t *x = m3_kept_row(e, e->tap, e->layer, e->row);
    return m3_given_ints(e->steps, what[e->channel % 3], "the grid of the case", x ? x + e->channel : NULL, 1);
}

int m3_explain_add(struct m3_explaining *e)
{
    m3_explain_equation(e, "add");
    const int a = m3_given_operand(e, "a", 0, e->channel, 1), b = m3_given_operand(e, "b", 1, e->channel, 1);
    return m3_step(e->steps, M3_BY_ADD, M3_STEP_F32, "y", "a + b", a, b);
}
