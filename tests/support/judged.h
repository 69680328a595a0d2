/* A model and a case of golden/, and what blame says of dumps of them. */
#ifndef M3_TESTS_JUDGED_H
#define M3_TESTS_JUDGED_H

#include "files.h"
#include "mistaken.h"

#include "oracle/judge/blame/blame.h"

static struct m3_model *model;
static struct m3_profile *profile;
static struct m3_case the_case;
static struct m3_ctx ctx;
static struct m3_safetensors *file;
static struct m3_judgement result;
static struct m3_error error, notes;

static inline void good(int status)
{
    ck_assert_msg(status == 0, "status %d: %s", status, error.text ? error.text : "");
}

static inline void open_golden(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "golden/%s/model", name);
    good(m3_model_open(&model, path, &notes, &error));
    snprintf(path, sizeof path, "golden/%s/case.safetensors", name);
    good(m3_case_read(&the_case, path, &model->config, &error));
    good(m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS));
}

/* And removes the folder of the test. */
static inline void close_golden(void)
{
    m3_ctx_free(&ctx);
    m3_case_free(&the_case);
    m3_model_close(model);
    m3_error_free(&error);
    m3_error_free(&notes);
    remove_folder();
}

/* The numbers of a tensor of `file`, in a copy of its bytes. */
static inline float *tensor(unsigned char *bytes, const char *name)
{
    uint64_t header;
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    ck_assert_ptr_nonnull(t);
    return (float *)(void *)(bytes + ((const char *)t->data - (const char *)m3_safetensors_header(file, &header)));
}

/* Where the numbers of a tap stand in the file "right"; ids := the experts of layer 2. */
static inline size_t place_of(const char *name, int64_t *rows, int64_t *count, int32_t *ids)
{
    uint64_t header;
    good(m3_safetensors_open(&file, in_folder("right"), &error));
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    const struct m3_tensor *experts = m3_safetensors_find(file, "layers.2.moe.experts");
    ck_assert(t && experts);
    const size_t at = (size_t)((const char *)t->data - (const char *)m3_safetensors_header(file, &header));
    *rows = t->shape[0], *count = t->count;
    memcpy(ids, experts->data, (size_t)experts->count * sizeof *ids);
    m3_safetensors_close(file);
    file = NULL;
    return at;
}

/* An honest draw of the profile that skips no rounding: "right". */
static inline void draw_right(const char *name)
{
    struct m3_honest *drawn;
    good(m3_profile_open(&profile, name, &error));
    good(m3_honest_new(&drawn, model, &model->config.semantics, profile, NULL, the_case.T, &error));
    m3_honest_skip_nothing(drawn);
    good(honest_dump(in_folder("right"), NULL, drawn, 0, model, &the_case, &error));
    m3_honest_free(drawn);
}

/* The changed tap of "dump" has this verdict, and its note says so. */
static inline void judge_tap(const char *tap, enum m3_verdict verdict, const char *note)
{
    const struct m3_semantics semantics = model->config.semantics;
    const struct m3_blame_options options = { .names_mistakes = 1, .taps = tap, .is_alone = 1 };
    const struct m3_setting setting = {
        .model = model, .semantics = &semantics, .the_case = &the_case, .profile = profile, .ctx = &ctx
    };
    good(m3_safetensors_open(&file, in_folder("dump"), &error));
    good(m3_blame(&result, &setting, file, &options, &error));
    ck_assert_int_eq(result.count, 1);
    const struct m3_finding *f = &result.findings[0];
    ck_assert_msg(f->verdict == verdict, "%s: verdict %d, %s", tap, f->verdict, f->note);
    ck_assert_msg(strstr(f->note, note) != NULL, "%s: %s", tap, f->note);
    m3_judgement_free(&result);
    m3_safetensors_close(file);
    m3_profile_close(profile);
}

#endif
