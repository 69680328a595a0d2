/* Each explanation of m3ref estimate, one for every number of the summary: its numbers, evaluated by other arithmetic
 * than that which made the value, give the value: the formula that is printed is the number that is printed, in models
 * of every kind. What is counted, tensor by tensor or card by card, so stands against a formula; that a formula is the
 * right one is for the literals and counts of the tests beside this one.
 *
 * Seen to fail with: a wrong formula of a figure that is counted; a formula printed for another condition than the one
 * that it was evaluated under; a sum that lost its second term; a quotient taken for a product; a power off by one;
 * a ceiling taken for a floor; a key missing from the summary; rows of the short and of the long case both
 * printed; norms of heads taken for another component; a tied embedding counted twice; S(T) of long contexts used for
 * short ones; cards rounded down; experts read as K for each token of the batch; a number of the summary without a
 * row; scales left out of a release; a fullest card of j + 1. */
#include "estimates.h"
#include "estimate/foreign.h"

#include <ctype.h>

TIMEOUT(60);

static const char *at;

static long double sum(void);

static long double choose(long double n, long double k)
{
    long double ways = n < k ? 0 : 1;
    for (long double i = 0; i < k && ways > 0; i++) ways = ways * (n - i) / (i + 1);
    return ways;
}

/* Choices of K of so many cards with `each` experts, at most `most` of a card: card by card, whole numbers. */
static long double ways(int cards, long double each, int most, int K)
{
    long double counts[129] = { 1 };
    ck_assert_int_le(K, 128);
    while (cards-- > 0)
        for (int k = K; k >= 0; k--) {
            long double count = 0;
            for (int i = 0; i <= k && i <= most; i++) count += counts[k - i] * choose(each, i);
            counts[k] = count;
        }
    return counts[K];
}

static long double atom(void)
{
    while (*at == ' ') at++;
    if (*at == '(') {
        at++;
        long double x = sum();
        ck_assert_int_eq(*at, ')');
        at++;
        return x;
    }
    if (isdigit((unsigned char)*at)) {
        char *end;
        long double x = strtold(at, &end);
        at = end;
        return x;
    }
    char name[16] = "";
    for (int i = 0; isalpha((unsigned char)*at) && i < 15; i++) name[i] = *at++;
    ck_assert_msg(*at == '(', "%s... is no number", name);
    long double x[4] = { 0 };
    for (int i = 0; *at != ')'; i++) {
        ck_assert(i < 4 && (*at == ',' || *at == '('));
        at++;
        x[i] = sum();
    }
    at++;
    if (strcmp(name, "ceil") == 0) return ceill(x[0]);
    if (strcmp(name, "floor") == 0) return floorl(x[0]);
    if (strcmp(name, "max") == 0) return x[0] > x[1] ? x[0] : x[1];
    if (strcmp(name, "ways") == 0) return ways((int)x[0], x[1], (int)x[2], (int)x[3]);
    ck_assert_str_eq(name, "choose");
    return choose(x[0], x[1]);
}

static long double power(void)
{
    long double x = atom();
    while (*at == '^') {
        at++;
        x = powl(x, atom());
    }
    return x;
}

static long double product(void)
{
    long double x = power();
    for (;;) {
        while (*at == ' ') at++;
        if (*at == '*') at++, x *= power();
        else if (*at == '/') at++, x /= power();
        else return x;
    }
}

static long double sum(void)
{
    long double x = product();
    for (;;) {
        if (*at == '+') at++, x += product();
        else if (*at == '-') at++, x -= product();
        else return x;
    }
}

/* "KEY", "  = formula", "  = numbers", "  = value": the third evaluates to the fourth, which is the summary's. */
static void check_explanation(const struct m3_estimate *e, const json_t *summary, const char *key)
{
    char *text = NULL;
    size_t size;
    struct m3_error error = { 0 };
    FILE *out = open_memstream(&text, &size);
    ck_assert_int_eq(m3_estimate_explain(e, key, out, &error), M3_OK);
    fclose(out);
    ck_assert(strncmp(text, key, strlen(key)) == 0 && text[strlen(key)] == '\n');

    const json_t *value = m3_estimate_value(summary, key);
    const char *numbers = strstr(strstr(text, "  = ") + 4, "  = ") + 4, *result = strstr(numbers, "  = ") + 4;
    ck_assert_msg(!strstr(result, "\n  = "), "%s: more than one row holds\n%s", key, text);
    if (json_is_object(value)) {
        result = strstr(result, " = ") + 3;
        value = json_object_get(value, "value");
    }
    at = numbers;
    long double got = sum();
    ck_assert_msg(*at == '\n', "%s: stopped at %s", key, at);
    long double expected =
        json_is_integer(value) ? (long double)json_integer_value(value) : (long double)json_real_value(value);
    long double printed = json_is_integer(value) ? strtold(result, NULL) : strtod(result, NULL);
    ck_assert_msg(printed == expected, "%s: %s", key, text);
    const int whole = json_is_integer(value) && fabsl(expected) >= 1 && !strstr(key, "expert_spread");
    long double allowed = whole ? 0 : 1e-14L * fabsl(expected);
    if (strstr(key, "arithmetic") || strstr(key, "critical") || strstr(key, "decode_read") ||
        strstr(key, "experts_read"))
        allowed = 1e-12L * fabsl(expected);         /* 1 - q^B is rounded */
    ck_assert_msg(fabsl(got - expected) <= allowed, "%s: numbers give %.20Lg\n%s", key, got, text);
    free(text);
}

/* Every number in a value of the summary. A ratio is an object with a fraction and a value: its key explains both. */
static int check_numbers(const struct m3_estimate *e, const json_t *summary, const json_t *value, const char *key)
{
    char inner[128];
    const char *name;
    json_t *member;
    size_t index;
    int checked = 0;
    if (json_is_number(value) || json_object_get(value, "fraction")) {
        check_explanation(e, summary, key);
        return 1;
    }
    json_object_foreach((json_t *)value, name, member)
    {
        snprintf(inner, sizeof inner, "%s%s%s", key, *key ? "." : "", name);
        checked += check_numbers(e, summary, member, inner);
    }
    json_array_foreach(value, index, member)
    {
        snprintf(inner, sizeof inner, "%s.%zu", key, index);
        checked += check_numbers(e, summary, member, inner);
    }
    return checked;
}

static void check_all_explanations(const struct m3_estimate *e, int least)
{
    json_t *summary = m3_estimate_json(e);
    ck_assert_int_ge(check_numbers(e, summary, summary, ""), least);
    json_decref(summary);
}

static const char *const explained[] = {
    M3,
    M3_MXFP8,
    "golden/tiny/model/config.json",
    "golden/tiny/config_flat.json",
    "golden/mtp/model/config.json",
    "golden/block128/model/config.json",
    "golden/f8block/model/config.json",
    "golden/configs/minimax-m2.7.json",
    "golden/configs/minimax-m2.json",
};

/* Section 3's formulas, and all others, in models of every kind: long and short, tied, without pictures, without sparse
 * layers, without experts, with modules. */
LOOP_TEST(explanations, sizeof explained / sizeof explained[0])
{
    static const int64_t grids[][3] = { { 1, 48, 48 }, { 9, 4, 6 }, { 1, 2, 2 } };
    struct m3_config config;
    read_config(&config, explained[_i]);
    for (int variant = 0; variant < 5; variant++) {
        struct m3_estimate_request r = request(variant == 1 ? 3 : config.max_positions - variant * 5, 1 + 6 * variant,
                                               variant == 2 ? "int4" : "fp8", variant == 3 ? "fp4" : "bf16");
        struct m3_census census;
        r.index_kv = m3_format_named("f32");
        r.mtp_modules = variant;
        r.mtp_join = variant == 2 ? M3_MTP_ADDITIVE : M3_MTP_CONCAT;
        r.all_logits = variant == 3;
        r.no_causal_skip = variant == 4;
        if (config.vision.present && variant < 3) {
            r.grids = grids;
            r.grid_count = 1 + variant;
            r.boundary = variant == 1 ? M3_BOUNDARY_NONE : M3_BOUNDARY_SEGMENT;
        }
        r.gpu = m3_gpu_named("h200");
        r.card_bytes = r.gpu->vendor_bytes;
        r.gpus = variant == 1 ? 2 : variant == 4 ? 1 : config.E;       /* 2 may not divide them */
        if (variant == 2) config.tied_embeddings = 1;
        if (variant == 3) config.vision.present = 0;
        if (variant == 4) {
            memset(config.sparse, 0, (size_t)config.layers);
            memset(config.moe, 0, (size_t)config.layers);
            if (!config.dense_intermediate) config.dense_intermediate = 5;
        }
        m3_census_of_config(&census, &config, r.mtp_modules, r.mtp_join);
        if (variant == 1) r.files = &census;
        struct m3_estimate e = estimate(&config, &r);
        check_all_explanations(&e, 60);
    }
    m3_config_free(&config);
}

static const struct {
    const char *path;
    int known;
} foreign[] = {
    { "golden/configs/llama-3-70b.json", 60 },      { "golden/configs/llama-3-70b-rounded.json", 30 },
    { "golden/configs/nemotron-3-ultra.json", 30 }, { "golden/configs/kimi-k2.5.json", 20 },
    { "golden/configs/glm-5.1.json", 5 },           { "golden/configs/qwen3.5-moe.json", 5 },
    { "golden/configs/mimo-v2-flash.json", 5 },
};

LOOP_TEST(explanations_of_other_families, sizeof foreign / sizeof foreign[0])
{
    struct m3_foreign model;
    struct m3_error notes = { 0 }, error = { 0 };
    int is_one;
    ck_assert_int_eq(m3_foreign_read(&model, &is_one, foreign[_i].path, &notes, &error), M3_OK);
    struct m3_estimate_request r = request(foreign[_i].known > 5 ? 8191 : M3_UNKNOWN, 1, "int4", "bf16");
    r.foreign = &model;
    r.config = &model.census;
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    for (r.no_causal_skip = 0; r.no_causal_skip < 2; r.no_causal_skip++) {
        struct m3_estimate e = estimate(&model.config, &r);
        check_all_explanations(&e, foreign[_i].known);
    }
    m3_foreign_free(&model);
}
