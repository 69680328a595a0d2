#include "model/pictures.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/open.h"
#include "io/png.h"
#include "model/resize.h"

/* The allowed number of pixels of a picture, or of a frame, after the resize. */
enum { LEAST_PIXELS = 3136, MOST_IMAGE_PIXELS = 451584, MOST_FRAME_PIXELS = 602112 };

static int64_t content_of(const struct m3_vision_config *c)
{
    return c->channels * c->temporal_patch * c->patch * c->patch;
}

int64_t m3_merged(int64_t patches, const struct m3_vision_config *config)
{
    return patches / (config->spatial_merge * config->spatial_merge);
}

static int64_t product(const int64_t grid[3]) { return grid[0] * grid[1] * grid[2]; }

/* Appends a picture of `grid`. */
static int append_grid(struct m3_pictures *s, int is_video, const int64_t grid[3], struct m3_error *error)
{
    int64_t count = s->images + s->videos;
    size_t bytes = (size_t)(count + 1) * sizeof *s->grid;
    int64_t (*grids)[3] = realloc(s->grid, bytes);
    if (!grids) return m3_fail_memory(error, "the pictures", bytes);
    s->grid = grids;
    memcpy(s->grid[count], grid, sizeof *grids);
    s->P += product(grid);
    if (is_video) s->videos++;
    else s->images++, s->image_P = s->P;
    return M3_OK;
}

/* Appends a picture whose pixels are the last ones, and returns room for them; NULL if memory is short. */
static float *append(struct m3_pictures *s, int is_video, const int64_t grid[3], const struct m3_vision_config *config,
                     struct m3_error *error)
{
    int64_t before = s->P;
    size_t width = (size_t)content_of(config) * sizeof *s->pixels, bytes;
    int fits = !__builtin_mul_overflow((size_t)(s->P + product(grid)), width, &bytes);
    float *pixels = fits ? realloc(s->pixels, bytes) : NULL;
    if (!pixels) {
        m3_fail_memory(error, "the pictures", fits ? bytes : SIZE_MAX);
        return NULL;
    }
    s->pixels = pixels;
    return append_grid(s, is_video, grid, error) ? NULL : pixels + before * content_of(config);
}

/* Uses CLIP's mean and standard deviation, given for floats in 0 .. 1, times 255. Each step rounds to float, as in the
 * public processor. */
static float normalised(unsigned char byte, int64_t channel)
{
    static const float mean[3] = { 0.48145466f, 0.4578275f, 0.40821073f };
    static const float deviation[3] = { 0.26862954f, 0.26130258f, 0.27577711f };
    return ((float)byte - mean[channel] * 255) / (deviation[channel] * 255);
}

/* Writes one frame [height,width,3] as the `part`-th of the temporal_patch frames of one time step: rows of patches in
 * the order (h/merge, w/merge, merge, merge), each in the order channel, frame, row, column. */
static void put_frame(float *pixels, const unsigned char *rgb, int64_t part, const int64_t grid[3],
                      const struct m3_vision_config *c)
{
    int64_t merge = c->spatial_merge, side = c->patch, width = grid[2] * side, patch = 0;
    for (int64_t group = 0; group < grid[1] * grid[2] / (merge * merge); group++) {
        int64_t top = group / (grid[2] / merge) * merge, left = group % (grid[2] / merge) * merge;
        for (int64_t i = 0; i < merge * merge; i++, patch++) {
            const unsigned char *corner = rgb + ((top + i / merge) * side * width + (left + i % merge) * side) * 3;
            for (int64_t channel = 0; channel < 3; channel++) {
                float *x = pixels + patch * content_of(c) + (channel * c->temporal_patch + part) * side * side;
                for (int64_t y = 0; y < side * side; y++)
                    x[y] = normalised(corner[(y / side * width + y % side) * 3 + channel], channel);
            }
        }
    }
}

/* The size after the resize; an error names the file. */
static int choose_size(struct m3_picture_size *size, int64_t height, int64_t width, int64_t most, const char *path,
                       const struct m3_vision_config *config, struct m3_error *error)
{
    int64_t factor = config->patch * config->spatial_merge;
    if (config->channels != 3)
        return m3_fail(error, M3_BAD_INPUT, "%s: got a picture of 3 channels, expected num_channels %" PRId64, path,
                       config->channels);
    size->height = height;
    size->width = width;
    if (m3_smart_resize(&size->new_height, &size->new_width, height, width, factor, LEAST_PIXELS, most))
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: got %" PRId64 " x %" PRId64 " pixels, expected sides of a ratio of at "
                       "most 200",
                       path, width, height);
    return M3_OK;
}

/* The picture in its new size; the caller frees *rgb. */
static int resized(unsigned char **rgb, const struct m3_image *image, const struct m3_picture_size *size,
                   const char *path, struct m3_error *error)
{
    size_t bytes = (size_t)(size->new_height * size->new_width) * 3;
    *rgb = malloc(bytes);
    if (!*rgb) return m3_fail_memory(error, path, bytes);
    return m3_resize_bicubic(*rgb, size->new_height, size->new_width, image->rgb, image->height, image->width, error);
}

static void set_grid(struct m3_picture_size *size, int64_t frames, const struct m3_vision_config *config)
{
    size->frames = frames;
    size->grid[0] = (frames + config->temporal_patch - 1) / config->temporal_patch;
    size->grid[1] = size->new_height / config->patch;
    size->grid[2] = size->new_width / config->patch;
    size->tokens = m3_merged(product(size->grid), config);
}

int m3_pictures_image_size(struct m3_picture_size *size, int64_t height, int64_t width, const char *name,
                           const struct m3_vision_config *config, struct m3_error *error)
{
    int status = choose_size(size, height, width, MOST_IMAGE_PIXELS, name, config, error);
    if (!status) set_grid(size, 1, config);
    return status;
}

int m3_pictures_add_image(struct m3_pictures *pictures, struct m3_picture_size *size, const char *path,
                          const struct m3_vision_config *config, struct m3_error *error)
{
    struct m3_image image;
    unsigned char *rgb = NULL;
    int status = m3_png_read(&image, path, error);
    if (!status) status = choose_size(size, image.height, image.width, MOST_IMAGE_PIXELS, path, config, error);
    if (!status) status = resized(&rgb, &image, size, path, error);
    if (!status) {
        set_grid(size, 1, config);
        float *pixels = append(pictures, 0, size->grid, config, error);
        if (!pixels) status = M3_INTERNAL;
        for (int64_t part = 0; !status && part < config->temporal_patch; part++)
            put_frame(pixels, rgb, part, size->grid, config);
    }
    free(rgb);
    m3_image_free(&image);
    return status;
}

static int is_png(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 4 && strcmp(entry->d_name + length - 4, ".png") == 0;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* "folder/name", to be freed; NULL if memory is short. */
static char *path_in(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* Adds frame number `frame` of a video of `size`; the first frame decides the size and allocates the memory. */
static int add_frame(float **pixels, struct m3_pictures *pictures, struct m3_picture_size *size, int64_t frame,
                     int64_t frames, const char *path, const struct m3_vision_config *config, struct m3_error *error)
{
    struct m3_image image;
    unsigned char *rgb = NULL;
    int status = m3_png_read(&image, path, error);
    if (!status && frame == 0) {
        status = choose_size(size, image.height, image.width, MOST_FRAME_PIXELS, path, config, error);
        if (!status) set_grid(size, frames, config);
        if (!status && !(*pixels = append(pictures, 1, size->grid, config, error))) status = M3_INTERNAL;
    } else if (!status && (image.height != size->height || image.width != size->width)) {
        status = m3_fail(error, M3_BAD_INPUT,
                         "%s: got a frame of %" PRId64 " x %" PRId64 " pixels, expected %" PRId64 " x %" PRId64
                         " as the first",
                         path, image.width, image.height, size->width, size->height);
    }
    if (!status) status = resized(&rgb, &image, size, path, error);

    int64_t repeats = frame == frames - 1 ? size->grid[0] * config->temporal_patch - frame : 1;
    for (int64_t f = frame; !status && f < frame + repeats; f++) {
        int64_t step = f / config->temporal_patch, patches = size->grid[1] * size->grid[2];
        put_frame(*pixels + step * patches * content_of(config), rgb, f % config->temporal_patch, size->grid, config);
    }
    free(rgb);
    m3_image_free(&image);
    return status;
}

int m3_pictures_add_video(struct m3_pictures *pictures, struct m3_picture_size *size, const char *folder,
                          const struct m3_vision_config *config, struct m3_error *error)
{
    struct dirent **names;
    float *pixels = NULL;
    int frames = scandir(folder, &names, is_png, by_bytes), status = M3_OK;
    if (frames < 0)
        return m3_fail(error, m3_is_absent(errno) ? M3_ABSENT : m3_status_of(errno),
                       "%s: cannot be read as a folder: %s", folder, strerror(errno));
    if (frames == 0)
        status =
            m3_fail(error, M3_BAD_INPUT, "%s: got no file that ends in .png, expected the frames of a video", folder);
    for (int i = 0; i < frames; i++) {
        char *path = path_in(folder, names[i]->d_name);
        if (!status && !path) status = m3_fail_memory(error, folder, 0);
        if (!status) status = add_frame(&pixels, pictures, size, i, frames, path, config, error);
        free(path);
        free(names[i]);
    }
    free(names);
    return status;
}

/* Checks that the tower can merge a grid. Returns the number of its patches, or -1. */
static int64_t check_grid(const int64_t grid[3], int64_t merge)
{
    int64_t plane, patches;
    for (int i = 0; i < 3; i++)
        if (grid[i] < 1 || grid[i] > INT32_MAX) return -1;
    if (grid[1] % merge || grid[2] % merge) return -1;
    if (__builtin_mul_overflow(grid[1], grid[2], &plane) || __builtin_mul_overflow(plane, grid[0], &patches)) return -1;
    return patches;
}

static int bad_grid(const int64_t grid[3], int64_t i, int64_t merge, const char *source, struct m3_error *error)
{
    return m3_fail(error, M3_BAD_INPUT,
                   "%s: picture %" PRId64 ": got a grid of %" PRId64 " x %" PRId64 " x %" PRId64
                   ", expected at least 1 each, height and width in multiples of %" PRId64,
                   source, i, grid[0], grid[1], grid[2], merge);
}

int m3_pictures_add_grids(struct m3_pictures *pictures, int is_video, const int64_t (*grid)[3], int64_t count,
                          const struct m3_vision_config *config, const char *source, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < count && !status; i++)
        status = check_grid(grid[i], config->spatial_merge) < 0
                     ? bad_grid(grid[i], i, config->spatial_merge, source, error)
                     : append_grid(pictures, is_video, grid[i], error);
    return status;
}

int m3_pictures_add_patches(struct m3_pictures *pictures, int is_video, const float *pixels, int64_t patches,
                            const int64_t (*grid)[3], int64_t count, const struct m3_vision_config *config,
                            const char *source, struct m3_error *error)
{
    int64_t merge = config->spatial_merge, width = content_of(config), sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t n = check_grid(grid[i], merge);
        if (n < 0) return bad_grid(grid[i], i, merge, source, error);
        if (n > patches - sum)
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: picture %" PRId64 ": got grids of more than the %" PRId64
                           " rows of pixels, expected as many",
                           source, i, patches);
        sum += n;
    }
    if (sum != patches)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: got grids of %" PRId64 " patches, expected %" PRId64 ", the rows of pixels", source, sum,
                       patches);
    for (int64_t i = 0; i < patches * width; i++)
        if (!isfinite(pixels[i]))
            return m3_fail(error, M3_BAD_INPUT, "%s: row %" PRId64 " of pixels: got %g, expected a finite number",
                           source, i / width, (double)pixels[i]);

    for (int64_t i = 0, at = 0; i < count; i++) {
        float *to = append(pictures, is_video, grid[i], config, error);
        if (!to) return M3_INTERNAL;
        memcpy(to, pixels + at * width, (size_t)(product(grid[i]) * width) * sizeof *to);
        at += product(grid[i]);
    }
    return M3_OK;
}

int64_t m3_pictures_tokens(const struct m3_pictures *pictures, int64_t i, const struct m3_vision_config *config)
{
    return m3_merged(product(pictures->grid[i]), config);
}

int64_t m3_pictures_image_tokens(const struct m3_pictures *pictures, const struct m3_vision_config *config)
{
    return pictures ? m3_merged(pictures->image_P, config) : 0;
}

int64_t m3_pictures_video_tokens(const struct m3_pictures *pictures, const struct m3_vision_config *config)
{
    return pictures ? m3_merged(pictures->P - pictures->image_P, config) : 0;
}

/* Rows and columns of one time step, in merge order. */
static void place_step(int64_t *places, int64_t time, const int64_t grid[3], int64_t merge)
{
    for (int64_t i = 0; i < grid[1] * grid[2]; i++) {
        int64_t group = i / (merge * merge), inside = i % (merge * merge), across = grid[2] / merge;
        places[3 * i] = time;
        places[3 * i + 1] = group / across * merge + inside / merge;
        places[3 * i + 2] = group % across * merge + inside % merge;
    }
}

int64_t m3_pictures_segments(int64_t *ends, int64_t *places, const struct m3_pictures *pictures,
                             const struct m3_vision_config *config, enum m3_vision_boundary boundary)
{
    int64_t segments = 0, row = 0, count = pictures->images + pictures->videos;
    for (int64_t i = 0; i < count; i++) {
        const int64_t *grid = pictures->grid[i];
        int limited = boundary == M3_BOUNDARY_SEGMENT && i >= pictures->images && config->segment_max_frames > 0;
        int64_t steps = limited ? config->segment_max_frames : grid[0];

        for (int64_t time = 0; time < grid[0]; time++, row += grid[1] * grid[2]) {
            if (boundary == M3_BOUNDARY_SEGMENT && time > 0 && time % steps == 0) ends[segments++] = row;
            place_step(places + 3 * row, time % steps, grid, config->spatial_merge);
        }
        /* Without boundaries there are two calls of the tower, one for all images and one for all videos. */
        if (boundary == M3_BOUNDARY_SEGMENT || i + 1 == pictures->images || i + 1 == count) ends[segments++] = row;
    }
    return segments;
}

void m3_pictures_free(struct m3_pictures *pictures)
{
    free(pictures->grid);
    free(pictures->pixels);
    *pictures = (struct m3_pictures){ 0 };
}
