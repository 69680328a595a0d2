/* The numbers of one synthetic tensor. SPEC 3.6. */
#ifndef M3_MODEL_SYNTH_TENSOR_H
#define M3_MODEL_SYNTH_TENSOR_H

#include <stdint.h>

#include "base/weight.h"

/* What a tensor holds decides how its numbers are drawn. */
enum m3_synth_kind {
    M3_SYNTH_VALUES,            /* F32 or BF16 */
    M3_SYNTH_EIGHTHS,           /* F8_E4M3 codes */
    M3_SYNTH_POWERS,            /* ue8m0 scales beside F8_E4M3 */
    M3_SYNTH_BLOCKS,            /* F32 scales of 128x128 codes */
    M3_SYNTH_PAIRS,             /* two E2M1 codes in a byte */
    M3_SYNTH_GROUPS,            /* F8_E4M3 scales of NVFP4 */
    M3_SYNTH_GLOBAL,            /* the F32 scale of the whole matrix */
    M3_SYNTH_SMALL_POWERS,      /* ue8m0 scales of MXFP4 */
    M3_SYNTH_WORDS,             /* eight integers of 4 bits in an I32 */
    M3_SYNTH_GROUP_SCALES,      /* their BF16 scales */
    M3_SYNTH_SIZES,             /* I64: rows and columns of the matrix */
};

struct m3_synth_tensor {
    char name[224];
    enum m3_dtype dtype;
    enum m3_synth_kind kind;
    int rank, exponent;
    int one_more;               /* weights of plain norms are near 1 */
    int64_t shape[8], count;
    int64_t sizes[2];           /* of the matrix that it belongs to */
    int64_t shard;
};

/* Numbers [first, first + n) of the tensor, in its dtype. */
void m3_synth_fill(void *numbers, const struct m3_synth_tensor *tensor, uint64_t seed, int64_t first, int64_t n);

#endif
