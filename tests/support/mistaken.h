/* Dumps of runs with a mistake, and of honest implementations, in the arithmetic of a profile: candidates for tests and
 * scripts. */
#ifndef M3_TESTS_MISTAKEN_H
#define M3_TESTS_MISTAKEN_H

#include <stdio.h>
#include <stdlib.h>

#include "model/files/dump.h"
#include "model/model.h"
#include "oracle/error/profile.h"
#include "oracle/error/recompute.h"
#include "oracle/variants/honest.h"
#include "oracle/variants/mistakes.h"

/* The taps that match, NULL: all; mistake NULL: a right run. */
static inline int mistaken_dump(const char *path, const char *taps, const struct m3_mistake *mistake,
                                const struct m3_model *model, const struct m3_case *c, const struct m3_profile *profile,
                                struct m3_error *error)
{
    struct m3_mistaken_run *run;
    int status = m3_mistake_install(&run, mistake, model, &model->config.semantics, c, error);
    if (status) return status;
    m3_mistake_store(run, profile);
    status = m3_mistake_dump(run, path, taps, 1, error);
    m3_mistake_remove(run);
    return status;
}

/* Passes taps on as a dump of the implementation would hold them. */
struct shown {
    struct m3_sink to;
    struct m3_setting setting;
    const struct m3_honest *honest;
};

static inline int shown_wants(void *self, enum m3_tap tap, int64_t layer)
{
    const struct shown *s = self;
    return s->to.wants(s->to.self, tap, layer);
}

static inline int shown_write(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                              struct m3_error *error)
{
    const struct shown *s = self;
    const int64_t width = m3_tap_width(&s->setting, tap, layer);
    char name[96];
    if (m3_tap_table[tap].kind != M3_KIND_REALS || m3_tap_name(name, sizeof name, tap, layer) != 0)
        return s->to.write(s->to.self, tap, layer, data, row, rows, error);
    float *all = malloc((size_t)(rows * width) * sizeof *all + 1);
    if (!all) return m3_fail_memory(error, name, (size_t)(rows * width) * sizeof *all);
    m3_honest_show(s->honest, name, all, data, row * width, rows * width);
    const int status = s->to.write(s->to.self, tap, layer, all, row, rows, error);
    free(all);
    return status;
}

/* Of the implementation with that number, drawn with a seed that no envelope uses. */
static inline int honest_dump(const char *path, const char *taps, struct m3_honest *honest, int number,
                              const struct m3_model *model, const struct m3_case *c, struct m3_error *error)
{
    enum { SEED = 20261122 };
    const struct m3_semantics *semantics = &model->config.semantics;
    struct shown s = { .setting = { .model = model, .semantics = semantics, .the_case = c }, .honest = honest };
    const struct m3_sink sink = { .self = &s, .wants = shown_wants, .write = shown_write };
    struct m3_request request = { .ids = c->ids,
                                  .positions = c->positions,
                                  .T = c->T,
                                  .seen = c->seen,
                                  .pictures = c->pictures.P ? &c->pictures : NULL,
                                  .end_layer = model->config.layers,
                                  .semantics = semantics,
                                  .linear = M3_LINEAR_BLAS,
                                  .threads = 1 };
    struct m3_dump *made;
    m3_honest_draw(honest, SEED, number);
    m3_honest_request(honest, &request);
    int status = m3_dump_open(&made, &s.to, path, taps, model, m3_engine_f32(), c, &request, "an honest draw", error);
    if (status) return status;
    request.sink = &sink;
    status = m3_dump_begin(made, error);
    if (!status) status = m3_engine_f32()->forward(model, &request, error);
    if (!status) return m3_dump_commit(made, error);
    m3_dump_abandon(made);
    return status;
}

#endif
