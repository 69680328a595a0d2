/* Models of other families, for comparison. SPEC 14.9.
 *
 * A file has one of two forms. The config.json of LlamaForCausalLM is complete: its parameters are counted by
 * component. "model_type": "m3ref_comparison" has a few published numbers; figures that do not follow from them are
 * unknown. */
#ifndef M3_ESTIMATE_FOREIGN_H
#define M3_ESTIMATE_FOREIGN_H

#include "estimate/estimate.h"

struct m3_foreign {
    int few;                            /* only a few numbers; otherwise all of `config` and `census` is set */
    char *name, *source;                /* if few: name of the model, publisher of the numbers; otherwise NULL */
    struct m3_config config;            /* if few: layers with attention, their heads, positions; 0 where unknown */
    struct m3_census census;
    int64_t parameters, active;         /* as published; equal for a dense model */
    int64_t cached_numbers;             /* per token in a layer with attention; 0 if unknown */
};

/* *is_one tells whether the file has one of the two forms. If not, and if its type or class is of the family, nothing
 * else is read, and m3_config_read may read it; any other type or class is M3_BAD_INPUT. Fields are checked as in
 * m3_config_read; in the form with a few numbers an unknown field is an error too. M3_BAD_INPUT, M3_INTERNAL; a file
 * that cannot be read, or is not a JSON object, has neither form. */
int m3_foreign_read(struct m3_foreign *model, int *is_one, const char *path, struct m3_error *notes,
                    struct m3_error *error);
void m3_foreign_free(struct m3_foreign *model);

#endif
