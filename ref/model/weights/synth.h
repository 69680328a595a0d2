/* Model directories with reproducible weights: each value follows from seed, tensor name and index. SPEC 3.6. */
#ifndef M3_MODEL_SYNTH_H
#define M3_MODEL_SYNTH_H

#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"

enum m3_synth_dtype {
    M3_SYNTH_BF16,
    M3_SYNTH_F32,
    M3_SYNTH_F8_BLOCK,
    M3_SYNTH_MXFP8,
    M3_SYNTH_NVFP4, /* this form and the next two as compressed-tensors writes them */
    M3_SYNTH_MXFP4,
    M3_SYNTH_W4A16,
    M3_SYNTH_DTYPES,
};

struct m3_synth_totals {
    int64_t tensors, files;
    uint64_t bytes;             /* of tensors */
};

/* Writes a model to `folder` (created if missing; otherwise it must be empty): a copy of the config, with a
 * quantization_config for matrices in codes, one weight file or shards with an index, and `modules` modules of
 * multi-token prediction. It streams: memory use does not grow with the model. `progress`
 * is told the bytes. */
int m3_synth_write(const char *config_path, const char *folder, uint64_t seed, enum m3_synth_dtype dtype,
                   int64_t modules, struct m3_synth_totals *totals, const struct m3_progress *progress,
                   struct m3_error *notes, struct m3_error *error);

#endif
