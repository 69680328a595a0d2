/* Pictures through the program: from a PNG file to a verdict, and every kind of picture that it refuses.
 *
 * Seen to fail with: the count of placeholders unchecked; --image beside --case let through; a dump over a picture or a
 * frame let through; NaN let through. */
#include "program.h"

#include <stdint.h>

#include "io/safetensors.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define PHOTO_IDS "198,68,74,12,125,87,200,119,165,195,199,203"
#define PHOTO "golden/tiny/model --ids " PHOTO_IDS " --image golden/photo.png"

/* Goal:  a photograph through the whole of it: pixels, patches, tokens, logits. */
TEST(photo)
{
    ck_assert_int_eq(m3ref("run " PHOTO " --dump %s", in_folder("d.safetensors")), 0);
    ck_assert(has("out", "image: golden/photo.png, 97 x 65 pixels -> 84 x 56, grid 1 x 4 x 6, 6 tokens"));
    ck_assert(has("out", "next tokens: "));
    ck_assert_int_eq(m3ref("compare golden/vision/photo.safetensors.gz %s", in_folder("d.safetensors")), 0);
    ck_assert(has("out", "169 of 169 stages judged"));
    ck_assert_int_eq(m3ref("run " PHOTO " --taps 'vision.*,projector.*' --dump %s", in_folder("d.safetensors")), 0);
    ck_assert(has("out", "dump:  39 taps"));
    ck_assert_int_eq(m3ref("compare golden/vision/photo.safetensors.gz %s", in_folder("d.safetensors")), 0);
}

/* A plug-in whose 3-D RoPE swaps height and width: the first stage of the tower that is turned is named. */
TEST(plug_in_with_a_mistake)
{
    const char *build = getenv("BUILD");
    ck_assert_int_eq(m3ref("run " PHOTO " --taps 'vision.*,projector.*' --dump %s --ops ./%s/tests/%s",
                           in_folder("d.safetensors"), build ? build : "build", "wrong_vision_rope.so"),
                     0);
    ck_assert_int_eq(m3ref("compare golden/vision/photo.safetensors.gz %s", in_folder("d.safetensors")), 1);
    ck_assert(has("out", "first divergence vision.layers.0.q_rope"));
}

/* The words <image> and <video>, the id once, and the id as often as there are tokens, are the same prompt. */
TEST(placeholders)
{
    static const char *const ids[] = { "5,<image>,7", "5,200,7", "5,200,200,200,200,200,200,7" };
    char first[70] = "";
    for (int i = 0; i < 3; i++) {
        struct m3_safetensors *file;
        struct m3_error error = { 0 };
        ck_assert_int_eq(m3ref("run golden/tiny/model --ids '%s' --image golden/photo.png --taps logits --dump %s",
                               ids[i], in_folder("d.safetensors")),
                         0);
        ck_assert_int_eq(m3_safetensors_open(&file, in_folder("d.safetensors"), &error), M3_OK);
        const char *sha256 = m3_safetensors_metadata(file, "case_sha256");
        if (i == 0) strcpy(first, sha256);
        ck_assert_str_eq(first, sha256);
        ck_assert_int_eq(m3_safetensors_find(file, "logits")->shape[0], 8);
        m3_safetensors_close(file);
    }
    ck_assert_int_eq(mkdir(in_folder("video"), 0700), 0);
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "video/%d.png", i);
        copy("golden/photo.png", in_folder(name));
    }
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids '<video>,3,<image>,<image>' --image golden/photo.png "
                           "--video %s --image golden/pictures/rgb8.png",
                           in_folder("video")),
                     0);
    ck_assert(has("out", "5 frames of 97 x 65 pixels -> 84 x 56, grid 3 x 4 x 6, 18 tokens"));
    ck_assert(has("out", "run:   T 31,"));
}

/* Both readings of who sees whom run; they differ. */
TEST(boundary)
{
    ck_assert_int_eq(m3ref("run golden/tiny/model --case golden/vision/two_case.safetensors --set vision_boundary=none "
                           "--dump %s",
                           in_folder("d.safetensors")),
                     0);
    /* The golden holds the tower alone, the dump more than that. */
    ck_assert_int_eq(m3ref("compare golden/vision/two_none.safetensors.gz %s", in_folder("d.safetensors")), 0);
    ck_assert(has("out", "\npass  42 of 42 stages judged, 127 not in the reference; "));
    ck_assert_int_eq(m3ref("compare golden/vision/two.safetensors.gz %s", in_folder("d.safetensors")), 1);
    ck_assert(has("out", "first divergence vision.layers.0.attn"));
}

/* Float angles turn the tower too: in double they show. Seen to fail with the field left to the text model. */
TEST(float_angles)
{
    char line[2][300] = { "", "" };
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(m3ref("run golden/tiny/model --case golden/vision/video_case.safetensors --precision f64 "
                               "--set rope_angle=%s --taps vision.layers.0.q_rope --dump %s",
                               i ? "f32" : "f64", in_folder("d.safetensors")),
                         0);
        ck_assert_int_eq(m3ref("inspect --sha256 %s", in_folder("d.safetensors")), 0);
        FILE *out = fopen(in_folder("out"), "r");
        ck_assert_ptr_nonnull(fgets(line[i], sizeof line[i], out));
        fclose(out);
    }
    ck_assert_str_ne(line[0], line[1]);
}

/* One clear line each, the right status, nothing written. */
TEST(refused)
{
    static const struct {
        const char *arguments, *words;
        int status;
    } bad[] = {
        { "--ids 1,200 --image golden/README.md", "got no PNG signature", 65 },
        { "--ids 1,200 --image %s/short.png", "short.png: got a damaged PNG", 65 },
        { "--ids 1,200 --image %s/zero.png", "got 0 x 7 pixels", 65 },
        { "--ids 1,200 --image %s/absent.png", "absent.png", 66 },
        { "--ids 1,201 --video %s/absent", "absent", 66 },
        { "--ids 1,200,200 --image golden/photo.png", "got 2 placeholders of images (id 200), expected 6", 64 },
        { "--ids 1,2 --image golden/photo.png", "got 0 placeholders of images (id 200), expected 6", 64 },
        { "--ids 1,200", "got 1 placeholders of images (id 200), expected 0", 64 },
        { "--ids 1,201 --image golden/photo.png", "placeholders", 64 },
        { "--case golden/tiny/case.safetensors --image golden/photo.png", "--image", 64 },
        { "--ids '1,<picture>'", "<picture>", 64 },
    };
    size_t count;
    unsigned char *bytes = read_bytes("golden/pictures/rgb8.png", &count);
    write_bytes(in_folder("short.png"), bytes, count - 40);
    memset(bytes + 16, 0, 4);
    write_bytes(in_folder("zero.png"), bytes, count);
    free(bytes);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char arguments[400];
        const char *place = strstr(bad[i].arguments, "%s");
        if (place)
            snprintf(arguments, sizeof arguments, "%.*s%s%s", (int)(place - bad[i].arguments), bad[i].arguments, folder,
                     place + 2);
        else snprintf(arguments, sizeof arguments, "%s", bad[i].arguments);
        ck_assert_int_eq(m3ref("run golden/tiny/model %s --dump %s", arguments, in_folder("d")), bad[i].status);
        ck_assert(has("err", bad[i].words));
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(!exists("d"));
    }
    copy("golden/photo.png", in_folder("photo.png"));
    ck_assert_int_eq(
        m3ref("run golden/tiny/model --ids 1,200 --image %s --dump %s", in_folder("photo.png"), in_folder("photo.png")),
        64);
    ck_assert_int_eq(mkdir(in_folder("video"), 0700), 0);
    copy("golden/photo.png", in_folder("video/1.png"));
    ck_assert_int_eq(
        m3ref("run golden/tiny/model --ids 1,201 --video %s --dump %s", in_folder("video"), in_folder("video/1.png")),
        64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1,201 --video %s", in_folder("video")), 0);
}

/* A config that names no placeholder of images: no words for it, no images. */
TEST(no_placeholder)
{
    copy_tiny();
    size_t count;
    char *config = (char *)read_bytes(in_folder("model/config.json"), &count);
    char *field = strstr(config, "\"image_token_index\": 200,");
    ck_assert_ptr_nonnull(field);
    memset(field, ' ', strlen("\"image_token_index\": 200,"));
    write_bytes(in_folder("model/config.json"), config, count);
    free(config);
    ck_assert_int_eq(m3ref("run %s --ids '1,<image>,2' --image golden/photo.png", in_folder("model")), 64);
    ck_assert(has("err", "expected numbers, <video> separated by commas"));
    ck_assert_int_eq(m3ref("run %s --ids 1,2 --image golden/photo.png", in_folder("model")), 64);
    ck_assert(has("err", "the config names no image_token_index"));
    ck_assert_int_eq(m3ref("run %s --ids 1,-7", in_folder("model")), 64);
    ck_assert(has("err", "got id -7, expected 0 to 210"));
    ck_assert_int_eq(m3ref("run %s --ids 1,200", in_folder("model")), 0);
}

/* NaN that the tower, or the projector, makes is named with its row, and nothing is written. */
TEST(nan_is_an_error)
{
    static const struct {
        const char *tensor, *words;
    } nans[] = {
        { "vision_tower.vision_model.pre_layrnorm.bias", "vision.layers.0.out, row 0" },
        { "patch_merge_mlp.linear_2.bias", "projector.out, row 0" },
    };
    for (int i = 0; i < 2; i++) {
        remove_folder();
        make_folder();
        copy_tiny();
        patch(nans[i].tensor, 0, "\xC0\x7F", 2);
        ck_assert_int_eq(
            m3ref("run %s --ids 1,200 --image golden/photo.png --dump %s", in_folder("model"), in_folder("d")), 1);
        ck_assert(has("err", nans[i].words));
        ck_assert(!exists("d"));
    }
}

/* A case file of one image, zeros. No `grid`, no `patches`: without that tensor; -1 patches: it is empty. */
static void write_case(const int64_t *ids, int64_t T, int64_t patches, int64_t width, const int64_t grid[3])
{
    struct m3_writer *writer;
    struct m3_error error = { 0 };
    const int64_t rows = patches > 0 ? patches : 0, pixel_shape[] = { rows, width }, grid_shape[] = { 1, 3 };
    float *pixels = calloc((size_t)(rows * width) + 1, sizeof *pixels);
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("case"), &error), M3_OK);
    ck_assert_int_eq(m3_writer_tensor(writer, "input_ids", M3_I64, 1, &T, &error), M3_OK);
    if (grid) ck_assert_int_eq(m3_writer_tensor(writer, "image_grid_thw", M3_I64, 2, grid_shape, &error), M3_OK);
    if (patches) ck_assert_int_eq(m3_writer_tensor(writer, "pixel_values", M3_F32, 2, pixel_shape, &error), M3_OK);
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    ck_assert_int_eq(m3_writer_write(writer, ids, (uint64_t)T * 8, &error), M3_OK);
    if (grid) ck_assert_int_eq(m3_writer_write(writer, grid, 24, &error), M3_OK);
    if (patches) ck_assert_int_eq(m3_writer_write(writer, pixels, (uint64_t)(rows * width) * 4, &error), M3_OK);
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
    free(pixels);
}

TEST(refused_cases)
{
    static const int64_t one[] = { 5, 200, 7 }, two[] = { 5, 200, 200 }, none[] = { 5, 6, 7 };
    static const int64_t small[] = { 1, 2, 2 }, odd[] = { 1, 1, 4 }, large[] = { 1, 2, 4 };
    static const struct {
        const int64_t *ids;
        int64_t patches, width;
        const int64_t *grid;
        const char *words;
    } bad[] = {
        { one, 4, 1176, odd, "got a grid of 1 x 1 x 4" },
        { one, 4, 1176, large, "rows of pixels" },
        { one, 4, 588, small, "expected F32 [P,1176]" },
        { two, 4, 1176, small, "got 2 placeholders of images (id 200), expected 1" },
        { none, 4, 1176, small, "got 0 placeholders of images (id 200), expected 1" },
        { one, 0, 1176, NULL, "got 1 placeholders of images (id 200), expected 0" },
        { one, 4, 1176, NULL, "image_grid_thw: got no such tensor" },
        { one, 0, 1176, small, "pixel_values: got no such tensor" },
        { one, -1, 1176, small, "P at least 1" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_case(bad[i].ids, 3, bad[i].patches, bad[i].width, bad[i].grid);
        ck_assert_int_eq(m3ref("run golden/tiny/model --case %s --dump %s", in_folder("case"), in_folder("d")), 65);
        ck_assert(has("err", bad[i].words));
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(!exists("d"));
    }
    write_case(one, 3, 4, 1176, small);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case %s", in_folder("case")), 0);
}
