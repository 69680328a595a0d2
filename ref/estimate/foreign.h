/* Models of other families, to compare with. SPEC 14.9.
 *
 * Two forms of file. The config.json of LlamaForCausalLM says everything: its parameters are counted by component.
 * "model_type": "m3ref_comparison" has a few published numbers; what does not follow from them is not known. */
#ifndef M3_ESTIMATE_FOREIGN_H
#define M3_ESTIMATE_FOREIGN_H

#include "estimate/estimate.h"

struct m3_foreign {
    int few;                            /* a few numbers; else all of `config` and `census` holds */
    char *name, *source;                /* of a few numbers: the model; who published them. Else NULL */
    struct m3_config config;            /* if few: layers with attention, their heads, positions; 0 where unknown */
    struct m3_census census;
    int64_t parameters, active;         /* as published; a dense model has the same twice */
    int64_t cached_numbers;             /* of a token in a layer with attention; 0 where unknown */
};

/* *is_one tells whether the file has one of the two forms. If not, and it is of the family by its type or class,
 * nothing else of it was read, and m3_config_read may read it; any other type or class is M3_BAD_INPUT. Fields are
 * judged as m3_config_read does; in the form of few numbers an unknown one is an error too. M3_BAD_INPUT,
 * M3_INTERNAL; a file that cannot be read, or is no JSON object, is none of the two. */
int m3_foreign_read(struct m3_foreign *model, int *is_one, const char *path, struct m3_error *notes,
                    struct m3_error *error);
void m3_foreign_free(struct m3_foreign *model);

#endif
