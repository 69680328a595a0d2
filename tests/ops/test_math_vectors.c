/* The test vectors of the specification, as 8.1 says: every line `function(arguments) = results` of SPEC.md's sections
 * 8.x, and every line of golden/vectors.txt, which holds all of those and more.
 *
 * Claim: the program gives these bits. The results come from the definitions in the text, run in NumPy, and those of
 * exp, ln, pow, sine, cosine and tail were compared with multi-precision arithmetic; none comes from the program.
 * Seen to fail with one digit of a result changed (in each file), a vector of the text missing from the data, a function
 * with too few vectors, a name that no function has, an argument too many, a result too few, a line that is no vector,
 * no vectors, no file, and subnormal numbers flushed to zero. */
#include "model/engine.h"
#include "ops/ops.h"

#include <check.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "decode/sampling.h"
#include "ops/erf.h"
#include "ops/exp.h"
#include "ops/math.h"
#include "ops/operators.h"

static const char text_file[] = "SPEC.md", data_file[] = "golden/vectors.txt";

enum { MOST = 8, LINE = 512 };
enum { TEXT_LEAST = 2, DATA_LEAST = 6, DATA_MOST = 2000 }; /* vectors of a function; vectors altogether */

/* A number, an array of them, or a name in quotes. A number is kept as a double and as a whole number. */
struct field {
    double x[MOST];
    uint64_t whole[MOST];
    int n;
    char name[64];
};

struct vector {
    char function[32];
    struct field in[MOST], out[2];
};

struct function {
    const char *name;
    int ins, outs; /* fields */
    void (*call)(double *y, const struct field *in);
    uint64_t (*call_whole)(const struct field *in); /* instead, where the result is 64 bits */
};

/* ---- functions of the text, by the program; y takes the results, one after the other */

static void call_exp(double *y, const struct field *in) { y[0] = m3_exp(in[0].x[0]); }
static void call_exp_sum(double *y, const struct field *in) { y[0] = m3_exp_sum(in[0].x[0], in[1].x[0]); }
static void call_exp_brief(double *y, const struct field *in) { y[0] = m3_exp_brief(in[0].x[0]); }
static void call_exp_falling(double *y, const struct field *in) { y[0] = m3_exp_falling((float)in[0].x[0]); }
static void call_ln(double *y, const struct field *in) { y[0] = m3_log(in[0].x[0]); }
static void call_pow(double *y, const struct field *in) { y[0] = m3_pow(in[0].x[0], in[1].x[0]); }
static void call_sincos(double *y, const struct field *in) { m3_sincos(&y[0], &y[1], in[0].x[0]); }
static void call_tail(double *y, const struct field *in) { y[0] = m3_tail_body(in[0].x[0]); }
static void call_tail_brief(double *y, const struct field *in) { y[0] = m3_tail_brief((float)in[0].x[0]); }

/* Through volatile, so that the machine rounds and not the compiler. */
static void call_round(double *y, const struct field *in)
{
    volatile double x = in[0].x[0];
    y[0] = (double)(float)x;
}

static void call_place(double *y, const struct field *in)
{
    volatile int64_t place = (int64_t)in[0].whole[0];
    y[0] = (double)(float)place;
}

static struct m3_ctx ctx;

static double of_one(m3_op_gelu *op, double x)
{
    const real operand = (real)x;
    real result;
    ck_assert_int_eq(op(&ctx, &result, &operand, 1), 0);
    return (double)result;
}

static void call_gelu(double *y, const struct field *in) { y[0] = of_one(M3_ENGINE()->ops->gelu, in[0].x[0]); }
static void call_sigmoid(double *y, const struct field *in) { y[0] = of_one(M3_ENGINE()->ops->sigmoid, in[0].x[0]); }

static void call_swiglu(double *y, const struct field *in)
{
    real gate = (real)in[0].x[0], up = (real)in[1].x[0], result;
    ck_assert_int_eq(M3_ENGINE()->ops->swiglu(&ctx, &result, &gate, &up, 1, 1), 0);
    y[0] = (double)result;
}

static void swiglu_oai(double *y, const struct field *in, enum m3_gate_clamp clamp)
{
    const struct m3_activation act = { 1, (real)1.702, 7, clamp };
    real gate = (real)in[0].x[0], up = (real)in[1].x[0], result;
    ck_assert_int_eq(M3_ENGINE()->ops->swiglu_oai(&ctx, &result, &gate, &up, 1, 1, &act), 0);
    y[0] = (double)result;
}

static void call_swiglu_oai(double *y, const struct field *in) { swiglu_oai(y, in, M3_GATE_CLAMP_UPPER); }
static void call_swiglu_oai_both(double *y, const struct field *in) { swiglu_oai(y, in, M3_GATE_CLAMP_BOTH); }

/* One channel whose state is k v = phi(64)/64 = 1, so that o = phi(x). */
static void call_phi(double *y, const struct field *in)
{
    real q = (real)in[0].x[0], k = 64, v = (real)0x1p-6, decay = 0, state = 0, result;
    ck_assert_int_eq(m3_lightning_attention(&ctx, &result, &state, &q, &k, &v, &decay, 1, 1, 1), 0);
    y[0] = (double)result;
}

/* pool_lse(scores): one block, whose keys of one channel are the scores; the query is 1. */
static void call_pool_lse(double *y, const struct field *in)
{
    const struct m3_semantics semantics = { .pool = M3_POOL_LSE };
    const struct m3_index d = {
        .T = 1, .p0 = in[0].n - 1, .G = 1, .X = 1, .block = MOST, .B = 1, .N = 1, .semantics = &semantics
    };
    real scores[MOST], one = 1, result;
    for (int j = 0; j < in[0].n; j++) scores[j] = (real)in[0].x[j];
    ck_assert_int_eq(M3_ENGINE()->ops->block_scores(&ctx, &result, &one, scores, &d), 0);
    y[0] = (double)result;
}

/* rope(position, channel, R, theta, f32): the channel's cosine and sine. */
static void call_rope(double *y, const struct field *in)
{
    enum { PAIRS = 64 };
    real cos[PAIRS], sin[PAIRS];
    int64_t pos = (int64_t)in[0].whole[0], i = (int64_t)in[1].whole[0], R = (int64_t)in[2].whole[0];
    ck_assert(i < R / 2 && R / 2 <= PAIRS);
    enum m3_rope_angle angle = in[4].whole[0] ? M3_ANGLE_F32 : M3_ANGLE_F64;
    ck_assert_int_eq(M3_ENGINE()->ops->rope_table(&ctx, cos, sin, &pos, 1, R, in[3].x[0], angle), 0);
    y[0] = (double)cos[i];
    y[1] = (double)sin[i];
}

/* ---- stored numbers: one of them, and as a weight that embed expands */

static double expanded(enum m3_dtype dtype, enum m3_scaling scaling, const void *code, const void *scale)
{
    const struct m3_weight w = {
        .data = code, .scales = scale, .dtype = dtype, .scaling = scaling, .rows = 1, .cols = 1, .id = 1
    };
    const int32_t row = 0;
    real result;
    ck_assert_int_eq(M3_ENGINE()->ops->embed(&ctx, &result, &row, &w, 1), 0);
    return (double)result;
}

static double stored(enum m3_dtype dtype, const void *code)
{
    double x = m3_decode(dtype, code, 0), y = expanded(dtype, M3_UNSCALED, code, NULL);
    ck_assert(m3_bits(x) == m3_bits(y) || (isnan(x) && isnan(y)));
    return x;
}

static void call_bf16(double *y, const struct field *in)
{
    uint16_t code = (uint16_t)in[0].whole[0];
    y[0] = stored(M3_BF16, &code);
}

static void call_f16(double *y, const struct field *in)
{
    uint16_t code = (uint16_t)in[0].whole[0];
    y[0] = stored(M3_F16, &code);
}

static void call_e4m3(double *y, const struct field *in)
{
    unsigned char code = (unsigned char)in[0].whole[0];
    y[0] = m3_decode(M3_F8_E4M3, &code, 0);
}

static void call_e8m0(double *y, const struct field *in)
{
    unsigned char code = (unsigned char)in[0].whole[0];
    y[0] = m3_decode(M3_F8_E8M0, &code, 0);
}

static void call_expand_mx(double *y, const struct field *in)
{
    unsigned char code = (unsigned char)in[0].whole[0], scale = (unsigned char)in[1].whole[0];
    y[0] = expanded(M3_F8_E4M3, M3_SCALE_MX32, &code, &scale);
}

static void call_expand_block(double *y, const struct field *in)
{
    unsigned char code = (unsigned char)in[0].whole[0];
    float scale = (float)in[1].x[0];
    y[0] = expanded(M3_F8_E4M3, M3_SCALE_128X128, &code, &scale);
}

/* ---- random numbers */

/* The key of an empty name is mix(basis + seed * golden); golden is odd, so a seed reaches every z. */
static uint64_t call_mix(const struct field *in)
{
    const uint64_t basis = UINT64_C(14695981039346656037), golden = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t inverse = golden; /* right in its lowest 3 bits; each step doubles them */
    for (int i = 0; i < 5; i++) inverse *= 2 - golden * inverse;
    return m3_draw_key((in[0].whole[0] - basis) * inverse, "");
}

static uint64_t call_key(const struct field *in) { return m3_draw_key(in[1].whole[0], in[0].name); }

static void call_draw(double *y, const struct field *in)
{
    y[0] = (double)m3_draw(m3_draw_key(in[1].whole[0], in[0].name), in[2].whole[0], in[3].whole[0]);
}

static void call_uniform(double *y, const struct field *in)
{
    static const char *const uses[] = { "token", "draft", "accept", "instead" };
    int use = 0;
    while (strcmp(uses[use], in[0].name) != 0) ck_assert_int_lt(++use, 4);
    y[0] = m3_uniform(in[1].whole[0], (enum m3_draw_use)use, (int64_t)in[2].whole[0]);
}

static double jittered(double x, uint64_t key, int64_t place, int64_t width, int64_t channel, double eps)
{
    enum { WIDEST = 64 };
    real row[WIDEST];
    ck_assert(channel < width && width <= WIDEST);
    for (int i = 0; i < width; i++) row[i] = (real)x;
    ck_assert_int_eq(M3_ENGINE()->ops->jitter(&ctx, row, row, 1, width, place, eps, key), 0);
    return (double)row[channel];
}

static void call_jitter(double *y, const struct field *in)
{
    y[0] = jittered(1, m3_draw_key(in[1].whole[0], in[0].name), (int64_t)in[2].whole[0], 1, 0, in[3].x[0]);
}

/* jittered(x, tap, seed, p, H, i, eps) */
static void call_jittered(double *y, const struct field *in)
{
    y[0] = jittered(in[0].x[0], m3_draw_key(in[2].whole[0], in[1].name), (int64_t)in[3].whole[0],
                    (int64_t)in[4].whole[0], (int64_t)in[5].whole[0], in[6].x[0]);
}

/* ---- sampling */

static void call_argmax(double *y, const struct field *in) { y[0] = m3_argmax(in[0].x, in[0].n); }
static void call_pick(double *y, const struct field *in) { y[0] = m3_pick(in[0].x, in[0].n, in[1].x[0]); }

static void call_distribution(double *y, const struct field *in)
{
    int32_t order[MOST];
    const struct m3_sampling how = { in[1].x[0], (int64_t)in[2].whole[0], in[3].x[0], 0 };
    m3_distribution(y, order, in[0].x, in[0].n, &how);
}

static void call_accept(double *y, const struct field *in)
{
    double rest[MOST];
    int kept;
    y[1] = m3_accept(&kept, (int32_t)in[0].whole[0], in[1].x, in[2].x, rest, in[1].n, in[3].whole[0],
                     (int64_t)in[4].whole[0]);
    y[0] = kept;
}

static void call_logprob(double *y, const struct field *in)
{
    y[0] = m3_logprob(in[0].x, in[0].n, (int32_t)in[1].whole[0]);
}

/* ---- ties */

/* own, N, init_blocks and local_blocks follow the scores of G groups. Blocks are of one key, so that the row's
 * place is its block. Every group must get the same list. */
static void select_blocks(double *y, const struct field *in, int G, enum m3_selection selection)
{
    const struct field *rest = in + G;
    const struct m3_semantics semantics = { .selection = selection,
                                            .init_blocks = (int64_t)rest[2].whole[0],
                                            .local_blocks = (int64_t)rest[3].whole[0] };
    const struct m3_index d = { .T = 1,
                                .p0 = (int64_t)rest[0].whole[0],
                                .G = G,
                                .X = 1,
                                .block = 1,
                                .B = in[0].n,
                                .N = (int64_t)rest[1].whole[0],
                                .semantics = &semantics };
    real scores[2 * MOST];
    int32_t ids[2 * MOST];
    for (int i = 0; i < G * in[0].n; i++) scores[i] = (real)in[i / in[0].n].x[i % in[0].n];
    ck_assert(d.N <= MOST && in[G - 1].n == in[0].n);
    ck_assert_int_eq(M3_ENGINE()->ops->select_blocks(&ctx, ids, scores, &d), 0);
    for (int i = 0; i < d.N; i++) y[i] = ids[i] == ids[(G - 1) * d.N + i] ? ids[i] : NAN;
}

static void call_select_blocks(double *y, const struct field *in) { select_blocks(y, in, 1, M3_SELECT_GROUP); }
static void call_select_shared(double *y, const struct field *in) { select_blocks(y, in, 2, M3_SELECT_SHARED); }

/* union_keys(blocks_0, blocks_1, p, block): logits are equal, and v of key j is 1 in channel j alone, so a channel of
 * the output is above 0 where its key is read. Both heads must read the same. */
static void call_union_keys(double *y, const struct field *in)
{
    enum { G = 2 };
    const struct m3_attend d = { .T = 1,
                                 .p0 = (int64_t)in[2].whole[0],
                                 .Q = G,
                                 .G = G,
                                 .D = MOST,
                                 .block = (int64_t)in[3].whole[0],
                                 .N = in[0].n,
                                 .selection = M3_SELECT_UNION };
    real q[G * MOST] = { 0 }, k[MOST * G * MOST] = { 0 }, v[MOST * G * MOST] = { 0 }, o[G * MOST], lse[G];
    int32_t blocks[G * MOST];
    ck_assert(d.p0 < MOST && in[1].n == in[0].n);
    for (int i = 0; i < G * in[0].n; i++) blocks[i] = (int32_t)in[i / in[0].n].x[i % in[0].n];
    for (int j = 0; j < MOST; j++)
        for (int g = 0; g < G; g++) v[(j * G + g) * MOST + j] = 1;
    ck_assert_int_eq(M3_ENGINE()->ops->attend_blocks(&ctx, o, lse, q, k, v, blocks, &d), 0);
    for (int64_t j = 0; j <= d.p0; j++) y[j] = (o[j] > 0) == (o[MOST + j] > 0) ? o[j] > 0 : NAN;
}

/* route(s, bias, K): the ids, then the weights. */
static void call_route(double *y, const struct field *in)
{
    int64_t K = (int64_t)in[2].whole[0];
    real s[MOST], bias[MOST], p[MOST];
    int32_t ids[MOST];
    for (int e = 0; e < in[0].n; e++) {
        s[e] = (real)in[0].x[e];
        bias[e] = (real)in[1].x[e];
    }
    ck_assert(in[0].n == in[1].n && K <= in[0].n);
    ck_assert_int_eq(M3_ENGINE()->ops->route(&ctx, ids, p, s, bias, 1, in[0].n, K), 0);
    for (int64_t k = 0; k < K; k++) {
        y[k] = ids[k];
        y[K + k] = (double)p[k];
    }
}

/* Names that end in _f32 or _f64 are of one engine. */
static const struct function functions[] = {
    { "round_f32", 1, 1, call_round, NULL },
    { "place_f32", 1, 1, call_place, NULL },
    { "bf16", 1, 1, call_bf16, NULL },
    { "f16", 1, 1, call_f16, NULL },
    { "e4m3", 1, 1, call_e4m3, NULL },
    { "e8m0", 1, 1, call_e8m0, NULL },
    { "expand_mx_f32", 2, 1, call_expand_mx, NULL },
    { "expand_block_f32", 2, 1, call_expand_block, NULL },
    { "exp", 1, 1, call_exp, NULL },
    { "exp_sum", 2, 1, call_exp_sum, NULL },
    { "exp_brief", 1, 1, call_exp_brief, NULL },
    { "exp_falling", 1, 1, call_exp_falling, NULL },
    { "ln", 1, 1, call_ln, NULL },
    { "pow", 2, 1, call_pow, NULL },
    { "sincos", 1, 2, call_sincos, NULL },
    { "rope_entry_f32", 5, 2, call_rope, NULL },
    { "tail", 1, 1, call_tail, NULL },
    { "tail_brief", 1, 1, call_tail_brief, NULL },
    { "gelu_f32", 1, 1, call_gelu, NULL },
    { "gelu_f64", 1, 1, call_gelu, NULL },
    { "sigmoid_f32", 1, 1, call_sigmoid, NULL },
    { "sigmoid_f64", 1, 1, call_sigmoid, NULL },
    { "swiglu_f32", 2, 1, call_swiglu, NULL },
    { "swiglu_oai_f32", 2, 1, call_swiglu_oai, NULL },
    { "swiglu_oai_both_f32", 2, 1, call_swiglu_oai_both, NULL },
    { "phi_f32", 1, 1, call_phi, NULL },
    { "pool_lse_f32", 1, 1, call_pool_lse, NULL },
    { "pool_lse_f64", 1, 1, call_pool_lse, NULL },
    { "mix", 1, 1, NULL, call_mix },
    { "key", 2, 1, NULL, call_key },
    { "draw", 4, 1, call_draw, NULL },
    { "uniform", 3, 1, call_uniform, NULL },
    { "jitter_f32", 4, 1, call_jitter, NULL },
    { "jitter_f64", 4, 1, call_jitter, NULL },
    { "jittered_f32", 7, 1, call_jittered, NULL },
    { "argmax", 1, 1, call_argmax, NULL },
    { "distribution", 4, 1, call_distribution, NULL },
    { "pick", 2, 1, call_pick, NULL },
    { "accept", 5, 2, call_accept, NULL },
    { "logprob", 2, 1, call_logprob, NULL },
    { "select_blocks", 5, 1, call_select_blocks, NULL },
    { "select_shared", 6, 1, call_select_shared, NULL },
    { "union_keys", 4, 1, call_union_keys, NULL },
    { "route_f32", 3, 2, call_route, NULL },
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static const struct function *function_named(const char *name)
{
    for (int f = 0; f < FUNCTIONS; f++)
        if (strcmp(functions[f].name, name) == 0) return &functions[f];
    return NULL;
}

static int of_this_engine(const char *name)
{
    size_t n = strlen(name);
    const char *other = sizeof(real) == sizeof(float) ? "_f64" : "_f32";
    return n < 4 || strcmp(name + n - 4, other) != 0;
}

/* ---- reading */

/* Reads a field at *at and moves after it. 0 if there is none. */
static int read_field(struct field *field, const char **at)
{
    const char *s = *at;
    int many = *s == '[';
    *field = (struct field){ .n = 0 };
    if (*s == '"') {
        size_t length = strcspn(++s, "\"");
        if (s[length] != '"' || length >= sizeof field->name) return 0;
        memcpy(field->name, s, length);
        *at = s + length + 1;
        return 1;
    }
    for (s += many; field->n < MOST; s += 2) {
        char *end, *whole_end;
        if (isspace((unsigned char)*s)) return 0;
        field->x[field->n] = strtod(s, &end);
        field->whole[field->n++] = strtoull(s, &whole_end, 0);
        if (end == s) return 0;
        s = end;
        if (!many || s[0] != ',' || s[1] != ' ') break;
    }
    if (many && *s++ != ']') return 0;
    *at = s;
    return 1;
}

/* Does the line begin as a vector does: four spaces, a name, a bracket, and ") = " somewhere? */
static int begins_vector(const char *line, char *name, size_t size)
{
    if (strncmp(line, "    ", 4) != 0) return 0;
    size_t n = strspn(line + 4, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (n == 0 || n >= size || line[4 + n] != '(' || !strstr(line, ") = ")) return 0;
    memcpy(name, line + 4, n);
    name[n] = 0;
    return 1;
}

/* The rest of a vector, after its name. After the results comes the end of the line, or three spaces and a remark. */
static int read_vector(struct vector *v, const char *line, const struct function *f)
{
    const char *s = strchr(line, '(') + 1;
    for (int i = 0; i < f->ins; i++) {
        if (i > 0 && strncmp(s, ", ", 2) != 0) return 0;
        s += i > 0 ? 2 : 0;
        if (!read_field(&v->in[i], &s)) return 0;
    }
    if (strncmp(s, ") = ", 4) != 0) return 0;
    s += 4;
    for (int i = 0; i < f->outs; i++) {
        if (i > 0 && *s++ != ' ') return 0;
        if (!read_field(&v->out[i], &s)) return 0;
    }
    return *s == '\n' || strncmp(s, "   ", 3) == 0;
}

/* How many results have other bits than the vector says, or are not in it. */
static int wrong_results(const struct vector *v, const struct function *f, const char *line)
{
    double got[2 * MOST + 1];
    int wrong = 0, at = 0;
    if (f->call_whole) {
        uint64_t whole = f->call_whole(v->in);
        if (whole != v->out[0].whole[0]) printf("  got 0x%016llx:%s", (unsigned long long)whole, line);
        return whole != v->out[0].whole[0];
    }
    for (int i = 0; i < 2 * MOST + 1; i++) got[i] = NAN;
    f->call(got, v->in);
    for (int i = 0; i < f->outs; i++)
        for (int j = 0; j < v->out[i].n; j++, at++) {
            double want = v->out[i].x[j];
            int same = isnan(want) ? isnan(got[at]) : m3_bits(want) == m3_bits(got[at]);
            if (!same) printf("  got %a:%s", got[at], line);
            wrong += !same;
        }
    if (!isnan(got[at])) printf("  got more, %a:%s", got[at], line);
    return wrong + !isnan(got[at]);
}

/* ---- the two files */

/* Vectors without their remarks, in the order of a file, and how many of each function. */
struct vectors {
    char text[DATA_MOST][LINE];
    int n, of_function[FUNCTIONS];
};

/* Reads and compares all vectors of a file. In SPEC.md they stand in sections 8.x among other lines; a line of the data
 * is a vector, a comment or empty. Returns how many results differ. */
static int compare_vectors(struct vectors *vectors, const char *path, int data)
{
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s is missing", path);
    int wrong = 0, of_section = data;
    char line[LINE];
    struct vector v;
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#' && !data) of_section = strncmp(line, "### 8.", 6) == 0;
        if (!of_section || !begins_vector(line, v.function, sizeof v.function)) {
            ck_assert_msg(!data || line[0] == '#' || line[0] == '\n', "not a vector:%s", line);
            continue;
        }
        const struct function *f = function_named(v.function);
        ck_assert_msg(f != NULL, "no function of this name:%s", line);
        ck_assert_msg(read_vector(&v, line, f), "not a vector:%s", line);
        if (of_this_engine(f->name)) wrong += wrong_results(&v, f, line);
        ck_assert_int_lt(vectors->n, DATA_MOST);
        char *text = strcpy(vectors->text[vectors->n++], line + 4), *remark = strstr(text, "   ");
        *(remark ? remark : strchr(text, '\n')) = 0;
        vectors->of_function[f - functions]++;
    }
    fclose(file);
    printf("  %s: %d vectors\n", path, vectors->n);
    fflush(stdout);
    return wrong;
}

TEST(vectors_of_text_and_data)
{
    ck_assert_int_eq(m3_ctx_init(&ctx, 1, M3_LINEAR_ORDERED), 0);
    static struct vectors text, data;
    int wrong = compare_vectors(&text, text_file, 0) + compare_vectors(&data, data_file, 1);
    for (int f = 0; f < FUNCTIONS; f++) {
        ck_assert_msg(text.of_function[f] >= TEXT_LEAST, "%s: too few of %s", text_file, functions[f].name);
        ck_assert_msg(data.of_function[f] >= DATA_LEAST, "%s: too few of %s", data_file, functions[f].name);
    }
    for (int i = 0, j = 0; i < text.n; i++, j = 0) {
        while (j < data.n && strcmp(text.text[i], data.text[j]) != 0) j++;
        ck_assert_msg(j < data.n, "not in %s: %s", data_file, text.text[i]);
    }
    ck_assert_msg(wrong == 0, "%d results differ", wrong);
    m3_ctx_free(&ctx);
}
