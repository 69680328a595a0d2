#include <stdlib.h>
#include <string.h>

#include "oracle/explain/private/explaining.h"

/* ---- which rows of which taps are kept */

static size_t size_of(enum m3_tap tap) { return m3_tap_number_bytes(tap, sizeof(float)); }

static struct m3_tap_values *find(struct m3_explaining *e, enum m3_tap tap, int64_t layer)
{
    for (int i = 0; i < e->kept_count; i++)
        if (e->kept[i].tap == tap && e->kept[i].layer == layer) return &e->kept[i];
    return NULL;
}

static int keep(struct m3_explaining *e, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows)
{
    if (find(e, tap, layer)) return M3_OK;
    struct m3_tap_values *kept = &e->kept[e->kept_count];
    *kept = (struct m3_tap_values){ .tap = tap, .layer = layer, .first = first, .rows = rows };
    kept->width = m3_tap_width(&e->setting, tap, layer);
    kept->data = calloc((size_t)(rows * kept->width) + 1, size_of(tap));
    if (!kept->data) return m3_fail_memory(e->error, m3_tap_table[tap].name, (size_t)(rows * kept->width));
    e->kept_count++;
    return M3_OK;
}

int m3_explain_operand(const struct m3_explaining *e, int i, enum m3_tap *tap, int64_t *layer, int64_t *row)
{
    if (m3_setting_operand(tap, layer, &e->setting, e->tap, e->layer, i)) return -1;
    *row = e->row + (i == 0 ? e->node->shift : 0);
    return 0;
}

/* Keys and values are read up to the row's own place, those of pictures all. */
static int keep_operand(struct m3_explaining *e, int i)
{
    const int64_t merge = e->config->vision.spatial_merge * e->config->vision.spatial_merge;
    enum m3_tap tap;
    int64_t layer, row;
    if (m3_explain_operand(e, i, &tap, &layer, &row)) return M3_OK;
    const int64_t all = m3_tap_rows(&e->setting, tap, layer);
    switch (e->node->op) {
    case M3_OP_ATTEND:
        if (i == 1 || i == 2) return keep(e, tap, layer, 0, row + 1);
        break;
    case M3_OP_BLOCK_SCORES:
        if (i == 1) return keep(e, tap, layer, 0, row + 1);
        break;
    case M3_OP_ATTEND_SEGMENTS:
        if (i > 0) return keep(e, tap, layer, 0, all);
        break;
    case M3_OP_SCATTER: return keep(e, tap, layer, 0, all);
    case M3_OP_COPY:
        if (e->tap == M3_TAP_MERGED) return keep(e, tap, layer, row * merge, merge);
        break;
    default: break;
    }
    return keep(e, tap, layer, row, 1);
}

/* The main model's logits for the token that a module predicts at the row. */
static int keep_draft(struct m3_explaining *e)
{
    if (e->tap != M3_TAP_MTP_LOGITS) return M3_OK;
    return keep(e, M3_TAP_LOGITS, -1, e->row + m3_mtp_module_of(e->layer) + 1, 1);
}

/* ---- the pass */

static int wants(void *self, enum m3_tap tap, int64_t layer) { return find(self, tap, layer) != NULL; }

static int take(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                struct m3_error *error)
{
    struct m3_explaining *e = self;
    struct m3_tap_values *kept = find(e, tap, layer);
    const size_t bytes = (size_t)kept->width * size_of(tap);
    (void)error;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t to = row + r - kept->first;
        if (to < 0 || to >= kept->rows) continue;
        memcpy((char *)kept->data + (size_t)to * bytes, (const char *)data + (size_t)r * bytes, bytes);
    }
    return M3_OK;
}

/* A call whose rows begin at one row of the case. */
static struct m3_request request_from(const struct m3_explaining *e, int64_t row)
{
    struct m3_request request = m3_case_request(e->how->the_case);
    request.ids += row;
    request.positions += row;
    request.T -= row;
    request.semantics = e->how->semantics;
    request.end_layer = m3_explain_end_layer(e->config, e->tap, e->layer);
    request.linear = M3_LINEAR_ORDERED;
    request.threads = e->how->threads;
    return request;
}

static int run(struct m3_explaining *e)
{
    const struct m3_sink sink = { .self = e, .wants = wants, .write = take };
    struct m3_request request = request_from(e, 0);
    request.sink = &sink;
    request.progress = e->how->progress;
    return m3_engine_f32()->forward(e->how->model, &request, e->error);
}

/* ---- what an operator reads is not always the tap: noise of training, the embedding at position 0 of a module */

static int add_noise(struct m3_explaining *e)
{
    struct m3_tap_values *kept = find(e, M3_TAP_MLP_NORM, e->layer);
    const int reads = e->node->is_noisy || (e->node->op == M3_OP_ROUTED && e->node->inputs[0]->is_noisy);
    if (e->how->semantics->jitter == 0 || !reads || !kept) return M3_OK;
    const struct m3_request how = request_from(e, e->row);
    float *y = malloc((size_t)kept->width * sizeof *y);
    if (!y) return m3_fail_memory(e->error, "explain", (size_t)kept->width * sizeof *y);
    const struct m3_tap_request r = { .how = &how,
                                      .step = M3_STEP_JITTER,
                                      .tap = M3_TAP_ROUTER_LOGITS,
                                      .layer = e->layer,
                                      .in = { kept->data },
                                      .p0 = e->p0,
                                      .rows = 1,
                                      .y = y };
    const int status = m3_engine_f32()->tap(e->how->model, &r, e->error);
    memcpy(kept->data, y, (size_t)kept->width * sizeof *y);
    free(y);
    e->changed = " with the noise of jitter";
    return status;
}

static void zero_position_0(struct m3_explaining *e)
{
    enum m3_tap tap;
    int64_t layer, row;
    if (e->how->semantics->mtp_zero_position0 != M3_MTP_ZERO_POSITION0) return;
    if (m3_tap_table[e->tap].where != M3_WHERE_EVERY_MTP_MODULE || e->how->the_case->positions[e->row] != 0) return;
    if (m3_explain_operand(e, 0, &tap, &layer, &row) || (tap != M3_TAP_EMBED && tap != M3_TAP_FUSED)) return;
    struct m3_tap_values *kept = find(e, tap, layer);
    memset(kept->data, 0, (size_t)kept->width * sizeof(float));
    e->changed = ", which mtp_zero_position0 replaces by zeros";
}

int m3_explain_pass(struct m3_explaining *e)
{
    const enum m3_tap *extra = m3_explainers[e->node->op].extra;
    int status = keep(e, e->tap, e->layer, e->row, 1);
    for (int i = 0; !status && i < M3_OPERANDS; i++) status = keep_operand(e, i);
    for (int i = 0; !status && i < 3 && extra[i]; i++) status = keep(e, extra[i], e->layer, e->row, 1);
    if (!status) status = keep_draft(e);
    if (!status) status = run(e);
    if (!status) status = add_noise(e);
    if (!status) zero_position_0(e);
    return status;
}

const void *m3_kept_row(struct m3_explaining *e, enum m3_tap tap, int64_t layer, int64_t row)
{
    struct m3_tap_values *kept = find(e, tap, layer);
    if (kept && row >= kept->first && row < kept->first + kept->rows)
        return (const char *)kept->data + (size_t)((row - kept->first) * kept->width) * size_of(tap);
    m3_explain_failed(e, "an operand was not kept");
    return NULL;
}

/* ---- the plain operator on the one row */

static void inputs(struct m3_explaining *e, struct m3_tap_request *r)
{
    const struct m3_node *call = m3_graph_node(e->how->model, e->how->semantics, r->tap, r->layer), *input;
    for (int i = 0; i < M3_TAP_INPUTS && (input = m3_call_input(call, i)) != NULL; i++) {
        const int64_t row = e->row + (i == 0 ? call->shift : 0);
        const struct m3_tap_values *kept = find(e, input->tap, input->layer);
        if (!m3_case_makes(e->how->the_case, input->tap)) continue;
        r->in[i] = m3_kept_row(e, input->tap, input->layer, kept && kept->first < row ? kept->first : row);
    }
}

/* Attention of one patch is that of the last row over the keys of its segment. */
static int segment(struct m3_explaining *e, const struct m3_tap_request *r)
{
    struct m3_patch patch;
    const struct m3_vision_config *v = &e->config->vision;
    int status = m3_explain_patch(e, &patch, e->row);
    if (status) return status;
    const int64_t before = patch.first * v->W;
    const struct m3_attend d = { .T = 1, .p0 = patch.end - patch.first - 1, .Q = v->A, .G = v->A, .D = v->U };
    return m3_engine_f32()->plain->attend_full(&e->ctx, r->y, NULL, r->in[0], (const float *)r->in[1] + before,
                                               (const float *)r->in[2] + before, &d);
}

/* The table of the row's angles comes first: a rotated tap of the tower would else take those of patch 0. */
static int rotate(struct m3_explaining *e, struct m3_tap_request *r)
{
    struct m3_patch patch;
    const int64_t R = e->config->vision.U / 6 * 6;
    float *angles = calloc((size_t)R, sizeof *angles);
    if (!angles) return m3_fail_memory(e->error, "explain", (size_t)R * sizeof *angles);
    int status = m3_explain_patch(e, &patch, e->row);
    struct m3_tap_request table = *r;
    table.step = M3_STEP_ANGLES;
    table.in[0] = patch.place;
    table.y = angles;
    table.second = angles + R / 2;
    if (!status) status = m3_engine_f32()->tap(e->how->model, &table, e->error);
    r->in[1] = angles;
    r->in[2] = angles + R / 2;
    if (!status) status = m3_engine_f32()->tap(e->how->model, r, e->error);
    free(angles);
    return status;
}

static int call(struct m3_explaining *e, struct m3_tap_request *r)
{
    switch (e->node->op) {
    case M3_OP_ATTEND_SEGMENTS: return segment(e, r);
    case M3_OP_ROPE_3D: return rotate(e, r);
    default: break;
    }
    return m3_engine_f32()->tap(e->how->model, r, e->error);
}

int m3_explain_one_row(struct m3_explaining *e)
{
    const struct m3_replacement plain = { m3_engine_f32()->plain, NULL };
    const int is_whole = e->node->op == M3_OP_SCATTER;         /* features go to rows by their number */
    const int is_of_text = m3_tap_table[e->tap].shape[0] == 'T' && !is_whole;
    const int64_t rows = is_whole ? e->how->the_case->T : 1;
    struct m3_request how = request_from(e, is_of_text ? e->row : 0);
    const struct m3_tap_values *own = &e->kept[0];
    if (e->node->op == M3_OP_NONE || e->node->op == M3_OP_INPUT || e->node->op == M3_OP_COPY) return M3_OK;
    how.replacement = &plain;
    const enum m3_tap tap = m3_computed_with(e->tap), second = m3_computed_beside(tap);
    const int64_t width = m3_tap_width(&e->setting, tap, e->layer);
    const int64_t beside = second == M3_TAPS ? 1 : m3_tap_width(&e->setting, second, e->layer);
    void *y = calloc((size_t)(rows * width), sizeof(float)), *z = calloc((size_t)(rows * beside), sizeof(float));
    struct m3_tap_request r = { .how = &how,
                                .tap = tap,
                                .layer = e->layer,
                                .rows = rows,
                                .p0 = is_whole ? 0 : e->p0,
                                .places = e->how->the_case->T,
                                .y = y,
                                .second = z };
    int status = y && z ? M3_OK : m3_fail_memory(e->error, "explain", (size_t)(rows * width) * sizeof(float));
    if (!status) inputs(e, &r);
    if (!status) status = e->steps->status;
    if (!status) status = call(e, &r);
    const char *got = (const char *)(tap == e->tap ? y : z) + (is_whole ? (size_t)(e->row * width) * sizeof(float) : 0);
    if (!status && memcmp(got, own->data, (size_t)own->width * sizeof(float)) != 0)
        status = m3_explain_failed(e, "the plain operator on one row gives other bits than the pass");
    free(y);
    free(z);
    return status;
}
