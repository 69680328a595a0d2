#include "io/png.h"

#include <errno.h>
#include <inttypes.h>
#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/minmax.h"
#include "io/memory.h"
#include "io/open.h"

enum {
    HEAD = 26,                      /* signature, and the first chunk up to the kind of colour */
    MOST_PIXELS = 178956970,        /* Pillow's limit: it refuses larger files as bombs */
    MOST_RATIO = 1032,              /* of the stored samples to the bytes of the file: what deflate reaches, */
    ALWAYS = 1 << 16,               /* and so many more */
    LARGE_CHUNK = 1 << 20,          /* of text or a profile, which may be larger than the file that packs it */
};

struct reading {
    const char *path;
    struct m3_error *error;
    struct m3_image *image;
    int64_t bytes;                  /* of the file */
    png_alloc_size_t most;          /* that the library may take at once: it takes what a chunk claims to need */
    int status;
    int short_of_memory;            /* the library reports it as damage, */
    int failed_read;                /* and an errno of reading */
    jmp_buf stop;                   /* the library's errors do not return */
};

static void damaged(png_structp png, png_const_charp why)
{
    struct reading *r = png_get_error_ptr(png);
    if (r->short_of_memory) r->status = m3_fail_memory(r->error, r->path, 0);
    else if (r->failed_read)
        r->status = m3_fail(r->error, M3_IO, "%s: cannot be read: %s", r->path, strerror(r->failed_read));
    else r->status = m3_fail(r->error, M3_BAD_INPUT, "%s: got a damaged PNG (%s), expected a whole one", r->path, why);
    longjmp(r->stop, 1);
}

static png_voidp take(png_structp png, png_alloc_size_t bytes)
{
    struct reading *r = png_get_mem_ptr(png);
    png_voidp memory = bytes <= r->most ? malloc(bytes) : NULL;
    if (!memory && bytes <= r->most) r->short_of_memory = 1;
    return memory;
}

static void give_back(png_structp png, png_voidp memory)
{
    (void)png;
    free(memory);
}

static void read_bytes(png_structp png, png_bytep bytes, size_t count)
{
    FILE *file = png_get_io_ptr(png);
    if (fread(bytes, 1, count, file) == count) return;
    struct reading *r = png_get_error_ptr(png);
    if (ferror(file)) r->failed_read = errno ? errno : EIO;
    png_error(png, "Read Error");
}

/* Warnings concern things that do not matter here, such as colour profiles. */
static void ignore(png_structp png, png_const_charp why)
{
    (void)png;
    (void)why;
}

static int64_t big_endian(const unsigned char *b)
{
    return (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | (int64_t)b[3];
}

/* Bytes of a row as it is stored: a byte for its filter, and samples of 1 to 16 bits. */
static int64_t stored_row(const unsigned char *head, int64_t width)
{
    static const int channels[7] = { 1, 0, 3, 1, 2, 0, 4 };
    const int depth = head[24], colour = head[25];
    return 1 + (width * depth * (colour < 7 ? channels[colour] : 0) + 7) / 8;
}

/* A file of a few bytes can claim, and deflate can hide, hundreds of megabytes. */
static int check_share(struct reading *r, FILE *file, const unsigned char *head, int64_t height, int64_t width)
{
    struct stat info;
    const int64_t bytes = height * stored_row(head, width);
    if (fstat(fileno(file), &info) != 0) return m3_fail(r->error, M3_IO, "%s: %s", r->path, strerror(errno));
    r->bytes = info.st_size;
    const int64_t most = info.st_size > INT64_MAX / MOST_RATIO / 2 ? INT64_MAX : info.st_size * MOST_RATIO + ALWAYS;
    if (bytes > most)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: got %" PRId64 " x %" PRId64 " pixels, %" PRId64 " bytes of samples, in %jd bytes, expected "
                       "at most %" PRId64,
                       r->path, width, height, bytes, (intmax_t)info.st_size, most);
    return m3_memory_check((uint64_t)(height * width * 3), r->path, r->error);
}

/* Checked before libpng reads the file, because it reports a picture without pixels as damaged. */
static int check_head(struct reading *r, FILE *file)
{
    unsigned char head[HEAD];
    size_t got = fread(head, 1, HEAD, file);
    if (ferror(file)) return m3_fail(r->error, M3_IO, "%s: cannot be read: %s", r->path, strerror(errno));
    if (got < 8 || png_sig_cmp(head, 0, 8) != 0)
        return m3_fail(r->error, M3_BAD_INPUT, "%s: got no PNG signature, expected a PNG file", r->path);
    if (got < HEAD) return m3_fail(r->error, M3_BAD_INPUT, "%s: got %zu bytes, expected a whole PNG", r->path, got);
    if (memcmp(head + 8, "\0\0\0\rIHDR", 8) != 0)
        return m3_fail(r->error, M3_BAD_INPUT, "%s: got another first chunk, expected IHDR", r->path);

    int64_t width = big_endian(head + 16), height = big_endian(head + 20);
    if (width < 1 || height < 1 || width > MOST_PIXELS / height)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: got %" PRId64 " x %" PRId64 " pixels, expected at least one and at "
                       "most %d",
                       r->path, width, height, MOST_PIXELS);
    if (fseek(file, 0, SEEK_SET))
        return m3_fail(r->error, M3_IO, "%s: got a stream, expected a file that can be read twice", r->path);
    return check_share(r, file, head, height, width);
}

/* Pillow converts 16-bit grey to 8 bits by clamping at 255, and other 16-bit samples by a shift. */
static int is_deep_grey(png_structp png, png_infop info)
{
    return png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) == 16;
}

/* Three samples of 8 bits per pixel, except for deep grey: one of 16 bits. Grey of fewer bits is scaled to 8.
 * Returns how often the rows are to be read: an interlaced picture has seven passes. */
static int choose_transforms(png_structp png, png_infop info)
{
    int colour = png_get_color_type(png, info), passes = png_set_interlace_handling(png);
    if (!is_deep_grey(png, info)) {
        if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
        if (!(colour & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png);
        png_set_strip_16(png);
        png_set_strip_alpha(png);
    }
    png_read_update_info(png, info);
    return passes;
}

/* Works in place, from the end, because three bytes replace two. */
static void cut_deep_grey(unsigned char *row, int64_t width)
{
    for (int64_t x = width - 1; x >= 0; x--) {
        unsigned char grey = row[2 * x] ? 255 : row[2 * x + 1];
        memset(row + 3 * x, grey, 3);
    }
}

static int take_memory(struct reading *r, int64_t height, int64_t width)
{
    *r->image = (struct m3_image){ height, width, malloc((size_t)(height * width) * 3) };
    return r->image->rgb ? M3_OK : m3_fail_memory(r->error, r->path, (size_t)(height * width) * 3);
}

/* Makes every call of libpng that may longjmp: no local variable is read after a jump. */
static void decode(struct reading *r, png_structp png, png_infop info, FILE *file)
{
    if (setjmp(r->stop)) return;
    png_set_read_fn(png, file, read_bytes);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    const png_alloc_size_t for_chunks = (png_alloc_size_t)m3_max(r->bytes, LARGE_CHUNK);
    r->most = for_chunks;
    png_read_info(png, info);
    r->most = SIZE_MAX;
    int64_t height = png_get_image_height(png, info), width = png_get_image_width(png, info);
    int deep_grey = is_deep_grey(png, info);

    const int passes = choose_transforms(png, info);
    r->status = take_memory(r, height, width);
    if (r->status) return;
    if (png_get_rowbytes(png, info) != (size_t)(width * (deep_grey ? 2 : 3))) png_error(png, "row width");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < height; y++) png_read_row(png, r->image->rgb + y * width * 3, NULL);
    r->most = for_chunks;
    png_read_end(png, NULL);
    for (int64_t y = 0; deep_grey && y < height; y++) cut_deep_grey(r->image->rgb + y * width * 3, width);
}

int m3_png_read(struct m3_image *image, const char *path, struct m3_error *error)
{
    struct reading r = { .path = path, .error = error, .image = image, .most = SIZE_MAX };
    *image = (struct m3_image){ 0 };
    FILE *file;
    int status = m3_open_stream(&file, path, error);
    if (status) return status;

    r.status = check_head(&r, file);
    png_structp png = NULL;
    if (!r.status) png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, damaged, ignore, &r, take, give_back);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!r.status && !info) r.status = m3_fail_memory(error, path, 0);
    if (!r.status) decode(&r, png, info, file);

    png_destroy_read_struct(&png, &info, NULL);
    fclose(file);
    if (r.status) m3_image_free(image);
    return r.status;
}

void m3_image_free(struct m3_image *image)
{
    free(image->rgb);
    *image = (struct m3_image){ 0 };
}
