/* What a kept state belongs to: everything that could change a byte of the run's outputs, as named texts. */
#ifndef M3_MODEL_RESUME_IDENTITY_H
#define M3_MODEL_RESUME_IDENTITY_H

#include "io/safetensors.h"
#include "model/resume/resume.h"

enum { M3_RESUME_LABELS = 32 };

struct m3_resume_identity {
    struct {
        const char *key;
        char *value;
    } labels[M3_RESUME_LABELS];
    int count;
};

/* Reads the program itself, the weights (io/fingerprint.h), a plug-in's library and the dump of --decisions. Free it in
 * any case. M3_IO, M3_INTERNAL. */
int m3_resume_identify(struct m3_resume_identity *identity, const struct m3_resume_run *run, struct m3_error *error);
/* One more text; the SHA-256 of a file (path NULL: "none"). M3_IO, M3_INTERNAL. */
int m3_resume_label(struct m3_resume_identity *identity, const char *key, const char *value, struct m3_error *error);
int m3_resume_label_file(struct m3_resume_identity *identity, const char *key, const char *path,
                         struct m3_error *error);
void m3_resume_identity_free(struct m3_resume_identity *identity);

/* Declares all labels as metadata. */
int m3_resume_identity_write(const struct m3_resume_identity *identity, struct m3_writer *writer,
                             struct m3_error *error);
/* M3_BAD_INPUT with the first label that differs. */
int m3_resume_identity_check(const struct m3_resume_identity *identity, const struct m3_safetensors *state,
                             struct m3_error *error);

#endif
