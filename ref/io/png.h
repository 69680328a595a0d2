/* PNG files. SPEC 10.1. */
#ifndef M3_IO_PNG_H
#define M3_IO_PNG_H

#include <stdint.h>

#include "base/status.h"

struct m3_image {
    int64_t height, width;
    unsigned char *rgb;         /* [height,width,3] */
};

/* Reads any PNG as 8-bit RGB, with the result of Pillow's convert("RGB"): alpha and transparency dropped, no colour
 * management. M3_ABSENT, M3_BAD_INPUT (not a PNG, damaged, cut short, too large, or
 * 1024 times larger than its file), M3_IO, M3_INTERNAL; *image is then
 * empty. */
int m3_png_read(struct m3_image *image, const char *path, struct m3_error *error);
void m3_image_free(struct m3_image *image);

#endif
