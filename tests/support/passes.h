/* A whole pass of the float engine, with every tap kept in double: the candidates of the oracle's tests. */
#ifndef M3_TESTS_PASSES_H
#define M3_TESTS_PASSES_H

#include "bounds_twin.h"
#include "model/files/case.h"
#include "model/engine.h"
#include "oracle/error/recompute.h"

enum { PASS_TAPS = 1024 };

struct pass {
    struct m3_model *model;
    struct m3_semantics semantics;
    struct m3_case the_case;
    struct m3_ctx ctx;
    struct m3_setting setting;
    struct m3_error error, notes;
    struct m3_tap_values values[PASS_TAPS];      /* in the order of m3_trace_tap */
    struct {
        enum m3_tap tap;
        int64_t layer;
    } places[PASS_TAPS];                    /* of the values, listed once: a list of all taps is long to make */
    int64_t count;                          /* 0: not yet listed */
};

static inline int pass_wants(void *self, enum m3_tap tap, int64_t layer)
{
    (void)self, (void)tap, (void)layer;
    return 1;
}

/* The value of a tap; NULL if the pass does not have it. */
static inline struct m3_tap_values *pass_value(struct pass *p, enum m3_tap tap, int64_t layer)
{
    for (int64_t i = 0; p->count == i && m3_trace_tap(&p->setting, i, &p->places[i].tap, &p->places[i].layer); i++)
        p->count++;
    for (int64_t i = 0; i < p->count; i++)
        if (p->places[i].tap == tap && p->places[i].layer == layer) return &p->values[i];
    return NULL;
}

static inline int pass_keep(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                            struct m3_error *error)
{
    struct pass *p = self;
    struct m3_tap_values *v = pass_value(p, tap, layer);
    (void)error;
    ck_assert_msg(v != NULL, "%s of %d is not in the list", m3_tap_table[tap].name, (int)layer);
    v->tap = tap, v->layer = layer, v->width = m3_tap_width(&p->setting, tap, layer);
    ck_assert_int_eq(v->rows, row);
    v->rows += rows;
    if (m3_tap_table[tap].kind == M3_KIND_REALS) {
        double *all = realloc((void *)v->values, (size_t)(v->rows * v->width) * sizeof *all);
        widen(all + row * v->width, data, rows * v->width);
        v->values = all;
    } else {
        int32_t *all = realloc((void *)v->ids, (size_t)(v->rows * v->width) * sizeof *all);
        memcpy(all + row * v->width, data, (size_t)(rows * v->width) * sizeof *all);
        v->ids = all;
    }
    return 0;
}

static inline void pass_open(struct pass *p, const char *model_path, const char *case_path)
{
    memset(p, 0, sizeof *p);
    ck_assert_int_eq(m3_model_open(&p->model, model_path, &p->notes, &p->error), 0);
    ck_assert_int_eq(m3_case_read(&p->the_case, case_path, &p->model->config, &p->error), 0);
    ck_assert_int_eq(m3_ctx_init(&p->ctx, 2, M3_LINEAR_ORDERED), 0);
    p->semantics = p->model->config.semantics;
    p->setting =
        (struct m3_setting){ .model = p->model, .semantics = &p->semantics, .the_case = &p->the_case, .ctx = &p->ctx };
}

/* Runs the pass in the reading of p->semantics; `force` may be NULL. */
static inline void pass_forced(struct pass *p, enum m3_linear body, const struct m3_force *force)
{
    const struct m3_case *c = &p->the_case;
    struct m3_sink sink = { .self = p, .wants = pass_wants, .write = pass_keep };
    struct m3_request request = { .ids = c->ids,
                                  .positions = c->positions,
                                  .T = c->T,
                                  .seen = c->seen,
                                  .end_layer = p->model->config.layers,
                                  .semantics = &p->semantics,
                                  .linear = body,
                                  .threads = 2,
                                  .sink = &sink,
                                  .pictures = c->pictures.P ? &c->pictures : NULL,
                                  .force = force };
    ck_assert_int_eq(m3_engine_f32()->forward(p->model, &request, &p->error), 0);
    enum m3_tap tap;
    int64_t layer;
    for (int64_t i = 0; m3_trace_tap(&p->setting, i, &tap, &layer); i++)
        ck_assert_msg(p->values[i].rows == m3_tap_rows(&p->setting, tap, layer), "%s of %d was not shown",
                      m3_tap_table[tap].name, (int)layer);
}

static inline void pass_forward(struct pass *p, enum m3_linear body) { pass_forced(p, body, NULL); }

static inline void pass_run(struct pass *p, const char *model_path, const char *case_path, enum m3_linear body)
{
    pass_open(p, model_path, case_path);
    pass_forward(p, body);
}

static inline void pass_operands(struct pass *p, const struct m3_tap_values *operands[M3_OPERANDS], enum m3_tap tap,
                                 int64_t layer)
{
    enum m3_tap other;
    int64_t at;
    for (int i = 0; i < M3_OPERANDS; i++)
        if (m3_graph_operand(&other, &at, p->model, &p->semantics, tap, layer, i) == 0)
            operands[i] = pass_value(p, other, at);
}

static inline struct m3_tier_result judge_made(const struct m3_recomputed *made, const double *got)
{
    const struct m3_two_sides tap = {
        .reference = made->y.values,
        .candidate = got,
        .bound = made->bound,
        .walk = made->walk,
        .suspect = made->suspect,
        .extra = made->y.off.error,
        .extra_variance = made->y.off.variance,
        .count = made->y.rows * made->y.width,
        .n = made->n,
        .f = made->f,
        .u = 0x1p-24,
        .stored = M3_F32,
    };
    return m3_verdict_of(&tap);
}

static inline void pass_end(struct pass *p)
{
    for (int i = 0; i < PASS_TAPS; i++) free(p->values[i].data);
    m3_ctx_free(&p->ctx);
    m3_case_free(&p->the_case);
    m3_model_close(p->model);
    m3_error_free(&p->notes);
    m3_error_free(&p->error);
}

#endif
