/* FLOPs of pictures: literals of the largest image, plain counting over the segments that the engine itself forms, and
 * the options that ask for them.
 *
 * Seen to fail with: a projector by patches throughout; no merging in the tokens; a segment over a whole video; limits
 * taken for images; without boundaries one segment per picture, or one for images and videos together; width for
 * height; a size that is not resized; a text model that takes pictures. */
#include "program.h"

#include "estimates.h"
#include "model/pictures.h"

FIXTURE(make_folder, remove_folder);

TEST(greatest_image)
{
    static const int64_t grid[1][3] = { { 1, 48, 48 } };
    static const struct literal literals[] = {
        { "flops_vision.patch_embed", 6936330240 },
        { "flops_vision.linears", 2899102924800 },
        { "flops_vision.attention", 869730877440 },
        { "flops_vision.projector", 427617681408 },
        { "flops_vision.total", 4203387813888 },
        { "flops_vision.patches", 2304 },
        { "flops_vision.tokens", 576 },
    };
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    r.grids = grid;
    r.grid_count = 1;
    struct m3_estimate e = estimate(&config, &r);
    CHECK(&e, literals);
    ck_assert_int_eq(m3_whole(&e, "flops_decode.total"), 217572704256); /* of text: the same */
    r.grid_count = 0;
    e = estimate(&config, &r);
    json_t *summary = m3_estimate_json(&e);
    ck_assert(json_is_null(json_object_get(summary, "flops_vision")));
    json_decref(summary);
    m3_config_free(&config);
}

enum { MOST = 4 };

static const struct {
    int count;
    int64_t grids[MOST][3]; /* images first */
} cases[] = {
    { 1, { { 1, 2, 2 } } },
    { 1, { { 4, 4, 6 } } },
    { 1, { { 5, 4, 6 } } },
    { 1, { { 13, 2, 4 } } },
    { 3, { { 1, 4, 6 }, { 1, 2, 10 }, { 1, 6, 6 } } },
    { 4, { { 1, 4, 6 }, { 1, 2, 4 }, { 3, 2, 2 }, { 9, 4, 2 } } },
};

/* Every patch of a segment meets every other: 2 products of the tower's width, 2 FLOPs each. The segments are those of
 * the forward pass. */
LOOP_TEST(segments_of_the_engine, sizeof cases / sizeof cases[0])
{
    const int count = cases[_i].count;
    struct m3_config config;
    read_config(&config, "golden/tiny/model/config.json");
    const struct m3_vision_config *v = &config.vision;
    struct m3_pictures pictures = { .grid = calloc(MOST, sizeof *pictures.grid) };
    memcpy(pictures.grid, cases[_i].grids, sizeof cases[_i].grids);
    for (int i = 0; i < count; i++) {
        int64_t patches = cases[_i].grids[i][0] * cases[_i].grids[i][1] * cases[_i].grids[i][2];
        pictures.P += patches;
        if (cases[_i].grids[i][0] == 1) pictures.images++;
        else pictures.videos++;
    }
    int64_t *ends = malloc((size_t)pictures.P * sizeof *ends);
    int64_t *places = malloc((size_t)pictures.P * 3 * sizeof *places);
    for (enum m3_vision_boundary b = M3_BOUNDARY_SEGMENT; b <= M3_BOUNDARY_NONE; b++) {
        int64_t segments = m3_pictures_segments(ends, places, &pictures, v, b), flops = 0, met = 0;
        for (int64_t s = 0; s < segments; s++) {
            int64_t patches = ends[s] - (s ? ends[s - 1] : 0);
            for (int64_t a = 0; a < patches; a++) met += patches;
        }
        flops = met * v->layers * 2 * 2 * v->W;
        struct m3_estimate_request r = request(8, 1, "bf16", "bf16");
        r.grids = cases[_i].grids;
        r.grid_count = count;
        r.boundary = b;
        struct m3_estimate e = estimate(&config, &r);
        ck_assert_int_eq(m3_whole(&e, "flops_vision.attention"), flops);
        ck_assert_int_eq(m3_whole(&e, "flops_vision.patches"), pictures.P);
        ck_assert_int_eq(m3_whole(&e, "flops_vision.tokens") * v->spatial_merge * v->spatial_merge, pictures.P);
        int64_t others = m3_whole(&e, "flops_vision.patch_embed") + m3_whole(&e, "flops_vision.linears") +
                         m3_whole(&e, "flops_vision.projector");
        ck_assert_int_eq(m3_whole(&e, "flops_vision.total"), flops + others);
    }
    free(ends);
    free(places);
    m3_pictures_free(&pictures);
    m3_config_free(&config);
}

/* The options: pixels are resized, pictures add up. */
TEST(options)
{
    static const struct {
        const char *options;
        int patches, tokens;
    } asked[] = {
        { "--image 672x672", 2304, 576 },
        { "--image 4000x3000", 40 * 54, 540 },        /* by sqrt(12000000 / 451584), down to multiples of 28 */
        { "--image 1x1", 16, 4 },
        { "--image 100x60 --grid 3,4,8", 32 + 96, 8 + 24 },
        { "--grid 1048576,4,4", 16777216, 4194304 },
    };
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        char text[100];
        ck_assert_int_eq(m3ref("estimate " M3 " %s --json", asked[i].options), 0);
        snprintf(text, sizeof text, "\"patches\":%d,\"tokens\":%d}", asked[i].patches, asked[i].tokens);
        ck_assert(has("out", text));
    }
    ck_assert_int_eq(m3ref("estimate " M3 " --image 672x448 --image 448x672"), 0);
    ck_assert(has("out", "FLOPs of the pictures: 3,072 patches, 768 tokens"));
    ck_assert_int_eq(m3ref("estimate " M3 " --image 672x672 --image 672x672 --explain flops_vision.attention "
                           "--set vision_boundary=none"),
                     0);
    ck_assert(has("out", "  = 32 * 4 * 1280 * 21233664\n"));
    ck_assert_int_eq(m3ref("estimate " M3 " --image 672x672 --image 672x672 --explain flops_vision.attention"), 0);
    ck_assert(has("out", "  = 32 * 4 * 1280 * 10616832\n"));
}

static const struct {
    const char *arguments, *says;
} wrong[] = {
    { M3 " --image 672", "--image: got 672, expected WIDTHxHEIGHT" },
    { M3 " --image 0x5", "--image: got 0x5" },
    { M3 " --image 5x5x5", "--image: got 5x5x5" },
    { M3 " --image 201x1", "--image: got 201 x 1 pixels, expected sides of a ratio of at most 200" },
    { M3 " --image 1048577x1048577", "--image: got 1048577x1048577" },
    { M3 " --image photo.png", "--image: got photo.png" },
    { M3 " --grid 1,3,4", "--grid: got 1,3,4, expected T,H,W, each from 1 to 1048576, H and W in multiples of 2" },
    { M3 " --grid 1,4", "--grid: got 1,4" },
    { M3 " --grid 1,4,4,", "--grid: got 1,4,4," },
    { M3 " --grid 1048576,1048576,2", "--grid: got 2199023255552 patches, expected at most 2^40" },
    { M3 " --grid 1,1048576,1048576", "a figure beyond 2^63" },
    { M3 " --set vision_boundary=some", "vision_boundary: got some" },
    { M3 " --set pool=lse", "--set: got pool=lse, expected mtp_join=... or vision_boundary=..." },
    { "golden/configs/minimax-m2.7.json --image 4x4", "--image: got pictures, expected none: the model has no vision" },
    { "golden/configs/llama-3-70b.json --grid 1,4,4", "--grid: got pictures, expected none" },
};

LOOP_TEST(errors, sizeof wrong / sizeof wrong[0])
{
    ck_assert_int_eq(m3ref("estimate %s", wrong[_i].arguments), 64);
    ck_assert(has("err", wrong[_i].says));
    ck_assert_int_eq(error_lines(), 1);
}
