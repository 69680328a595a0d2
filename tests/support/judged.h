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

#endif
