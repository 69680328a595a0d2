/* The quantization_config of a synthetic model. */
#ifndef M3_MODEL_SYNTH_CONFIG_H
#define M3_MODEL_SYNTH_CONFIG_H

#include <stddef.h>

#include "base/weight.h"
#include "model/weights/synth.h"

/* Does a config whose matrices are `stated` to be so describe a model of this dtype? Plain numbers need no words. */
int m3_synth_states(enum m3_synth_dtype dtype, enum m3_scaling stated);

/* *changed becomes the config `text` with a quantization_config, to be freed by the caller; NULL on failure. */
int m3_synth_config(char **changed, const char *text, size_t size, enum m3_synth_dtype dtype, const char *path,
                    struct m3_error *error);

#endif
