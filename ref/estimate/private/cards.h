/* The data of GPUs: ref/estimate/cards.tsv, which the build makes into a table. */
#ifndef M3_ESTIMATE_PRIVATE_CARDS_H
#define M3_ESTIMATE_PRIVATE_CARDS_H

#include "estimate/estimate.h"

extern const struct m3_gpu m3_gpus[];
extern const int m3_gpu_count;

#endif
