/* Still pictures and videos in the form that the vision tower reads: rows of patches, and the grid of each picture.
 * SPEC 10. */
#ifndef M3_MODEL_PICTURES_H
#define M3_MODEL_PICTURES_H

#include <stdint.h>

#include "base/semantics.h"
#include "base/status.h"
#include "io/config.h"

struct m3_pictures {
    int64_t images, videos;         /* how many; images come first everywhere */
    int64_t (*grid)[3];             /* [images + videos] time, height, width in patches */
    int64_t P, image_P;             /* patches, and those of images */
    float *pixels;                  /* [P,C] */
};

/* How a file was resized, for callers that report it. */
struct m3_picture_size {
    int64_t height, width, frames;              /* as in the file */
    int64_t new_height, new_width;
    int64_t grid[3], tokens;
};

/* The resized size of an image; `name` is for the error. M3_BAD_INPUT if the size is not allowed. */
int m3_pictures_image_size(struct m3_picture_size *size, int64_t height, int64_t width, const char *name,
                           const struct m3_vision_config *config, struct m3_error *error);

/* Append a PNG file as an image, or a folder of PNG files as a video whose frames are in byte order of their names,
 * all of one size. All images come before any video. M3_BAD_INPUT if a size is not allowed, besides the errors of
 * m3_png_read. */
int m3_pictures_add_image(struct m3_pictures *pictures, struct m3_picture_size *size, const char *path,
                          const struct m3_vision_config *config, struct m3_error *error);
int m3_pictures_add_video(struct m3_pictures *pictures, struct m3_picture_size *size, const char *folder,
                          const struct m3_vision_config *config, struct m3_error *error);

/* Appends pixels [patches,C] and grids [count,3] prepared by the caller. M3_BAD_INPUT, naming `source`, if a grid
 * cannot be merged, the grids do not add up to `patches`, or a pixel is not finite. */
int m3_pictures_add_patches(struct m3_pictures *pictures, int is_video, const float *pixels, int64_t patches,
                            const int64_t (*grid)[3], int64_t count, const struct m3_vision_config *config,
                            const char *source, struct m3_error *error);

/* Appends grids without pixels. Either all pictures of a case have pixels, or none. */
int m3_pictures_add_grids(struct m3_pictures *pictures, int is_video, const int64_t (*grid)[3], int64_t count,
                          const struct m3_vision_config *config, const char *source, struct m3_error *error);

/* Tokens after merging so many patches; tokens of picture i of all pictures; of all images; of all videos. */
int64_t m3_merged(int64_t patches, const struct m3_vision_config *config);
int64_t m3_pictures_tokens(const struct m3_pictures *pictures, int64_t i, const struct m3_vision_config *config);
int64_t m3_pictures_image_tokens(const struct m3_pictures *pictures, const struct m3_vision_config *config);
int64_t m3_pictures_video_tokens(const struct m3_pictures *pictures, const struct m3_vision_config *config);

/* places [P,3]: time, row and column of every patch; ends [at most P]: the ends of the segments within which patches
 * see each other. Returns the number of segments. */
int64_t m3_pictures_segments(int64_t *ends, int64_t *places, const struct m3_pictures *pictures,
                             const struct m3_vision_config *config, enum m3_vision_boundary boundary);

void m3_pictures_free(struct m3_pictures *pictures);

#endif
