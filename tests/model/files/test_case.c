/* Cases from files and from ids: values, limits, and the hash that goldens carry, which another program made. */
#include "files.h"

#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "model/files/case.h"

static struct m3_error error;
static const struct m3_config none;         /* a model without vision part */

/* Seen to fail with the zero byte after the name left out, and with ids hashed as I32. */
LOOP_TEST(hashes_of_the_goldens, 4)
{
    static const char *const names[] = { "tiny", "block128", "mxfp8", "f8block" };
    struct m3_safetensors *golden;
    struct m3_checkpoint *checkpoint;
    struct m3_case c, same;
    int64_t ids[4096];
    char model_sha256[65];

    snprintf(folder, sizeof folder, "golden/%s", names[_i]);
    ck_assert_int_eq(m3_safetensors_open(&golden, in_folder("golden.safetensors.gz"), &error), M3_OK);
    ck_assert_int_eq(m3_case_read(&c, in_folder("case.safetensors"), &none, &error), M3_OK);
    ck_assert_str_eq(c.sha256, m3_safetensors_metadata(golden, "case_sha256"));
    for (int64_t t = 0; t < c.T; t++) ids[t] = c.ids[t];
    ck_assert_int_eq(m3_case_from_ids(&same, ids, c.T, NULL, &none, &error), M3_OK);
    ck_assert_str_eq(same.sha256, c.sha256);

    ck_assert_int_eq(m3_checkpoint_open(&checkpoint, in_folder("model"), &error), M3_OK);
    ck_assert_int_eq(m3_checkpoint_sha256(checkpoint, model_sha256, &error), M3_OK);
    ck_assert_str_eq(model_sha256, m3_safetensors_metadata(golden, "model_sha256"));
    m3_checkpoint_close(checkpoint);
    m3_safetensors_close(golden);
    m3_case_free(&c);
    m3_case_free(&same);
}

/* Positions enter the hash and the case; the hash of this case is in the golden that was made from it. */
TEST(positions)
{
    struct m3_safetensors *golden;
    struct m3_case c;
    ck_assert_int_eq(m3_case_read(&c, "golden/tiny/positions_case.safetensors", &none, &error), M3_OK);
    ck_assert_int_eq(c.T, 67);
    ck_assert_int_eq(c.positions[0], 1000000);
    ck_assert_int_eq(c.positions[66], 1000066);
    ck_assert_int_eq(m3_safetensors_open(&golden, "golden/tiny/positions.safetensors", &error), M3_OK);
    const char *sha256 = m3_safetensors_metadata(golden, "case_sha256");
    if (sha256) ck_assert_str_eq(c.sha256, sha256);
    m3_safetensors_close(golden);
    m3_case_free(&c);
}

TEST(limits)
{
    struct m3_config config = { .V = 10, .max_positions = 4 };
    const int64_t ids[] = { 0, 9, 3, 5, 1 }, high[] = { 1, 10 }, huge[] = { 1L << 32 }, negative[] = { -1 };
    struct m3_case c;

    ck_assert_int_eq(m3_case_from_ids(&c, ids, 4, NULL, &none, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_BAD_INPUT, &error), M3_OK);
    c.positions[2] = 4;
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_BAD_INPUT, &error), M3_BAD_INPUT);
    ck_assert_int_eq(m3_case_check(&c, &config, 1, "x", M3_BAD_INPUT, &error), M3_OK);
    c.positions[2] = -1;
    ck_assert_int_eq(m3_case_check(&c, &config, 1, "x", M3_BAD_INPUT, &error), M3_BAD_INPUT);
    m3_case_free(&c);

    ck_assert_int_eq(m3_case_from_ids(&c, ids, 5, NULL, &none, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_USAGE, &error), M3_USAGE);
    m3_case_free(&c);

    const int64_t *bad[] = { high, huge, negative };
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(m3_case_from_ids(&c, bad[i], i == 0 ? 2 : 1, NULL, &none, &error), M3_OK);
        ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_USAGE, &error), M3_USAGE);
        m3_case_free(&c);
    }
    ck_assert_int_eq(m3_case_from_ids(&c, ids, 0, NULL, &none, &error), M3_USAGE);
}

/* A mask of places: it enters the hash, in the order of names, and must cover what is cached and the case.
 * Seen to fail with the mask hashed after the ids, and with its length compared with T alone. */
TEST(masks)
{
    struct m3_config config = { .V = 211, .max_positions = 4096 };
    struct m3_safetensors *golden;
    struct m3_case c;
    int64_t hidden = 0;
    ck_assert_int_eq(m3_case_read(&c, "golden/readings/mask_case.safetensors", &none, &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&golden, "golden/readings/mask.safetensors.gz", &error), M3_OK);
    ck_assert_str_eq(c.sha256, m3_safetensors_metadata(golden, "case_sha256"));
    ck_assert_int_eq(c.places, c.T);
    for (int64_t j = 0; j < c.T; j++) hidden += c.seen[j] == 0;
    ck_assert(hidden > 3 && hidden < c.T - 3);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_BAD_INPUT, &error), M3_OK);
    m3_case_continue(&c, 2);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_BAD_INPUT, &error), M3_BAD_INPUT);
    ck_assert(strstr(error.text, "attention_mask: got ") && strstr(error.text, ", 2 before the case and its"));
    c.places += 2;
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_BAD_INPUT, &error), M3_OK);
    m3_safetensors_close(golden);
    m3_case_free(&c);
}

static const struct m3_config seeing = {
    .V = 10,
    .max_positions = 40,
    .vision = { .present = 1,
                .image_token = 7,
                .video_token = 8,
                .patch = 1,
                .channels = 3,
                .spatial_merge = 2,
                .temporal_patch = 1 },
};

/* Stills of 1 and 2 tokens and a video of 3. */
static struct m3_pictures some_pictures(void)
{
    static const int64_t stills[][3] = { { 1, 2, 2 }, { 1, 2, 4 } }, video[][3] = { { 3, 2, 2 } };
    static const float pixels[12 * 3];
    struct m3_pictures pictures = { 0 };
    ck_assert_int_eq(m3_pictures_add_patches(&pictures, 0, pixels, 12, stills, 2, &seeing.vision, "x", &error), M3_OK);
    ck_assert_int_eq(m3_pictures_add_patches(&pictures, 1, pixels, 12, video, 1, &seeing.vision, "x", &error), M3_OK);
    return pictures;
}

/* Goal:  one placeholder a picture becomes its picture's tokens, one a token stays; anything else is refused.
 * Seen to fail with the tokens of the wrong picture, and with any number of placeholders expanded. */
TEST(placeholders)
{
    static const struct {
        int64_t ids[12], T, expanded[12], length;
        int status;
    } lists[] = {
        { { 1, 7, 2, 7, 8 }, 5, { 1, 7, 2, 7, 7, 8, 8, 8 }, 8, M3_OK },
        { { 8, 7, 7 }, 3, { 8, 8, 8, 7, 7, 7 }, 6, M3_OK },
        { { 7, 7, 7, 8, 1, 8, 8 }, 7, { 7, 7, 7, 8, 1, 8, 8 }, 7, M3_OK },
        { { 7, 7, 7, 8 }, 4, { 7, 7, 7, 8, 8, 8 }, 6, M3_OK },
        { { 7, 8 }, 2, { 7, 8, 8, 8 }, 4, M3_USAGE },
        { { 7, 7 }, 2, { 7, 7, 7 }, 3, M3_USAGE },
        { { 7, 7, 7, 7, 8 }, 5, { 7, 7, 7, 7, 8, 8, 8 }, 7, M3_USAGE },
        { { 7, 7, 8, 8 }, 4, { 7, 7, 7, 8, 8 }, 5, M3_USAGE },
        { { 1, 2, 3 }, 3, { 1, 2, 3 }, 3, M3_USAGE },
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct m3_pictures pictures = some_pictures();
        struct m3_case c;
        ck_assert_int_eq(m3_case_from_ids(&c, lists[i].ids, lists[i].T, &pictures, &seeing, &error), M3_OK);
        ck_assert_int_eq(c.T, lists[i].length);
        for (int64_t t = 0; t < c.T; t++) ck_assert_int_eq(c.ids[t], lists[i].expanded[t]);
        ck_assert_msg(m3_case_check(&c, &seeing, 0, "x", M3_USAGE, &error) == (int)lists[i].status, "list %zu", i);
        ck_assert(pictures.pixels == NULL && c.pictures.images == 2);
        m3_case_free(&c);
    }
    const int64_t image[] = { 1, 7 }, video[] = { 8 };
    struct m3_case c;
    ck_assert_int_eq(m3_case_from_ids(&c, image, 2, NULL, &seeing, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &seeing, 0, "x", M3_USAGE, &error), M3_USAGE);
    m3_case_free(&c);
    ck_assert_int_eq(m3_case_from_ids(&c, video, 1, NULL, &seeing, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &seeing, 0, "x", M3_BAD_INPUT, &error), M3_BAD_INPUT);
    ck_assert(strstr(error.text, "got 1 placeholders of videos (id 8), expected 0") != NULL);
    m3_case_free(&c);
}

/* Goal:  cases with pictures, from files and from ids with the same grids, hash as the goldens' own script does.
 * Seen to fail with the grids of videos instead of those of images, and with pixels hashed too. */
LOOP_TEST(hashes_with_pictures, 4)
{
    static const char *const names[] = { "smallest", "still", "two", "video" };
    struct m3_config config;
    struct m3_safetensors *golden;
    struct m3_error notes = { 0 };
    struct m3_case c, same;
    int64_t ids[4096];
    char path[96];
    ck_assert_int_eq(m3_config_read(&config, "golden/tiny/model/config.json", &notes, &error), M3_OK);
    snprintf(path, sizeof path, "golden/vision/%s.safetensors.gz", names[_i]);
    ck_assert_int_eq(m3_safetensors_open(&golden, path, &error), M3_OK);
    snprintf(path, sizeof path, "golden/vision/%s_case.safetensors", names[_i]);
    ck_assert_int_eq(m3_case_read(&c, path, &config, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, path, M3_BAD_INPUT, &error), M3_OK);
    ck_assert_str_eq(c.sha256, m3_safetensors_metadata(golden, "case_sha256"));

    for (int64_t t = 0; t < c.T; t++) ids[t] = c.ids[t];
    ck_assert_int_eq(m3_case_from_ids(&same, ids, c.T, &c.pictures, &config, &error), M3_OK);
    ck_assert_str_eq(same.sha256, c.sha256);
    m3_safetensors_close(golden);
    m3_case_free(&c);
    m3_case_free(&same);
    m3_config_free(&config);
}
