/* Resizing pictures: the released processor's rule for the size, and its resampling to the bit. SPEC 10.2, 10.3. */
#ifndef M3_MODEL_RESIZE_H
#define M3_MODEL_RESIZE_H

#include <stdint.h>

#include "base/status.h"

/* The new size: multiples of `factor`, area between the least and most pixels, proportions kept as far as possible.
 * Returns -1 if one side is more than 200 times the other, otherwise 0. Height and width must be at least 1. */
int m3_smart_resize(int64_t *new_height, int64_t *new_width, int64_t height, int64_t width, int64_t factor,
                    int64_t least, int64_t most);

/* Antialiased bicubic resampling of 8-bit RGB: out [out_h,out_w,3] from in [h,w,3], with the integer arithmetic of
 * PyTorch's interpolate. M3_INTERNAL if memory is short. */
int m3_resize_bicubic(unsigned char *out, int64_t out_h, int64_t out_w, const unsigned char *in, int64_t h, int64_t w,
                      struct m3_error *error);

#endif
