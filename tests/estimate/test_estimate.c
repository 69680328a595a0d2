/* Parameters, FLOPs and caches of the released model against literals that were worked out by hand from its
 * configuration, its file listings and the formulas of SPEC 14; key counts of small models against plain counting.
 *
 * Seen to fail with: norms of heads and index in other components; lm_head left out of the active parameters; the
 * router as BF16; scale tensors uncounted; the own block counted whole; the closed form of S(T) used below N block,
 * or with a wrong rest; no projection of index keys, or one in the model with full attention; a prefill over the
 * square; index keys in every layer; [128,128] for [1,32]; a figure beyond 2^63 let through; ratios over sparse
 * layers alone; additive modules with a norm more; logits of every place in decoding too; blocks rounded down; a tied
 * embedding active twice. */
#include "estimates.h"

TIMEOUT(60);

TEST(parameters)
{
    static const struct literal literals[] = {
        { "tensors", 23416 },
        { "tensors_unquantised", 23416 },
        { "params_total", 427040140160 },
        { "params_by_component.embedding", 1229193216 },
        { "params_by_component.lm_head", 1229193216 },
        { "params_by_component.attention", 6417285120 },
        { "params_by_component.indexer", 224133120 },
        { "params_by_component.dense_mlp", 679477248 },
        { "params_by_component.moe_routed", 413122166784 },
        { "params_by_component.moe_shared", 3227516928 },
        { "params_by_component.moe_router", 44826624 },
        { "params_by_component.moe_router_bias", 7296 },
        { "params_by_component.norms", 773376 },
        { "params_by_component.vision_tower", 631185920 },
        { "params_by_component.projector", 234381312 },
        { "params_active_text", 24733280640 },
        { "params_active_by_convention.layers", 23504087424 },
        { "params_active_by_convention.layers_head", 24733280640 },
        { "params_active_by_convention.layers_head_embedding", 25962473856 },
        { "params_active_by_convention.layers_head_embedding_vision", 26828041088 },
        { "weight_bytes", 854080280320 },
        { "weight_bytes_released", 854172958720 },
    };
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    CHECK(&e, literals);
    ck_assert_int_eq(m3_whole(&e, "weight_bytes_stored"), -1);
    ck_assert_int_eq(e.full, 3);
    ck_assert_int_eq(e.sparse, 57);

    r.weights = m3_format_named("fp8");
    ck_assert_int_eq(whole(&config, &r, "weight_bytes"), 427040140160);
    r.weights = m3_format_named("int4");
    ck_assert_int_eq(whole(&config, &r, "weight_bytes"), 213520070080);
    m3_config_free(&config);
}

/* lm_head is the embedding: one matrix less, and the whole of it counts once. */
TEST(tied_embeddings)
{
    static const struct literal literals[] = {
        { "tensors", 23415 },
        { "params_total", 425810946944 },
        { "params_by_component.lm_head", 0 },
        { "params_active_by_convention.layers", 23504087424 },
        { "params_active_text", 24733280640 },
        { "params_active_by_convention.layers_head_embedding", 24733280640 },
        { "params_active_by_convention.layers_head_embedding_vision", 25598847872 },
    };
    struct m3_config config;
    read_config(&config, M3);
    config.tied_embeddings = 1;
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    CHECK(&e, literals);
    m3_config_free(&config);
}

/* 22,422 quantised matrices with one scale tensor each, 13,239,705,600 bytes of scales. */
TEST(parameters_of_the_mxfp8_release)
{
    static const struct literal literals[] = {
        { "tensors", 45838 },
        { "tensors_unquantised", 23416 },
        { "params_total", 427040140160 },
        { "weight_bytes_released", 443742085120 },
        { "weight_bytes", 427040140160 },
    };
    struct m3_config config;
    read_config(&config, M3_MXFP8);
    struct m3_estimate_request r = request(M, 1, "fp8", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    CHECK(&e, literals);
    m3_config_free(&config);
}

/* One module: eh_proj, three norms, a sparse layer. */
TEST(multi_token_prediction)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    for (int64_t modules = 1; modules <= 7; modules += 6) {
        r.mtp_modules = modules;
        struct m3_estimate e = estimate(&config, &r);
        ck_assert_int_eq(e.census.of[M3_COMPONENT_MTP_MODULES].parameters, modules * 7491582592);
        ck_assert_int_eq(m3_whole(&e, "params_total"), 427040140160 + modules * 7491582592);
        ck_assert_int_eq(m3_whole(&e, "kv_bytes_per_sequence.total"),
                         144149839872 + modules * (2 * 4 * 128 + 128) * 2 * M);
        ck_assert_int_eq(m3_whole(&e, "params_active_by_convention.layers"), 23504087424);
    }
    m3_config_free(&config);
}

/* The one that document 001 describes: one matrix [H,H], one norm, a layer. */
TEST(additive_modules)
{
    struct m3_config config;
    struct m3_census census;
    read_config(&config, "golden/configs/minimax-m2.7.json");
    for (int64_t modules = 1; modules <= 3; modules++) {
        struct m3_estimate_request r = request(K, 1, "bf16", "bf16");
        r.mtp_modules = modules;
        r.mtp_join = M3_MTP_ADDITIVE;
        struct m3_estimate e = estimate(&config, &r);
        ck_assert_int_eq(e.census.of[M3_COMPONENT_MTP_MODULES].parameters, modules * 3678159104);
        int64_t tensors = e.census.of[M3_COMPONENT_MTP_MODULES].tensors;
        m3_census_of_config(&census, &config, modules, M3_MTP_CONCAT);
        ck_assert_int_eq(tensors, census.of[M3_COMPONENT_MTP_MODULES].tensors - 2 * modules);
        ck_assert_int_eq(census.of[M3_COMPONENT_MTP_MODULES].parameters,
                         modules * (3678159104 + 3072 * 3072 + 2 * 3072));
    }
    m3_config_free(&config);
}

static const struct {
    int64_t T, full, index, main, total, all_full;
} by_context[] = {
    { 1, 98304, 58368, 1867776, 49467024384, 49018699776 },
    { 128, 12582912, 7471104, 239075328, 49724129280, 49268391936 },
    { 2048, 201326592, 119537664, 3825205248, 53611069440, 53043265536 },
    { 2049, 201424896, 119596032, 3587997696, 53374018560, 53045231616 },
    { 4096, 402653184, 239075328, 3825205248, 53931933696, 57069797376 },
    { 32768, 3221225472, 1912602624, 3825205248, 58424033280, 113441243136 },
    { 131072, 12884901888, 7650410496, 3825205248, 73825517568, 306714771456 },
    { 524288, 51539607552, 30601641984, 3825205248, 135431454720, 1079808884736 },
    { 1048576, 103079215104, 61203283968, 3825205248, 217572704256, 2110601035776 },
};

LOOP_TEST(flops_by_context, sizeof by_context / sizeof by_context[0])
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(by_context[_i].T, 3, "bf16", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    const struct literal literals[] = {
        { "flops_decode.full_attention", by_context[_i].full },
        { "flops_decode.msa_index", by_context[_i].index },
        { "flops_decode.msa_main", by_context[_i].main },
        { "flops_decode.projections", 12834570240 },
        { "flops_decode.index_projections", 448266240 },
        { "flops_decode.dense_mlp", 1358954496 },
        { "flops_decode.moe", 32364822528 },
        { "flops_decode.lm_head", 2458386432 },
        { "flops_decode.total", by_context[_i].total },
        { "flops_decode_linear", 49464999936 },
        { "flops_decode_moe.shared", 6455033856 },
        { "flops_decode_moe.routed", 25820135424 },
        { "flops_decode_moe.router", 89653248 },
        { "flops_decode_step", 3 * by_context[_i].total },
        { "flops_decode_all_full_attention", by_context[_i].all_full },
    };
    CHECK(&e, literals);
    int64_t attention = m3_whole(&e, "flops_decode.full_attention") + m3_whole(&e, "flops_decode.msa_index") +
                        m3_whole(&e, "flops_decode.msa_main");
    ck_assert_int_eq(m3_whole(&e, "flops_decode.total") - attention, 49464999936);
    int64_t not_multiplied =
        e.census.of[M3_COMPONENT_NORMS].parameters + e.census.of[M3_COMPONENT_MOE_ROUTER_BIAS].parameters;
    ck_assert_int_eq(m3_whole(&e, "flops_decode.total") - attention,
                     2 * (m3_whole(&e, "params_active_text") - not_multiplied));
    m3_config_free(&config);
}

TEST(keys_of_a_sparse_layer)
{
    static const int64_t keys[][2] = {
        { 1, 1 },       { 127, 127 },   { 129, 129 },   { 2047, 2047 },  { 2048, 2048 }, { 2049, 1921 },
        { 2175, 2047 }, { 2176, 2048 }, { 2177, 1921 }, { M - 1, 2047 }, { M, 2048 },
    };
    struct m3_config config;
    read_config(&config, M3);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct m3_estimate_request r = request(keys[i][0], 1, "bf16", "bf16");
        ck_assert_int_eq(whole(&config, &r, "keys_main"), keys[i][1]);
    }
    m3_config_free(&config);
}

LOOP_TEST(flops_of_a_prefill, 3)
{
    static const struct {
        int64_t T, values[9], keys;
    } columns[] = {
        { 4096,
          { 824835047424, 489745809408, 11510042591232, 52570399703040, 1836098519040, 5566277615616, 132566313074688,
            2458386432, 205366170746880 },
          6162432 },
        { 131072,
          { 844431372582912, 501381127471104, 482159471099904, 1682252790497280, 58755152609280, 178120883699712,
            4242122018390016, 2458386432, 7989225274736640 },
          258146304 },
        { 1048576,
          { 54043247068053504, 32088177946656768, 3882981148065792, 13458022323978240, 470041220874240,
            1424967069597696, 33936976147120128, 2458386432, 139304415382732800 },
          2078932992 },
    };
    static const char *const keys[] = { "full_attention", "msa_index", "msa_main", "projections", "index_projections",
                                        "dense_mlp",      "moe",       "lm_head",  "total" };
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(columns[_i].T, 1, "bf16", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    for (int i = 0; i < 9; i++) {
        char key[64];
        snprintf(key, sizeof key, "flops_prefill.%s", keys[i]);
        const struct literal literal[] = { { key, columns[_i].values[i] } };
        CHECK(&e, literal);
    }
    ck_assert_int_eq(m3_whole(&e, "keys_main_prefill"), columns[_i].keys);
    m3_config_free(&config);
}

/* Logits of every place, and kernels that mask instead of skipping. What else a prefill costs stays. */
TEST(prefill_options)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(4096, 1, "bf16", "bf16");
    r.all_logits = 1;
    struct m3_estimate e = estimate(&config, &r);
    ck_assert_int_eq(m3_whole(&e, "flops_prefill.lm_head"), 4096 * INT64_C(2458386432));
    ck_assert_int_eq(m3_whole(&e, "flops_prefill.total"), 205366170746880 + 4095 * INT64_C(2458386432));
    ck_assert_int_eq(m3_whole(&e, "flops_decode.lm_head"), 2458386432);
    r.all_logits = 0;
    r.no_causal_skip = 1;
    e = estimate(&config, &r);
    ck_assert_int_eq(m3_whole(&e, "flops_prefill.full_attention"), 3 * INT64_C(32768) * 4096 * 4096);
    ck_assert_int_eq(m3_whole(&e, "flops_prefill.msa_index"), 57 * INT64_C(1024) * 4096 * 4096);
    ck_assert_int_eq(m3_whole(&e, "flops_prefill.msa_main"), 11510042591232);
    ck_assert_int_eq(m3_whole(&e, "flops_prefill.total"),
                     205366170746880 + (3 * 32768 + 57 * 1024) * INT64_C(4096) * 4095 / 2);
    ck_assert_int_eq(m3_whole(&e, "flops_decode.full_attention"), 402653184);
    m3_config_free(&config);
}

TEST(work_that_is_no_product)
{
    static const struct literal literals[] = {
        { "other_work.block_max_comparisons", 239075328 },
        { "other_work.block_max_comparisons_per_layer", 4194304 },
        { "other_work.selection_candidates_per_layer", 32768 },
        { "other_work.selection_candidates", 57 * 32768 },
    };
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    CHECK(&e, literals);
    r.context = 129;            /* two blocks */
    e = estimate(&config, &r);
    ck_assert_int_eq(m3_whole(&e, "other_work.selection_candidates_per_layer"), 4 * 2);
    ck_assert_int_eq(m3_whole(&e, "other_work.block_max_comparisons_per_layer"), 4 * 129);
    m3_config_free(&config);
}

/* n(t) by looking at each key: it counts if its block is the own one or one of N - 1 others. S(T) is the sum. */
LOOP_TEST(keys_by_counting, 4)
{
    static const struct {
        const char *path;
        int64_t most;
    } models[] = {
        { M3, 4500 },
        { "golden/tiny/model/config.json", 60 },
        { "golden/mtp/model/config.json", 40 },
        { "golden/block128/model/config.json", 700 },
    };
    struct m3_config config;
    read_config(&config, models[_i].path);
    int64_t sum = 0;
    for (int64_t t = 1; t <= models[_i].most; t++) {
        int64_t seen = 0, own = (t - 1) / config.block;
        for (int64_t j = 0; j < t; j++) seen += own - j / config.block < config.N;
        sum += seen;
        if (config.E == 128 && t % config.block > 1) continue;      /* a walk over 23,416 tensors takes its time */
        struct m3_estimate_request r = request(t, 1, "bf16", "bf16");
        struct m3_estimate e = estimate(&config, &r);
        ck_assert_int_eq(m3_whole(&e, "keys_main"), seen);
        ck_assert_int_eq(m3_whole(&e, "keys_main_prefill"), sum);
    }
    m3_config_free(&config);
}

TEST(ratios_as_fractions)
{
    static const struct {
        const char *key;
        int64_t over, under;
    } exact[] = {
        { "ratios.main_branch", 512, 1 },
        { "ratios.layer_qk_with_index", 512, 33 },
        { "ratios.layer_attention", 512, 17 },
        { "ratios.model_attention", 2048, 167 },
        { "ratios.model_without_lm_head", 1340321, 136766 },
        { "ratios.model_with_lm_head", 13028, 1343 },
        { "ratios.layer_attention_prefill_causal", 1973792, 69145 },
    };
    static const struct {
        int64_t T;
        double layer;
    } layers[] = {
        { 2048, 0.970 },    { 4096, 1.882 },    { 8192, 3.556 },     { 32768, 10.667 },
        { 131072, 21.333 }, { 524288, 28.444 }, { 1048576, 30.118 },
    };
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    for (int i = 0; i < 7; i++) {
        const struct m3_value ratio = m3_estimate_figure(&e, exact[i].key);
        ck_assert_msg(ratio.over == exact[i].over && ratio.under == exact[i].under, "%s: got %lld/%lld", exact[i].key,
                      (long long)ratio.over, (long long)ratio.under);
        ck_assert_str_eq(m3_ratio_key(i), exact[i].key);
    }
    ck_assert_ptr_null(m3_ratio_key(7));
    json_t *summary = m3_estimate_json(&e);
    ck_assert_str_eq(json_string_value(m3_estimate_value(summary, "ratios.layer_attention.fraction")), "512/17");
    json_decref(summary);
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        r.context = layers[i].T;
        check_decimals(quantity(&config, &r, "ratios.layer_attention"), layers[i].layer, 3, "ratio of a layer");
    }
    r.context = 4096;
    check_decimals(quantity(&config, &r, "ratios.layer_attention_prefill_causal"), 1.306, 3,
                   "ratio of a prefill of 4,096");
    m3_config_free(&config);
}

static const struct {
    int64_t T, batch;
    const char *kv;
    int64_t main, index, total;
} caches[] = {
    { 4096, 1, "bf16", 503316480, 59768832, 563085312 },
    { 4096, 1, "fp8", 251658240, 29884416, 281542656 },
    { 4096, 4, "bf16", 2013265920, 239075328, 2252341248 },
    { 4096, 4, "fp8", 1006632960, 119537664, 1126170624 },
    { 131072, 1, "bf16", 16106127360, 1912602624, 18018729984 },
    { 131072, 1, "fp8", 8053063680, 956301312, 9009364992 },
    { 131072, 4, "bf16", 64424509440, 7650410496, 72074919936 },
    { 131072, 4, "fp8", 32212254720, 3825205248, 36037459968 },
    { 1048576, 1, "bf16", 128849018880, 15300820992, 144149839872 },
    { 1048576, 1, "fp8", 64424509440, 7650410496, 72074919936 },
    { 1048576, 2, "bf16", 257698037760, 30601641984, 288299679744 },
    { 1048576, 4, "bf16", 515396075520, 61203283968, 576599359488 },
    { 1048576, 4, "fp8", 257698037760, 30601641984, 288299679744 },
    { 1048576, 8, "bf16", 1030792151040, 122406567936, 1153198718976 },
};

LOOP_TEST(caches_by_dtype, sizeof caches / sizeof caches[0])
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(caches[_i].T, caches[_i].batch, "bf16", caches[_i].kv);
    struct m3_estimate e = estimate(&config, &r);
    const struct literal literals[] = {
        { "kv_bytes.main", caches[_i].main },
        { "kv_bytes.index", caches[_i].index },
        { "kv_bytes.total", caches[_i].total },
        { "kv_bytes_per_sequence.total", caches[_i].total / caches[_i].batch },
    };
    CHECK(&e, literals);
    ck_assert_int_eq(m3_whole(&e, "kv_bytes_per_sequence.total"), (r.kv->bits == 16 ? 137472 : 68736) * caches[_i].T);

    r = request(M, 1, "bf16", "bf16");
    r.index_kv = m3_format_named("fp8");
    ck_assert_int_eq(whole(&config, &r, "kv_bytes_per_sequence.total"),
                     INT64_C(127125) * (1 << 30) / 1000);       /* 127.125 GiB */
    m3_config_free(&config);
}

/* Without sparse layers there are no figures for them, and index keys have no bytes. */
TEST(no_sparse_layers)
{
    struct m3_config config;
    read_config(&config, M3);
    memset(config.sparse, 0, (size_t)config.layers);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    struct m3_estimate e = estimate(&config, &r);
    json_t *summary = m3_estimate_json(&e);
    ck_assert_ptr_null(m3_estimate_value(summary, "ratios"));
    ck_assert_int_eq(m3_whole(&e, "keys_main"), 0);
    ck_assert_int_eq(m3_whole(&e, "kv_bytes_per_sequence.index"), 0);
    ck_assert_int_eq(m3_whole(&e, "flops_decode.total"), 2110601035776);
    ck_assert_int_eq(m3_whole(&e, "flops_decode_all_full_attention"), 2110601035776);
    check_decimals(m3_quantity(&e, "decode_read_bytes.total"), 177867284736, 0, "bytes read");
    json_decref(summary);
    m3_config_free(&config);
}

/* M2.7: full attention and experts everywhere, norms over whole vectors, no shared expert, no pictures. */
TEST(forerunner)
{
    static const struct {
        int64_t T, attention, total, cache;
    } contexts[] = {
        { 131072, 199715979264, 220546203648, 33285996544 },
        { 196608, 299573968896, 320404193280, 49928994816 },
        { 204800, 312056217600, 332886441984, 52009369600 },
    };
    static const struct literal literals[] = {
        { "params_by_component.embedding", 614596608 },
        { "params_by_component.lm_head", 614596608 },
        { "params_by_component.attention", 2730491904 },
        { "params_by_component.moe_routed", 224680476672 },
        { "params_by_component.moe_shared", 0 },
        { "params_by_component.moe_router", 48758784 },
        { "params_by_component.moe_router_bias", 15872 },
        { "params_by_component.norms", 828416 },
        { "params_by_component.vision_tower", 0 },
        { "params_total", 228689764864 },
        { "params_active_by_convention.layers", 9801359872 },
        { "params_active_text", 10415956480 },
        { "params_active_by_convention.layers_head_embedding", 11030553088 },
        { "flops_decode_moe.shared", 0 },
        { "weight_bytes", 457379529728 },
    };
    struct m3_config config;
    read_config(&config, "golden/configs/minimax-m2.7.json");
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++) {
        struct m3_estimate_request r = request(contexts[i].T, 1, "bf16", "bf16");
        struct m3_estimate e = estimate(&config, &r);
        CHECK(&e, literals);
        ck_assert_int_eq(m3_whole(&e, "flops_decode.full_attention"), contexts[i].attention);
        ck_assert_int_eq(m3_whole(&e, "flops_decode.total"), contexts[i].total);
        ck_assert_int_eq(m3_whole(&e, "flops_decode_all_full_attention"), contexts[i].total);
        ck_assert_int_eq(m3_whole(&e, "kv_bytes_per_sequence.total"), contexts[i].cache);
        ck_assert_int_eq(m3_whole(&e, "keys_main"), 0);
    }
    m3_config_free(&config);
}

TEST(figures_beyond_63_bits)
{
    struct m3_config config;
    struct m3_estimate e;
    struct m3_error error = { 0 };
    read_config(&config, M3);
    struct m3_estimate_request r = request(M3_MOST_CONTEXT, M3_MOST_BATCH, "bf16", "bf16");
    ck_assert_int_eq(m3_estimate(&e, &config, &r, &error), M3_USAGE);
    ck_assert_int_eq(error.count, 1);
    m3_error_free(&error);
    m3_config_free(&config);
}
