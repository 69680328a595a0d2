/* A dump that is drawn, with a model: shapes, ids and grids that no run has written. */
#include <stdio.h>

#include "oracle/picture/picture.h"
#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_world(); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *dump;
    struct m3_picture picture = { 0 };
    struct m3_picture_request request = { .model = fuzz_world()->model, .threads = 1 };
    int status = m3_safetensors_open(&dump, fuzz_file("dump.safetensors", parts[0]), &error);
    if (!status) {
        FILE *out = fopen("/dev/null", "w");
        request.dump = dump;
        status = m3_picture_make(&picture, &request, &error);
        if (!status && out) status = m3_picture_html(out, &picture, "dump", &error);
        if (!status && out) status = m3_picture_svg(out, &picture, "dump", &error);
        if (out) fclose(out);
    }
    m3_picture_free(&picture);
    m3_safetensors_close(dump);
    fuzz_check(status, &error);
}
