/* A picture, and a folder with two frames of a video. */
#include "model/pictures.h"

#include "fuzz.h"
#include "world.h"

static struct m3_config config;

const int fuzz_parts = 3;
void fuzz_begin(void) { fuzz_config_of(&config, "golden/tiny/model/config.json"); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_pictures pictures = { 0 };
    struct m3_picture_size size;
    const char *path = fuzz_file("image.png", parts[0]);
    fuzz_file("video/1.png", parts[1]);
    fuzz_file("video/2.png", parts[2]);
    int status = m3_pictures_add_image(&pictures, &size, path, &config.vision, &error);
    if (!status) status = m3_pictures_add_video(&pictures, &size, fuzz_path("video"), &config.vision, &error);
    if (!status && m3_pictures_video_tokens(&pictures, &config.vision) != size.tokens)
        fuzz_broken("a video has another number of tokens");
    m3_pictures_free(&pictures);
    fuzz_check(status, &error);
}
