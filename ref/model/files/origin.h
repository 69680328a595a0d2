/* Checks that a file belongs to the model, the case and the reading of the model with which it is used. Files state
 * them in their metadata: model_sha256, config_sha256, weights_sha256, case_sha256, semantics. */
#ifndef M3_MODEL_FILES_ORIGIN_H
#define M3_MODEL_FILES_ORIGIN_H

#include "base/status.h"
#include "io/safetensors.h"
#include "model/files/case.h"
#include "model/model.h"

struct m3_origin {
    const char *model_sha256, *case_sha256; /* NULL: not known */
    const char *config_sha256; /* NULL: not known. It counts where a model_sha256 is not known: files are absent */
    char hash[65], config[65]; /* what model_sha256 and config_sha256 point to if they were computed */
    const char *weights_sha256; /* NULL: not known, */
    const char *semantics; /* JSON, as a file states it; NULL: not known */
    struct m3_checkpoint *weights; /* or it is made of these when a file states one; NULL: no weights */
};

/* The origin that a file states. */
struct m3_origin m3_origin_of_file(const struct m3_safetensors *file);
int m3_origin_of_model(struct m3_origin *origin, const struct m3_model *model, const struct m3_case *the_case,
                       struct m3_error *error);

/* The purpose for which a dump is read. */
struct m3_origin_use {
    const char *verdict; /* of a candidate: "compared", "judged"; NULL: the dump is no candidate */
    int force; /* a different origin is a note instead of an error */
    enum m3_status status; /* returned for a different origin */
};

/* Compares the values known on both sides, and notes the unknown ones (notes NULL: silently). Returns 0, or
 * use->status with key, value found and value expected. */
int m3_origin_check(const struct m3_safetensors *dump, const struct m3_origin *expected,
                    const struct m3_origin_use *use, struct m3_error *notes, struct m3_error *error);

/* Requires that a file states `expected` under a key. Otherwise M3_BAD_INPUT with the value found and expected. */
int m3_origin_require(const struct m3_safetensors *file, const char *key, const char *expected, struct m3_error *error);

/* Checks the weights alone, of all files that both sides name (io/fingerprint.h). Reads them if `file` states any.
 * Returns 0, or `status`, M3_BAD_INPUT, .. with the first file that differs and its two hashes. */
int m3_origin_check_weights(const struct m3_safetensors *file, const struct m3_origin *expected, enum m3_status status,
                            struct m3_error *error);

/* Both files must state the same model, case and reading, and no other weights. Otherwise M3_NOT_COMPARABLE. */
int m3_origin_same_run(const struct m3_safetensors *file, const struct m3_safetensors *dump, struct m3_error *error);

/* Notes that two readings differ. `whose` begins the line: "semantics". NULL stands for the released reading. */
void m3_origin_note_semantics(struct m3_error *notes, const char *whose, const char *got, const char *expected);

#endif
