#include "io/png.h"

#include "fuzz.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_image image;
    const int status = m3_png_read(&image, fuzz_file("in.png", parts[0]), &error);
    if (!status) fuzz_see(image.rgb[3 * image.height * image.width - 1]);
    m3_image_free(&image);
    fuzz_check(status, &error);
}
