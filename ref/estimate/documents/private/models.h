/* The models that the documents print figures of: the rows of golden/documents/models.tsv. Used in this folder alone. */
#ifndef M3_ESTIMATE_DOCUMENTS_PRIVATE_MODELS_H
#define M3_ESTIMATE_DOCUMENTS_PRIVATE_MODELS_H

#include <stdint.h>

/* The letters of sizes[], as m3_config_size names them. */
#define M3_DOCUMENT_LETTERS "HQGDXVNKEFIJ"

/* In the order of the columns of the file. An empty cell is 0. */
struct m3_documented_model {
    const char *name; /* in settings */
    const char *published; /* the `name` in the file of a model given by few numbers; NULL: given by a config */
    int64_t parameters, active, positions, layers;
    int64_t full, dense; /* layers before the first sparse one, before the first with experts */
    int64_t cached; /* numbers cached for a token and layer, of a model given by few numbers */
    int mxfp8; /* the matrices are MXFP8 */
    int64_t block, R;
    double theta;
    int64_t sizes[sizeof M3_DOCUMENT_LETTERS - 1];
};

extern const struct m3_documented_model m3_documented_models[];
extern const int m3_documented_model_count;

#endif
