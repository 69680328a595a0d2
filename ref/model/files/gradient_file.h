/* Writes gradients to a file: d.param.TENSOR for every parameter that a loss reaches, d.TAP for taps. SPEC 3.5. */
#ifndef M3_MODEL_FILES_GRADIENT_FILE_H
#define M3_MODEL_FILES_GRADIENT_FILE_H

#include "model/files/labels.h"
#include "model/gradient.h"

struct m3_gradient_file;

/* What the file is made of. */
struct m3_gradient_run {
    struct m3_model *model;
    const struct m3_engine *engine;
    const struct m3_batch *batch;
    const struct m3_labels *labels;
    const struct m3_gradient_request *request;
    const char *patterns;           /* of the names without "d."; NULL: all */
    const char *command;
};

/* Opens `path`, declares the gradients that match the patterns, and begins. *sink is for the request. Taps are written
 * only if there is one sequence. The file appears at commit; parameters that did not come are 0. */
int m3_gradient_file_open(struct m3_gradient_file **file, struct m3_gradient_sink *sink, const char *path,
                          const struct m3_gradient_run *run, struct m3_error *error);
int64_t m3_gradient_file_tensors(const struct m3_gradient_file *file);
/* Both free the file. */
int m3_gradient_file_commit(struct m3_gradient_file *file, struct m3_error *error);
void m3_gradient_file_abandon(struct m3_gradient_file *file);       /* NULL is fine */

#endif
