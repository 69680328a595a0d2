/* The labels of a case, by which gradients are computed: `labels`, of the shape of input_ids. Row t of a sequence
 * predicts the label of row t + 1; M3_NO_LABEL is left out. */
#ifndef M3_MODEL_FILES_LABELS_H
#define M3_MODEL_FILES_LABELS_H

#include "model/files/batch.h"

enum { M3_NO_LABEL = -100 };

struct m3_labels {
    int32_t **of;               /* [count][length of the sequence] */
    int64_t count;
    int64_t scored;             /* rows with a label, of all sequences: those of the first row of each have none */
    char sha256[65];
};

/* M3_BAD_INPUT names what is wrong: no labels, another shape, a label outside the vocabulary, one on padding, none at
 * all. Free them in any case. */
int m3_labels_read(struct m3_labels *labels, const char *path, const struct m3_batch *batch,
                   const struct m3_config *config, struct m3_error *error);
void m3_labels_free(struct m3_labels *labels);

#endif
