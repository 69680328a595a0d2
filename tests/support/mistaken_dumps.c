/* mistaken_dumps MODEL CASE PROFILE FOLDER [HONEST]: a dump for every known mistake (ref/oracle/variants/mistakes.h)
 * that can show in this model and case, FOLDER/ID.safetensors, and one without a mistake, FOLDER/right.safetensors.
 * Each tap is stored as the profile says. And FOLDER/honest.N.safetensors, N < HONEST, of implementations drawn with
 * a seed that no envelope uses. For scripts/judging_from_little.py. */
#include <stdio.h>
#include <stdlib.h>

#include "model/files/dump.h"
#include "model/model.h"
#include "oracle/error/profile.h"
#include "oracle/error/recompute.h"
#include "oracle/variants/honest.h"
#include "oracle/variants/mistakes.h"

static int dump(const struct m3_mistake *mistake, const struct m3_model *model, const struct m3_case *c,
                const struct m3_profile *profile, const char *folder, struct m3_error *error)
{
    struct m3_mistaken_run *run;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, mistake ? mistake->id : "right");
    int status = m3_mistake_install(&run, mistake, model, &model->config.semantics, c, error);
    if (status) return status;
    m3_mistake_store(run, profile);
    status = m3_mistake_dump(run, path, NULL, 1, error);
    m3_mistake_remove(run);
    return status;
}

/* Passes taps on as a dump of the implementation would hold them. */
struct shown {
    struct m3_sink to;
    struct m3_setting setting;
    const struct m3_honest *honest;
};

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    const struct shown *s = self;
    return s->to.wants(s->to.self, tap, layer);
}

static int show(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
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

static int honest_dump(struct m3_honest *honest, int number, const struct m3_model *model, const struct m3_case *c,
                       const char *folder, struct m3_error *error)
{
    enum { SEED = 20261122 };
    const struct m3_semantics *semantics = &model->config.semantics;
    struct shown s = { .setting = { .model = model, .semantics = semantics, .the_case = c }, .honest = honest };
    const struct m3_sink sink = { &s, wants, show };
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
    char path[4096];
    snprintf(path, sizeof path, "%s/honest.%d.safetensors", folder, number);
    m3_honest_draw(honest, SEED, number);
    m3_honest_request(honest, &request);
    int status = m3_dump_open(&made, &s.to, path, NULL, model, m3_engine_f32(), c, &request, "an honest draw", error);
    if (status) return status;
    request.sink = &sink;
    status = m3_dump_begin(made, error);
    if (!status) status = m3_engine_f32()->forward(model, &request, error);
    if (!status) return m3_dump_commit(made, error);
    m3_dump_abandon(made);
    return status;
}

static int honest_dumps(int count, const struct m3_model *model, const struct m3_case *c,
                        const struct m3_profile *profile, const char *folder, struct m3_error *error)
{
    struct m3_honest *honest = NULL;
    if (count == 0) return M3_OK;
    int status = m3_honest_new(&honest, model, &model->config.semantics, profile, NULL, c->T, error);
    for (int i = 0; i < count && !status; i++) {
        status = honest_dump(honest, i, model, c, folder, error);
        printf("honest.%d\n", i);
    }
    m3_honest_free(honest);
    return status;
}

int main(int argc, char **argv)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_model *model = NULL;
    struct m3_profile *profile = NULL;
    struct m3_case c = { 0 };
    if (argc != 5 && argc != 6) return M3_USAGE;
    int status = m3_model_open(&model, argv[1], &notes, &error);
    if (!status) status = m3_case_read(&c, argv[2], &model->config, &error);
    if (!status) status = m3_profile_open(&profile, argv[3], &error);
    for (int i = -1; !status && i < m3_mistake_count(); i++) {
        const struct m3_mistake *mistake = i < 0 ? NULL : m3_mistake_at(i);
        struct m3_error why = { 0 };
        if (mistake && m3_mistake_missing(mistake, model, &model->config.semantics, &c)) continue;
        const int failed = dump(mistake, model, &c, profile, argv[4], &why);
        if (!mistake) status = failed;
        if (!failed) printf("%s\n", mistake ? mistake->id : "right");
        else fprintf(stderr, "%s: %s\n", mistake ? mistake->id : "right", why.text ? why.text : "");
        m3_error_free(&why);
    }
    if (!status) status = honest_dumps(argc > 5 ? atoi(argv[5]) : 0, model, &c, profile, argv[4], &error);
    if (status) fprintf(stderr, "%s\n", error.text ? error.text : "");
    m3_case_free(&c);
    m3_model_close(model);
    m3_profile_close(profile);
    m3_error_free(&error);
    m3_error_free(&notes);
    return status;
}
