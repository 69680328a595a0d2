/* The contents of a file of companions: its tensors and metadata are declared before the pass begins. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "io/open.h"
#include "oracle/error/intermediates.h"
#include "oracle/judge/companions/private/companions_write.h"

static int declare_as(struct m3_companions_writer *c, struct m3_watched *w, enum m3_companion_field field,
                      enum m3_dtype dtype, int rank, const int64_t *shape, struct m3_error *error)
{
    char name[128];
    if (m3_tap_name(name, sizeof name - 16, w->tap, w->layer)) return M3_INTERNAL;
    snprintf(name + strlen(name), 16, ".%s", m3_companion_names[field]);
    w->index[field] = m3_writer_declared(c->file);
    return m3_writer_tensor(c->file, name, dtype, rank, shape, error);
}

static int declare(struct m3_companions_writer *c, struct m3_watched *w, enum m3_companion_field field, int rank,
                   const int64_t *shape, struct m3_error *error)
{
    return declare_as(c, w, field, M3_F64, rank, shape, error);
}

static int declare_steps(struct m3_companions_writer *c, const struct m3_watched *w, struct m3_error *error)
{
    const int64_t values[] = { w->n, w->f };
    char name[128], text[32];
    int status = M3_OK;
    for (int i = 0; !status && i < 2; i++) {
        if (m3_tap_name(name, sizeof name - 16, w->tap, w->layer)) return M3_INTERNAL;
        snprintf(name + strlen(name), 16, i ? ".f" : ".n");
        snprintf(text, sizeof text, "%" PRId64, values[i]);
        status = m3_writer_metadata(c->file, name, text, error);
    }
    return status;
}

/* Declares bounds, and the gains that replace the weights. */
static int declare_floats(struct m3_companions_writer *c, struct m3_watched *w, struct m3_error *error)
{
    const struct m3_setting *s = &c->setting;
    const enum m3_operator op = m3_graph_node(s->model, s->semantics, w->tap, w->layer)->op;
    const struct m3_arithmetic how = m3_setting_arithmetic(s, 1);
    const struct m3_watched *each = m3_companions_find(c, M3_TAP_EXPERT_OUT, w->layer);
    const int knows_each = each && each->is_dumped;
    const int64_t width = m3_tap_width(s, w->tap, w->layer);
    int64_t shape[M3_MAX_RANK];
    const int rank = m3_dump_shape(shape, c->dump, w->tap, w->layer);
    m3_steps(&w->n, &w->f, s->model, s->semantics, w->tap, w->layer, &how);
    if (w->tap == M3_TAP_ROUTED && !knows_each) w->n = 0, w->f = 1;        /* the whole allowance */
    w->gain = m3_gain_kind_of(s, w->tap, w->layer, knows_each);

    int status = declare_steps(c, w, error);
    if (!status) status = declare(c, w, M3_COMPANION_BOUND, rank, shape, error);
    if (!status) status = declare(c, w, M3_COMPANION_WALK, rank, shape, error);
    if (!status && w->gain == M3_GAIN_ROWS) status = declare(c, w, M3_COMPANION_GAIN, 1, &width, error);
    if (!status && w->gain == M3_GAIN_PROBED) status = declare(c, w, M3_COMPANION_GAIN, rank, shape, error);
    if (!status && m3_has_intermediates(s, w->tap, w->layer))
        status = declare(c, w, M3_COMPANION_INTERMEDIATES, rank, shape, error);
    if (!status && w->index[M3_COMPANION_INTERMEDIATES] >= 0)
        status = declare(c, w, M3_COMPANION_INTERMEDIATES_WALK, rank, shape, error);
    const struct m3_weight *scale = m3_graph_weight(s->model, s->semantics, w->tap, w->layer, 0);
    const struct m3_weight *bias = m3_graph_weight(s->model, s->semantics, w->tap, w->layer, 1);
    const int is_norm = op == M3_OP_RMS_NORM || op == M3_OP_LAYER_NORM;
    if (!status && is_norm) status = declare(c, w, M3_COMPANION_WEIGHT, 1, &scale->cols, error);
    if (!status && bias && (is_norm || op == M3_OP_LINEAR))
        status = declare(c, w, M3_COMPANION_BIAS, 1, &bias->cols, error);
    return status;
}

/* Declares a margin for each decision, and the bias used to select experts. */
static int declare_choices(struct m3_companions_writer *c, struct m3_watched *w, struct m3_error *error)
{
    int64_t shape[M3_MAX_RANK];
    const int rank = m3_dump_shape(shape, c->dump, w->tap, w->layer);
    int status = declare(c, w, M3_COMPANION_MARGIN, rank - 1, shape, error);
    if (status || w->tap != M3_TAP_EXPERTS || c->file == m3_dump_writer(c->dump)) return status; /* a dump has it */
    return declare_as(c, w, M3_COMPANION_BIAS, M3_F32, 1, &c->setting.model->config.E, error);
}

/* One tensor of the case. `data` NULL: the case has none. */
struct case_tensor {
    const char *name;
    enum m3_dtype dtype;
    const void *data;
    int rank;
    int64_t shape[2];
};

enum { CASE_TENSORS = 5 };

static void case_tensors(struct case_tensor out[CASE_TENSORS], const struct m3_case *c)
{
    const struct m3_pictures *p = &c->pictures;
    const struct case_tensor all[CASE_TENSORS] = {
        { "case.input_ids", M3_I32, c->ids, 1, { c->T, 0 } },
        { "case.position_ids", M3_I64, c->positions, 1, { c->T, 0 } },
        { "case.attention_mask", M3_U8, c->seen, 1, { c->seen ? c->p0 + c->T : 0, 0 } },
        { "case.image_grid_thw", M3_I64, p->images > 0 ? p->grid : NULL, 2, { p->images, 3 } },
        { "case.video_grid_thw", M3_I64, p->videos > 0 ? p->grid + p->images : NULL, 2, { p->videos, 3 } },
    };
    memcpy(out, all, sizeof all);
}

static int declare_case(struct m3_companions_writer *c, struct m3_error *error)
{
    struct case_tensor all[CASE_TENSORS];
    char text[32];
    int status = M3_OK;
    case_tensors(all, c->the_case);
    c->first_case = m3_writer_declared(c->file);
    for (int i = 0; !status && i < CASE_TENSORS; i++)
        if (all[i].data)
            status = m3_writer_tensor(c->file, all[i].name, all[i].dtype, all[i].rank, all[i].shape, error);
    snprintf(text, sizeof text, "%" PRId64, c->the_case->p0);
    if (!status) status = m3_writer_metadata(c->file, "case.cached", text, error);
    snprintf(text, sizeof text, "%" PRId64, c->the_case->shift);
    return status || c->the_case->shift == 0 ? status : m3_writer_metadata(c->file, "case.shift", text, error);
}

/* The text of config.json, byte for byte. */
static int declare_config(struct m3_companions_writer *c, struct m3_error *error)
{
    char *text;
    size_t length;
    int status = m3_read_file(&text, &length, m3_checkpoint_config_path(c->setting.model->checkpoint),
                              M3_JSON_MOST_BYTES, error);
    if (!status) status = m3_writer_metadata(c->file, "config", text, error);
    free(text);
    return status;
}

int m3_companions_declare(struct m3_companions_writer *c, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; !status && i < c->count; i++) {
        struct m3_watched *w = &c->taps[i];
        if (!w->is_dumped || m3_tap_table[w->tap].kind == M3_KIND_COUNTS) continue;
        status =
            m3_tap_table[w->tap].kind == M3_KIND_REALS ? declare_floats(c, w, error) : declare_choices(c, w, error);
    }
    if (!status) status = declare_case(c, error);
    return status ? status : declare_config(c, error);
}

int m3_companions_write_case(struct m3_companions_writer *c, struct m3_error *error)
{
    struct case_tensor all[CASE_TENSORS];
    int64_t index = c->first_case;
    int status = M3_OK;
    case_tensors(all, c->the_case);
    for (int i = 0; !status && i < CASE_TENSORS; i++) {
        if (!all[i].data) continue;
        int64_t n = all[i].shape[0] * (all[i].rank == 2 ? all[i].shape[1] : 1);
        status = m3_writer_append(c->file, index++, all[i].data, (uint64_t)n * m3_dtype_bytes(all[i].dtype), error);
    }
    return status;
}
