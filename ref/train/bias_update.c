#include "train/losses.h"

/* The router's bias after a step. TRAINING 19.18
 *
 *     bias_e += rate sign(mean of the loads - load_e)
 *
 * bias, load [E].  Often wrong: a gradient step; an average expert that moves; the load of one layer for another. */
void m3_bias_update(real *bias, const int64_t *load, int64_t E, real rate)
{
    int64_t sum = 0;
    for (int64_t e = 0; e < E; e++) sum += load[e];
    for (int64_t e = 0; e < E; e++) {
        if (load[e] * E < sum) bias[e] = bias[e] + rate;
        if (load[e] * E > sum) bias[e] = bias[e] - rate;
    }
}
