/* Estimated FLOPs against those that PyTorch's counter finds in the public code (golden/flops.json, made by
 * scripts/golden/flops.py): decoding on a cache, prefill, pictures. That code multiplies a sparse layer in full and
 * masks; so its main branch counts 4 Q D T in each sparse layer, and the angles of RoPE are a product more,
 * 2 (R/2) a place.
 *
 * Seen to fail with: a router that counts E H once; index keys for each group, index queries for each head; lm_head for
 * the last place alone; K + 1 routed experts; a causal half in the prefill; a boundary between images; linears with
 * biases; a count of the file changed. */
#include "estimates.h"

static json_t *load(void)
{
    json_t *counts = json_load_file("golden/flops.json", 0, NULL);
    ck_assert_ptr_nonnull(counts);
    return counts;
}

static void check(const json_t *row, const char *key, int64_t got)
{
    const json_t *want = json_object_get(json_object_get(row, "flops"), key);
    ck_assert_msg(json_is_integer(want) && json_integer_value(want) == got,
                  "%s, context %lld: %s: got %lld, expected "
                  "%lld",
                  json_string_value(json_object_get(row, "model")),
                  (long long)json_integer_value(json_object_get(row, "context")), key, (long long)got,
                  (long long)json_integer_value(want));
}

static void read_model(struct m3_config *config, const json_t *row)
{
    char path[100];
    snprintf(path, sizeof path, "golden/%s/model/config.json", json_string_value(json_object_get(row, "model")));
    read_config(config, path);
}

static int64_t member(const struct m3_estimate *e, const char *group, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", group, name);
    return m3_whole(e, key);
}

/* `places` go through the model, each pair of which meets in `pairs`. */
static void check_text(const json_t *row, const struct m3_estimate *e, const char *group, int64_t places, int64_t pairs)
{
    static const char *const same[] = { "full_attention", "projections", "index_projections", "dense_mlp", "lm_head" };
    static const char *const moe[] = { "shared", "routed", "router" };
    const struct m3_config *c = e->config;
    const int64_t masked = e->sparse * 4 * c->Q * c->D * pairs, angles = 2 * (c->R / 2) * places;
    char key[64];
    for (int i = 0; i < 5; i++) check(row, same[i], member(e, group, same[i]));
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "moe_%s", moe[i]);
        check(row, key, places * member(e, "flops_decode_moe", moe[i]));
    }
    check(row, "sparse_attention", masked);
    check(row, "index_scores", member(e, group, "msa_index"));
    check(row, "total", member(e, group, "total") - member(e, group, "msa_main") + masked + angles);
}

TEST(decoding)
{
    json_t *counts = load(), *row;
    size_t i;
    const json_t *rows = json_object_get(counts, "decode");
    ck_assert_uint_eq(json_array_size(rows), 7);
    json_array_foreach((json_t *)rows, i, row)
    {
        struct m3_config config;
        read_model(&config, row);
        int64_t T = json_integer_value(json_object_get(row, "context"));
        struct m3_estimate_request r = request(T, 1, "bf16", "bf16");
        struct m3_estimate e = estimate(&config, &r);
        check_text(row, &e, "flops_decode", 1, T);
        m3_config_free(&config);
    }
    json_decref(counts);
}

TEST(prefills)
{
    json_t *counts = load(), *row;
    size_t i;
    const json_t *rows = json_object_get(counts, "prefill");
    ck_assert_uint_eq(json_array_size(rows), 2);
    json_array_foreach((json_t *)rows, i, row)
    {
        struct m3_config config;
        read_model(&config, row);
        int64_t T = json_integer_value(json_object_get(row, "context"));
        struct m3_estimate_request r = request(T, 1, "bf16", "bf16");
        r.all_logits = r.no_causal_skip = 1;
        struct m3_estimate e = estimate(&config, &r);
        check_text(row, &e, "flops_prefill", T, T * T);
        m3_config_free(&config);
    }
    json_decref(counts);
}

TEST(pictures)
{
    json_t *counts = load(), *row;
    size_t i;
    const json_t *rows = json_object_get(counts, "pictures");
    ck_assert_uint_eq(json_array_size(rows), 4);
    json_array_foreach((json_t *)rows, i, row)
    {
        const json_t *list = json_object_get(row, "grids");
        struct m3_config config;
        int64_t grids[4][3] = { 0 };
        read_model(&config, row);
        for (size_t g = 0; g < json_array_size(list); g++)
            for (size_t k = 0; k < 3; k++) grids[g][k] = json_integer_value(json_array_get(json_array_get(list, g), k));
        struct m3_estimate_request r = request(1, 1, "bf16", "bf16");
        r.grids = (const int64_t (*)[3])grids;
        r.grid_count = (int64_t)json_array_size(list);
        r.boundary = M3_BOUNDARY_NONE;
        struct m3_estimate e = estimate(&config, &r);
        check(row, "patch_embed", m3_whole(&e, "flops_vision.patch_embed"));
        check(row, "linears", m3_whole(&e, "flops_vision.linears"));
        check(row, "attention", m3_whole(&e, "flops_vision.attention"));
        check(row, "projector", m3_whole(&e, "flops_vision.projector"));
        check(row, "total", m3_whole(&e, "flops_vision.total"));
        m3_config_free(&config);
    }
    json_decref(counts);
}
