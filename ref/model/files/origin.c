#include "model/files/origin.h"

#include <stdlib.h>
#include <string.h>

#include "io/checkpoint.h"
#include "io/fingerprint.h"

static const char *const keys[] = { "model_sha256", "case_sha256", "semantics" };
static const char weights_key[] = "weights_sha256", config_key[] = "config_sha256";

struct m3_origin m3_origin_of_file(const struct m3_safetensors *file)
{
    return (struct m3_origin){ .model_sha256 = m3_safetensors_metadata(file, keys[0]),
                               .case_sha256 = m3_safetensors_metadata(file, keys[1]),
                               .config_sha256 = m3_safetensors_metadata(file, config_key),
                               .weights_sha256 = m3_safetensors_metadata(file, weights_key),
                               .semantics = m3_safetensors_metadata(file, keys[2]) };
}

int m3_origin_of_model(struct m3_origin *origin, const struct m3_model *model, const struct m3_case *the_case,
                       struct m3_error *error)
{
    *origin = (struct m3_origin){ .model_sha256 = origin->hash,
                                  .config_sha256 = origin->config,
                                  .case_sha256 = the_case->sha256,
                                  .weights = model->checkpoint };
    int status = m3_checkpoint_sha256(model->checkpoint, origin->hash, error);
    if (!status) status = m3_checkpoint_config_sha256(model->checkpoint, origin->config, error);
    if (!origin->hash[0]) origin->model_sha256 = NULL;
    return status;
}

static void note_absent(struct m3_error *notes, const struct m3_safetensors *dump, const struct m3_origin_use *use,
                        const char *key, const char *got, const char *want)
{
    if (notes == NULL) return;
    if (use->verdict == NULL) {
        m3_fail(notes, M3_OK, "%s: %s is missing: not checked", m3_safetensors_path(dump), key);
        return;
    }
    m3_fail(notes, M3_OK, "%s is missing in the %s: not checked", key,
            want != NULL  ? "candidate"
            : got != NULL ? "reference"
                          : "reference and the candidate");
}

/* *difference := how the weights differ, to be freed; NULL: they agree, or one side states none. */
static int compare_weights(char **difference, const struct m3_safetensors *file, const struct m3_origin *expected,
                           struct m3_error *error)
{
    const char *got = m3_safetensors_metadata(file, weights_key), *want = expected->weights_sha256;
    int status = M3_OK;
    *difference = NULL;
    if (got != NULL && want == NULL && expected->weights != NULL)
        status = m3_checkpoint_weights_sha256(expected->weights, &want, error);
    if (status != M3_OK || got == NULL || want == NULL) return status;
    return m3_fingerprint_compare(difference, got, want, error);
}

int m3_origin_check_weights(const struct m3_safetensors *file, const struct m3_origin *expected, enum m3_status status,
                            struct m3_error *error)
{
    char *difference;
    int failure = compare_weights(&difference, file, expected, error);
    if (failure == M3_OK && difference != NULL)
        failure = m3_fail(error, status, "%s: %s: %s", m3_safetensors_path(file), weights_key, difference);
    free(difference);
    return failure;
}

/* As m3_origin_check, of the weights. */
static int check_weights(const struct m3_safetensors *dump, const struct m3_origin *expected,
                         const struct m3_origin_use *use, struct m3_error *notes, struct m3_error *error)
{
    char *difference;
    int status = compare_weights(&difference, dump, expected, error);
    if (status == M3_OK && difference != NULL && use->verdict != NULL)
        m3_fail(notes, M3_OK, "%s differs: %s%s%s%s", weights_key, difference, use->force ? "; " : "",
                use->force ? use->verdict : "", use->force ? " by force" : "");
    if (status == M3_OK && difference != NULL && !use->force)
        status = m3_fail(error, use->status, "%s: %s: %s", m3_safetensors_path(dump), weights_key, difference);
    free(difference);
    return status;
}

static int compare_key(const struct m3_safetensors *dump, const char *key, const char *want,
                       const struct m3_origin_use *use, struct m3_error *notes, struct m3_error *error)
{
    const char *got = m3_safetensors_metadata(dump, key);
    if (want == NULL || got == NULL) {
        note_absent(notes, dump, use, key, got, want);
        return M3_OK;
    }
    if (strcmp(want, got) == 0) return M3_OK;
    if (use->verdict != NULL)
        m3_fail(notes, M3_OK, "%s differs: got %s, expected %s%s%s%s", key, got, want, use->force ? "; " : "",
                use->force ? use->verdict : "", use->force ? " by force" : "");
    if (use->force) return M3_OK;
    return m3_fail(error, use->status, "%s: %s: got %s, expected %s", m3_safetensors_path(dump), key, got, want);
}

int m3_origin_check(const struct m3_safetensors *dump, const struct m3_origin *expected,
                    const struct m3_origin_use *use, struct m3_error *notes, struct m3_error *error)
{
    const char *const wanted[] = { expected->model_sha256, expected->case_sha256 };
    const char *config = m3_safetensors_metadata(dump, config_key);
    int status = M3_OK;
    for (int i = 0; i < 2 && (status == M3_OK || use->verdict != NULL); i++) {
        const int why = compare_key(dump, keys[i], wanted[i], use, notes, error);
        if (status == M3_OK) status = why;
    }
    const int is_model_known = expected->model_sha256 != NULL && m3_safetensors_metadata(dump, keys[0]) != NULL;
    if (status == M3_OK && !is_model_known && config != NULL && expected->config_sha256 != NULL)
        status = compare_key(dump, config_key, expected->config_sha256, use, notes, error);
    return status != M3_OK ? status : check_weights(dump, expected, use, notes, error);
}

int m3_origin_require(const struct m3_safetensors *file, const char *key, const char *expected, struct m3_error *error)
{
    const char *got = m3_safetensors_metadata(file, key);
    if (got != NULL && strcmp(got, expected) == 0) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected %s", m3_safetensors_path(file), key,
                   got != NULL ? got : "none", expected);
}

int m3_origin_same_run(const struct m3_safetensors *file, const struct m3_safetensors *dump, struct m3_error *error)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *got = m3_safetensors_metadata(file, keys[i]), *want = m3_safetensors_metadata(dump, keys[i]);
        if (got != NULL && want != NULL && strcmp(got, want) == 0) continue;
        return m3_fail(error, M3_NOT_COMPARABLE, "%s: %s: got %s, expected %s as in %s", m3_safetensors_path(file),
                       keys[i], got != NULL ? got : "none", want != NULL ? want : "none", m3_safetensors_path(dump));
    }
    const struct m3_origin expected = m3_origin_of_file(dump);
    return m3_origin_check_weights(file, &expected, M3_NOT_COMPARABLE, error);
}

void m3_origin_note_semantics(struct m3_error *notes, const char *whose, const char *got, const char *expected)
{
    got = got != NULL ? got : "{}";
    expected = expected != NULL ? expected : "{}";
    if (strcmp(got, expected) != 0) m3_fail(notes, M3_OK, "%s differ: got %s, expected %s", whose, got, expected);
}
