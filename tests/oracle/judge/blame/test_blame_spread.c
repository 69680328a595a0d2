/* Experts, heads, rows and channels whose errors are larger than those of the rest, or whose numbers lack bits, in taps
 * that no element alone betrays. */
#include "judged.h"

static void setup(void)
{
    make_folder();
    open_golden("common");
}

TIMEOUT(240);
FIXTURE(setup, close_golden);

enum { HEADS = 6, CHOSEN = 5 };

/* An element of a tap [rows,width] before it is edited. */
struct element {
    int64_t row, channel, width;
    int32_t expert; /* of an output; -1: none */
    double random; /* uniform in [-1, 1) */
};

static double none(double x, const struct element *at)
{
    (void)at;
    return x;
}

/* Noise of one group. */
static double expert_3(double x, const struct element *at) { return at->expert == 3 ? x * (1 + 0.03 * at->random) : x; }
static double head_2(double x, const struct element *at)
{
    return at->channel / (at->width / HEADS) == 2 ? x * (1 + 0.008 * at->random) : x;
}
static double row_9(double x, const struct element *at) { return at->row == 9 ? x * (1 + 0.05 * at->random) : x; }
static double channel_5(double x, const struct element *at)
{
    return at->channel == 5 ? x * (1 + 0.05 * at->random) : x;
}
static double everywhere(double x, const struct element *at) { return x * (1 + 0.022 * at->random); }

/* Half of the numbers that were rounded to nearest go one step towards 0 if they are cut off instead. */
static double cut(double x, const struct element *at)
{
    int exponent;
    frexp(x, &exponent);
    return at->random < 0 ? x - copysign(ldexp(1, exponent - 8), x) : x;
}
static double cut_expert_2(double x, const struct element *at) { return at->expert == 2 ? cut(x, at) : x; }
static double cut_head_2(double x, const struct element *at)
{
    return at->channel / (at->width / HEADS) == 2 ? cut(x, at) : x;
}

/* As a float router whose inputs were rounded would give. */
static double of_float_router(double x, const struct element *at) { return x * (1 + 0.009 * at->random); }

static double with_bits(double x, int bits)
{
    int exponent;
    frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}
static double bits_in_row_9(double x, const struct element *at) { return at->row == 9 ? with_bits(x, 7) : x; }
static double bits_in_head_2(double x, const struct element *at)
{
    return at->channel / (at->width / HEADS) == 2 ? with_bits(x, 7) : x;
}
static double bits_everywhere(double x, const struct element *at)
{
    (void)at;
    return with_bits(x, 7);
}

static const struct edit {
    const char *profile, *tap;
    double (*made)(double x, const struct element *at);
    int tokens; /* different ones; 0: those of the case */
    const char *note; /* "": it passes */
} edits[] = {
    { "bf16", "layers.2.moe.expert_out", none, 0, "" },
    { "bf16", "layers.2.attn", none, 0, "" },
    { "bf16", "layers.2.moe.shared", none, 0, "" },
    { "fp8", "layers.2.moe.expert_out", none, 0, "" },
    { "fp16", "layers.2.q_proj", none, 0, "" },
    { "bf16", "layers.0.q_proj", none, 1, "" },
    { "bf16", "layers.0.k_proj", none, 2, "" },
    { "bf16", "layers.0.q_norm", none, 2, "" },
    { "bf16", "layers.2.v_proj", none, 3, "" },
    { "bf16", "layers.2.moe.expert_out", expert_3, 0,
      "1 of its 11 experts have other errors than the rest, the first is 3" },
    { "bf16", "layers.2.attn", head_2, 0, "1 of its 6 heads have other errors than the rest, the first is 2" },
    { "bf16", "layers.2.moe.shared", row_9, 0, "1 of its 50 rows have other errors than the rest, the first in row 9" },
    { "bf16", "layers.2.moe.shared", channel_5, 0,
      "1 of its 96 channels have other errors than the rest, the first is 5" },
    { "bf16", "layers.2.moe.shared", everywhere, 0, "its errors are larger than roundings explain" },
    { "bf16", "layers.2.moe.expert_out", cut_expert_2, 0,
      "1 of its 11 experts have other errors than the rest, the first is 2: -0.00" },
    { "bf16", "layers.2.attn", cut_head_2, 0, "1 of its 6 heads have other errors than the rest, the first is 2" },
    { "bf16", "layers.2.moe.router_logits", none, 0, "" },
    { "bf16", "layers.2.moe.router_logits", of_float_router, 0, "its errors are larger than roundings explain" },
    { "bf16", "layers.2.moe.shared", bits_in_row_9, 0, "row 9 holds numbers of at most 7 bits, not 8" },
    { "bf16", "layers.2.attn", bits_in_head_2, 0, "head 2 holds numbers of at most 7 bits, not 8" },
    { "bf16", "layers.2.moe.routed", bits_everywhere, 0, "its numbers have at most 7 bits, not 8" },
};

enum { EDITS = sizeof edits / sizeof edits[0] };

static double next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) * 0x1p-52 - 1;
}

static void change(const struct edit *e)
{
    int32_t ids[512];
    int64_t rows, count;
    size_t bytes;
    uint64_t state = 1;
    const size_t at = place_of(e->tap, &rows, &count, ids);
    const int64_t width = count / rows;
    unsigned char *copy = read_bytes(in_folder("right"), &bytes);
    for (int64_t i = 0; i < count; i++) {
        const int64_t slot = i / (width / CHOSEN);
        const struct element element = { .row = i / width,
                                         .channel = i % width,
                                         .width = width,
                                         .expert = strstr(e->tap, "expert_out") ? ids[slot] : -1,
                                         .random = next_random(&state) };
        float x;
        memcpy(&x, copy + at + (size_t)i * sizeof x, sizeof x);
        const double made = e->made(x, &element);
        if (e->made != none) x = (float)(e->made == of_float_router ? made : m3_stored_as(made, M3_BF16));
        memcpy(copy + at + (size_t)i * sizeof x, &x, sizeof x);
    }
    write_bytes(in_folder("dump"), copy, bytes);
    free(copy);
}

/* Goal:  errors of values that belong together are compared with those of the rest.
 * Given: an honest draw of the profile, in which one tap is changed; first, nothing is, also with rows that are alike.
 * Claim: the verdict on the tap, and the place that its note names.
 * Seen to fail without each call of judge, and of judge_all; with no part cut off; with rows that are alike counted;
 * with above_others a hundred times as large; with no tap stored finely; without each part of the test of bits. */
LOOP_TEST(changed, EDITS)
{
    const struct edit *e = &edits[_i];
    const enum m3_verdict expected = strstr(e->note, "bits") ? M3_VERDICT_FAIL
                                     : e->note[0]            ? M3_VERDICT_SUSPECT
                                                             : M3_VERDICT_PASS;
    for (int64_t i = 0; e->tokens > 0 && i < the_case.T; i++) the_case.ids[i] = (int32_t)(7 + i % e->tokens);
    draw_right(e->profile);
    change(e);
    judge_tap(e->tap, expected, e->note);
}
