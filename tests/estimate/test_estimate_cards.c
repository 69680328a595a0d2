/* Memory, cards, roofline and the spread of experts: the released model against literals worked out by hand, small ones
 * against every choice of experts.
 *
 * Seen to fail with: cards rounded down; a batch below 0; the stored size over one that was asked for; scales of
 * [128,128] for [1,32]; index keys read only in selected blocks; experts read as K for each token; the FP8 peak of a
 * card without one; another bandwidth; the bound the wrong way round; a fullest card that holds one more; K = E; the
 * tower, or the embedding, among the weights read as stored; experts of the fullest card once, not in each layer; a
 * whole sequence on each card; all weights shared out; tails as differences of sums; a card that just suffices refused,
 * or one with a byte missing let through. */
#include "estimates.h"

static const struct m3_census *stored(struct m3_census *census, const struct m3_config *config)
{
    m3_census_of_config(census, config, 0, M3_MTP_CONCAT);
    return census;
}

TEST(memory_and_cards)
{
    static const struct {
        const char *gpu;
        int reported;
        int64_t weights, all;
    } cards[] = {
        { "a100", 0, 11, 13 }, { "a100", 1, 10, 12 }, { "h100", 0, 11, 13 }, { "h100", 1, 10, 12 },
        { "h200", 0, 7, 8 },   { "h200", 1, 6, 7 },   { "b200", 0, 5, 6 },
    };
    struct m3_config config;
    struct m3_census census;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    r.files = stored(&census, &config);
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        r.gpu = m3_gpu_named(cards[i].gpu);
        r.card_bytes = cards[i].reported ? r.gpu->reported_bytes : r.gpu->vendor_bytes;
        struct m3_estimate e = estimate(&config, &r);
        const int64_t weights = m3_whole(&e, "min_cards_weights"), all = m3_whole(&e, "min_cards");
        ck_assert_msg(weights == cards[i].weights && all == cards[i].all, "%s: %lld and %lld cards", cards[i].gpu,
                      (long long)weights, (long long)all);
        ck_assert_int_eq(m3_whole(&e, "weight_bytes_stored"), 854172958720);
        ck_assert_int_eq(m3_whole(&e, "weight_bytes_in_memory"), 854172958720);
        ck_assert_int_eq(m3_whole(&e, "memory_bytes"), 1003691507712);
        ck_assert_int_eq(m3_whole(&e, "memory_bytes_without_activations"), 1003691507712 - 5368709120);
    }
    r.weights_asked = 1;
    ck_assert_int_eq(whole(&config, &r, "memory_bytes"), 1003691507712 - 854172958720 + 854080280320);

    r = request(M, 1, "int4", "fp8"); /* 287.6 GB with 2 GB of activations */
    r.activation_bytes = 2000000000;
    check_decimals(quantity(&config, &r, "memory_bytes") / 1e9, 287.6, 1, "int4 with fp8 caches");
    r = request(131072, 1, "bf16", "bf16");
    r.files = &census;
    r.activation_bytes = 2000000000;
    check_decimals(quantity(&config, &r, "memory_bytes") / 1e9, 874.2, 1, "131,072 places");
    m3_config_free(&config);
}

static const struct {
    const char *config, *weights, *kv;
    int stored;
    int64_t batches[3]; /* of 141 GB, 143,771 MiB, 141 GiB */
} largest[] = {
    { M3, "bf16", "bf16", 1, { 1, 2, 2 } }, { M3, "bf16", "fp8", 1, { 3, 4, 4 } },
    { M3, "fp8", "bf16", 0, { 4, 5, 5 } },  { M3_MXFP8, "bf16", "bf16", 1, { 4, 5, 5 } },
    { M3, "fp8", "fp8", 0, { 9, 10, 10 } }, { M3_MXFP8, "bf16", "fp8", 1, { 8, 9, 9 } },
    { M3, "int4", "bf16", 0, { 6, 6, 6 } }, { M3, "int4", "fp8", 0, { 11, 12, 12 } },
};

LOOP_TEST(largest_batch, sizeof largest / sizeof largest[0])
{
    static const int64_t cards[] = { 141000000000, 150754820096, 151397597184 };
    struct m3_config config;
    struct m3_census census;
    read_config(&config, largest[_i].config);
    struct m3_estimate_request r = request(M, 1, largest[_i].weights, largest[_i].kv);
    r.gpu = m3_gpu_named("h200");
    ck_assert_int_eq(r.gpu->vendor_bytes, cards[0]);
    ck_assert_int_eq(r.gpu->reported_bytes, cards[1]);
    r.gpus = 8;
    if (largest[_i].stored) r.files = stored(&census, &config);
    for (int i = 0; i < 3; i++) {
        r.card_bytes = cards[i];
        ck_assert_int_eq(whole(&config, &r, "max_batch"), largest[_i].batches[i]);
    }
    r.gpus = 1;
    ck_assert_int_eq(whole(&config, &r, "max_batch"), 0);
    m3_config_free(&config);
}

TEST(table_of_cards)
{
    static const struct {
        const char *name;
        int64_t bf16, fp8, bandwidth, vendor, reported;
        double ridge16, ridge8;
    } cards[] = {
        { "a100", 312000000000000, 0, 2000000000000, 80000000000, 85899345920, 156.00, 156.00 },
        { "h100", 989000000000000, 1979000000000000, 3350000000000, 80000000000, 85520809984, 295.22, 590.75 },
        { "h200", 989000000000000, 1979000000000000, 4800000000000, 141000000000, 150754820096, 206.04, 412.29 },
        { "b200", 2250000000000000, 4500000000000000, 8000000000000, 180000000000, 0, 281.25, 562.50 },
    };
    struct m3_config config;
    read_config(&config, M3);
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        const struct m3_gpu *gpu = m3_gpu_named(cards[i].name);
        ck_assert(gpu->bf16_flops == cards[i].bf16 && gpu->fp8_flops == cards[i].fp8);
        ck_assert_int_eq(gpu->bandwidth, cards[i].bandwidth);
        ck_assert(gpu->vendor_bytes == cards[i].vendor && gpu->reported_bytes == cards[i].reported);
        for (int fp8 = 0; fp8 < 2; fp8++) {
            struct m3_estimate_request r = request(K, 1, fp8 ? "fp8" : "bf16", "bf16");
            r.gpu = gpu;
            r.card_bytes = gpu->vendor_bytes;
            struct m3_estimate e = estimate(&config, &r);
            json_t *summary = m3_estimate_json(&e);
            check_decimals(json_number_value(m3_estimate_value(summary, "ridge")),
                           fp8 ? cards[i].ridge8 : cards[i].ridge16, 2, "ridge");
            json_decref(summary);
        }
    }
    ck_assert_ptr_null(m3_gpu_named("h100x"));
    ck_assert_ptr_null(m3_gpu_named(""));
    ck_assert_str_eq(m3_gpu_named("RTX PRO 6000")->name, "rtx-pro-6000");
    ck_assert_str_eq(m3_gpu_named("MI355X")->name, "mi355x");
    ck_assert_int_eq(m3_gpu_named("l40s")->bf16_flops, 362050000000000);
    m3_config_free(&config);
}

static const struct {
    const char *weights, *kv;
    int64_t bytes;
    double intensity, one_ms, eight_ms;
} rooflines[] = {
    { "bf16", "bf16", 71448908544, 3.0452, 14.885, 1.861 }, { "fp8", "bf16", 46715627904, 4.6574, 9.732, 1.217 },
    { "int4", "bf16", 34348987584, 6.3342, 7.156, 0.895 },  { "fp8", "fp8", 35724454272, 6.0903, 7.443, 0.930 },
    { "int4", "fp8", 23357813952, 9.3148, 4.866, 0.608 },
};

LOOP_TEST(roofline_by_dtype, sizeof rooflines / sizeof rooflines[0])
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, rooflines[_i].weights, rooflines[_i].kv);
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    struct m3_estimate e = estimate(&config, &r);
    const struct literal literals[] = { { "decode_read_bytes.total", rooflines[_i].bytes },
                                        { "experts_read_per_layer", 4 } };
    CHECK(&e, literals);
    check_decimals(m3_quantity(&e, "arithmetic_intensity"), rooflines[_i].intensity, 4, "intensity");
    check_decimals(1e3 * m3_quantity(&e, "bandwidth_bound_seconds"), rooflines[_i].one_ms, 3, "one card");
    ck_assert(!m3_compute_bound(&e));
    r.gpus = 8;
    check_decimals(1e3 * quantity(&config, &r, "bandwidth_bound_seconds"), rooflines[_i].eight_ms, 3, "eight cards");
    if (_i == 0) {
        static const struct literal first[] = {
            { "decode_read_bytes.weights", 49466561280 },
            { "decode_read_bytes.kv_full", 6442450944 },
            { "decode_read_bytes.kv_selected", 239075328 },
            { "decode_read_bytes.index_keys", 15300820992 },
        };
        CHECK(&e, first);
        check_decimals(1e3 * quantity(&config, &r, "compute_bound_seconds"), 0.02750, 5, "FLOPs over the peak");
    }
    m3_config_free(&config);
}

static const struct {
    int64_t batch;
    double experts, weights, caches, intensity, ms, tokens;
} batches[] = {
    { 1, 4.000, 49.47, 21.98, 3.045, 1.86, 537 },         { 2, 7.875, 74.48, 43.96, 3.674, 3.08, 648 },
    { 4, 15.266, 122.19, 87.93, 4.142, 5.47, 731 },       { 8, 28.710, 208.97, 175.86, 4.523, 10.02, 798 },
    { 16, 50.981, 352.73, 351.72, 4.942, 18.35, 872 },    { 32, 81.657, 550.74, 703.44, 5.551, 32.66, 980 },
    { 64, 111.221, 741.58, 1406.87, 6.481, 55.95, 1144 }, { 128, 125.801, 835.69, 2813.74, 7.631, 95.04, 1347 },
};

LOOP_TEST(roofline_by_batch, sizeof batches / sizeof batches[0])
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, batches[_i].batch, "bf16", "bf16");
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    r.gpus = 8;
    struct m3_estimate e = estimate(&config, &r);
    check_decimals(m3_quantity(&e, "experts_read_per_layer"), batches[_i].experts, 3, "experts");
    check_decimals(m3_quantity(&e, "decode_read_bytes.weights") / 1e9, batches[_i].weights, 2, "weights");
    const double caches = m3_quantity(&e, "decode_read_bytes.total") - m3_quantity(&e, "decode_read_bytes.weights");
    check_decimals(caches / 1e9, batches[_i].caches, 2, "caches");
    check_decimals(m3_quantity(&e, "arithmetic_intensity"), batches[_i].intensity, 3, "intensity");
    check_decimals(1e3 * m3_quantity(&e, "bandwidth_bound_seconds"), batches[_i].ms, 2, "time");
    check_decimals((double)r.batch / m3_quantity(&e, "bandwidth_bound_seconds"), batches[_i].tokens, 0,
                   "tokens per second");
    m3_config_free(&config);
}

/* A long batch of a short context is bound by FLOPs: D(B) -> E, and weights are read once for all. */
TEST(compute_bound)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(1, 1000000, "bf16", "bf16");
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    struct m3_estimate e = estimate(&config, &r);
    ck_assert(m3_compute_bound(&e));
    check_decimals(m3_quantity(&e, "experts_read_per_layer"), 128, 9, "experts");
    m3_config_free(&config);
}

TEST(experts_over_cards)
{
    static const struct {
        int64_t gpus;
        double p[4], fullest, hit;
    } spreads[] = {
        { 2, { 0.00000, 0.38098, 0.49991, 0.11912 }, 2.73814, 1.88088 },
        { 4, { 0.09829, 0.70969, 0.17854, 0.01348 }, 2.10721, 2.75442 },
        { 8, { 0.43003, 0.52157, 0.04703, 0.00136 }, 1.61974, 3.34247 },
        { 16, { 0.69879, 0.29102, 0.01008, 0.00010 }, 1.31150, 3.67969 },
    };
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(K, 1, "bf16", "bf16");
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    for (size_t i = 0; i < sizeof spreads / sizeof spreads[0]; i++) {
        r.gpus = spreads[i].gpus;
        struct m3_estimate e = estimate(&config, &r);
        ck_assert(e.has_spread);
        for (int j = 0; j < 4; j++) check_decimals(e.p_fullest[j], spreads[i].p[j], 5, "fullest card");
        check_decimals(m3_quantity(&e, "expert_spread.expected_fullest"), spreads[i].fullest, 5, "expected fullest");
        check_decimals(m3_quantity(&e, "expert_spread.expected_cards_hit"), spreads[i].hit, 5, "cards hit");
    }
    r.gpus = 3;
    ck_assert(!estimate(&config, &r).has_spread);
    m3_config_free(&config);
}

/* Weights of one token as the releases store them. */
TEST(stored_reads)
{
    static const struct {
        const char *path;
        int64_t bytes;
    } releases[] = {
        { M3, 49556229120 },
        { M3_MXFP8, 26830826496 },
    };
    for (int i = 0; i < 2; i++) {
        struct m3_config config;
        struct m3_census census;
        read_config(&config, releases[i].path);
        struct m3_estimate_request r = request(M, 1, "int4", "bf16");
        const struct literal literals[] = {
            { "decode_read_bytes_stored.weights", releases[i].bytes },
            { "decode_read_bytes_stored.total", releases[i].bytes + INT64_C(21982347264) },
        };
        struct m3_estimate e = estimate(&config, &r);
        CHECK(&e, literals);
        r.files = stored(&census, &config);
        census.of[M3_COMPONENT_NORMS].bytes += 1000; /* the files have the word, if there are any */
        e = estimate(&config, &r);
        ck_assert(m3_quantity(&e, "decode_read_bytes_stored.weights") == (double)(releases[i].bytes + 1000));
        config.tied_embeddings = 1;
        r.files = NULL;
        e = estimate(&config, &r);
        ck_assert(m3_quantity(&e, "decode_read_bytes_stored.weights") == (double)releases[i].bytes);
        m3_config_free(&config);
    }
}

static int fits(const struct m3_config *config, const struct m3_estimate_request *request)
{
    struct m3_estimate e = estimate(config, request);
    return m3_estimate_fits(&e);
}

/* Eight cards with 16 experts each. */
TEST(experts_shared_out)
{
    struct m3_config config;
    struct m3_census census;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    r.gpus = 8;
    r.files = stored(&census, &config);
    struct m3_estimate e = estimate(&config, &r);
    static const struct literal literals[] = {
        { "expert_parallel.weight_bytes_per_card", 27835946752 + 103280541696 },
        { "expert_parallel.weight_bytes_per_card_stored", 131209166848 },
        { "expert_parallel.free_bytes_per_card", 141000000000 - 131209166848 },
        { "critical_path.other_bytes", 23646425856 },
    };
    CHECK(&e, literals);
    ck_assert(!m3_estimate_fits(&e)); /* 149.5 GB over eight cards want 18.69 GB each */
    ck_assert(!isnan(m3_quantity(&e, "critical_path.expert_bytes")));
    check_decimals(m3_quantity(&e, "critical_path.expert_bytes"), 10455460612, 0, "experts of the fullest card");
    check_decimals(1e3 * m3_quantity(&e, "critical_path.replicated_seconds"), 7.105, 3, "replicated");
    check_decimals(1e3 * m3_quantity(&e, "critical_path.sharded_seconds"), 2.794, 3, "sharded");
    check_decimals(1e3 * m3_quantity(&e, "critical_path.cache_seconds"), 0.572, 3, "caches");
    check_decimals(1e3 * m3_quantity(&e, "critical_path.replicated_seconds_with_caches"), 7.677, 3, "both, replicated");
    json_t *summary = m3_estimate_json(&e);
    check_decimals(1e3 * json_number_value(m3_estimate_value(summary, "critical_path.sharded_seconds_with_caches")),
                   3.366, 3, "sharded, with caches");
    json_decref(summary);

    r.files = NULL; /* a release takes as much; nominal bytes count for the room */
    ck_assert_int_eq(whole(&config, &r, "expert_parallel.weight_bytes_per_card_stored"), 131209166848);
    ck_assert_int_eq(whole(&config, &r, "expert_parallel.free_bytes_per_card"),
                     141000000000 - 27835946752 - 103280541696);
    r.files = &census;

    r.context = 300 * K; /* 42.2 GB + 5 GiB are 5.95 GB for each card */
    ck_assert(fits(&config, &r));
    r.card_bytes = 131209166848 + (42231398400 + 5368709120) / 8;
    ck_assert(fits(&config, &r));
    r.card_bytes--;
    ck_assert(!fits(&config, &r));
    r.card_bytes = 100000000000;
    ck_assert(!fits(&config, &r));
    ck_assert_int_eq(whole(&config, &r, "expert_parallel.free_bytes_per_card"), 100000000000 - 131209166848);
    r.batch = 2;
    ck_assert(isnan(quantity(&config, &r, "critical_path.expert_bytes")));
    r.gpus = 3;
    e = estimate(&config, &r);
    summary = m3_estimate_json(&e);
    ck_assert(json_is_null(m3_estimate_value(summary, "expert_parallel")));
    ck_assert(json_is_null(m3_estimate_value(summary, "critical_path")));
    json_decref(summary);
    m3_config_free(&config);
}

/* Small probabilities keep their digits. Literals: integers of any length for the coefficients of 14.6, each divided by
 * choose(E, K) as a Fraction of Python, printed to 17 digits. A j of 0 ends a row. */
static const struct {
    int64_t E, K, gpus;
    /* clang-format off */
    struct { int j; double p; } fullest[8];
    double expected, hit;
} tails[] = {
    { 256, 8, 16,
      { { 1, 0.13493074865293864 }, { 2, 0.71834976326944344 }, { 3, 0.13674053881962767 },
        { 4, 0.0095817121655250598 }, { 5, 0.00038815928888418595 }, { 6, 8.9700676002648012e-06 },
        { 7, 1.0723332456981233e-07 }, { 8, 5.0265620892099528e-10 } }, 2.0221741118173528, 6.5232795335369289 },
    { 128, 4, 16,
      { { 1, 0.69879265091863518 }, { 2, 0.29102362204724408 }, { 3, 0.010078740157480314 },
        { 4, 0.00010498687664041995 } }, 1.311496062992126, 3.6796850393700788 },
    { 4096, 128, 64,
      { { 4, 0.021529927498095337 }, { 5, 0.35462989335959932 }, { 8, 0.03791937979044821 },
        { 16, 2.6126808517154104e-09 }, { 32, 6.0636749236829472e-31 }, { 51, 1.3984020759658739e-67 },
        { 64, 2.0547266975297716e-103 } }, 5.8641215270190541, 55.744161560204233 },
    { 65536, 128, 32768, { { 1, 0.88314553463082146 }, { 2, 0.11685446536917854 } }, 1.1168544653691785,
      127.87597467002365 },
};
/* clang-format on */

static int near(double got, double expected) { return fabs(got - expected) <= 1e-12 * expected; }

LOOP_TEST(tails_of_the_spread, sizeof tails / sizeof tails[0])
{
    struct m3_config config;
    struct m3_census census;
    read_config(&config, "golden/tiny/model/config.json");
    stored(&census, &config);
    struct m3_estimate_request r = request(K, 1, "bf16", "bf16");
    r.config = &census;
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    r.gpus = tails[_i].gpus;
    config.E = tails[_i].E;
    config.K = tails[_i].K;
    struct m3_estimate e = estimate(&config, &r);
    ck_assert(e.has_spread);
    for (int i = 0; i < 8 && tails[_i].fullest[i].j; i++) {
        const int j = tails[_i].fullest[i].j;
        ck_assert_msg(near(e.p_fullest[j - 1], tails[_i].fullest[i].p), "%d: got %.17g, expected %.17g", j,
                      e.p_fullest[j - 1], tails[_i].fullest[i].p);
    }
    ck_assert(near(m3_quantity(&e, "expert_spread.expected_fullest"), tails[_i].expected));
    ck_assert(near(m3_quantity(&e, "expert_spread.expected_cards_hit"), tails[_i].hit));
    m3_config_free(&config);
}

/* Every choice of 5 experts out of 12, laid over 1, 2, 3, 4, 6, 12 cards. */
TEST(experts_over_cards_by_counting)
{
    enum { E = 12, CHOSEN = 5 };
    struct m3_config config;
    read_config(&config, "golden/tiny/model/config.json");
    config.E = E;
    config.K = CHOSEN;
    for (int cards = 1; cards <= E; cards++) {
        struct m3_estimate_request r = request(K, 1, "bf16", "bf16");
        r.gpu = m3_gpu_named("h200");
        r.card_bytes = 1;
        r.gpus = cards;
        struct m3_estimate e = estimate(&config, &r);
        ck_assert_int_eq(e.has_spread, E % cards == 0);
        if (!e.has_spread) continue;
        double subsets = 0, with[CHOSEN + 1] = { 0 }, hit = 0, fullest = 0;
        for (int set = 0; set < 1 << E; set++) {
            if (__builtin_popcount((unsigned)set) != CHOSEN) continue;
            int on[E] = { 0 }, most = 0, touched = 0;
            for (int x = 0; x < E; x++) on[x / (E / cards)] += set >> x & 1;
            for (int c = 0; c < cards; c++) {
                most = on[c] > most ? on[c] : most;
                touched += on[c] > 0;
            }
            subsets++;
            with[most]++;
            hit += touched;
            fullest += most;
        }
        ck_assert(subsets == 792);
        for (int j = 1; j <= CHOSEN; j++) ck_assert(fabs(e.p_fullest[j - 1] - with[j] / subsets) < 1e-13);
        ck_assert(fabs(m3_quantity(&e, "expert_spread.expected_fullest") - fullest / subsets) < 1e-12);
        ck_assert(fabs(m3_quantity(&e, "expert_spread.expected_cards_hit") - hit / subsets) < 1e-12);

        config.K = E; /* all of them: each card holds its share */
        e = estimate(&config, &r);
        for (int j = 1; j <= E; j++) ck_assert(fabs(e.p_fullest[j - 1] - (j == E / cards)) < 1e-13);
        ck_assert(fabs(m3_quantity(&e, "expert_spread.expected_cards_hit") - cards) < 1e-12);
        config.K = CHOSEN;
    }
    m3_config_free(&config);
}
