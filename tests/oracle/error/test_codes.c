/* Inputs of products as codes that share a scale: Q8_0, Q8_K, NVFP4, MXFP4 (SPEC 7.3). The engines here are written from
 * the formats' definitions, by tables of all codes; nothing of them is the judge's. */
#include "files.h"
#include "bounds_twin.h"

#include "oracle/error/profile.h"
#include "oracle/error/profiles/codes.h"

FIXTURE(make_folder, remove_folder);

enum { ROWS = 64, WIDTH = 300 };

enum engine { Q8_0, Q8_K, NVFP4, NVFP4_STATIC, MXFP4_DOWN, MXFP4_UP, ENGINES };
static const char *const rules[ENGINES] = {
    "{\"dtype\": \"q8_0\"}",
    "{\"dtype\": \"q8_k\"}",
    "{\"dtype\": \"nvfp4\"}",
    "{\"dtype\": \"nvfp4\"}",
    "{\"dtype\": \"mxfp4\", \"exponent\": \"down\"}",
    "{\"dtype\": \"mxfp4\", \"exponent\": \"up\"}",
};
static const int groups[ENGINES] = { 32, 256, 16, 16, 32, 32 };

/* The nearest of the values +-table[i]. */
static double nearest_of(double x, const double *table, int count)
{
    double best = table[0];
    for (int i = 1; i < count; i++)
        if (fabs(fabs(x) - table[i]) < fabs(fabs(x) - best)) best = table[i];
    return copysign(best, x);
}

static double e2m1(double x)
{
    static const double table[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    return nearest_of(x, table, 8);
}

static double e4m3(double x)
{
    double table[127];
    for (int code = 0; code < 127; code++)
        table[code] = code < 8 ? code * 0x1p-9 : ldexp(1 + (code & 7) / 8.0, (code >> 3) - 7);
    return nearest_of(x, table, 127);
}

static double f16(double x) /* of normal numbers */
{
    int exponent;
    const double mantissa = frexp(x, &exponent);
    return exponent < -13 ? ldexp(nearbyint(ldexp(x, 24)), -24) : ldexp(nearbyint(ldexp(mantissa, 11)), exponent - 11);
}

/* x [n], which share a scale, as the engine reads them; tensor: the largest of all numbers. */
static void read_group(double *out, const double *x, int n, double tensor, enum engine engine)
{
    double most = 0;
    for (int i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    for (int i = 0; i < n; i++) {
        const float d = (float)most / 127;
        const double global = tensor / 2688 * (engine == NVFP4_STATIC ? 16 : 1);
        const double block = engine <= Q8_K           ? 0
                             : engine <= NVFP4_STATIC ? e4m3(most / 6 / global) * global
                             : engine == MXFP4_DOWN   ? exp2(floor(log2(most)) - 2)
                                                      : exp2(ceil(log2(most / 6)));
        if (most == 0) out[i] = 0;
        else if (engine <= Q8_K) out[i] = round(x[i] / (double)d) * (engine == Q8_0 ? f16((double)d) : (double)d);
        else out[i] = block == 0 ? 0 : e2m1(x[i] / block) * block;
    }
}

static struct m3_input_rounding rule_of(enum engine engine)
{
    char text[200];
    snprintf(text, sizeof text, "{\"name\": \"codes\", \"u\": \"f32\", \"input\": {\"layers.*\": %s}}", rules[engine]);
    write_text(in_folder("codes.json"), text);
    struct m3_error error = { 0 };
    struct m3_profile *p;
    ck_assert_int_eq(m3_profile_open(&p, in_folder("codes.json"), &error), 0);
    const struct m3_input_rounding rule = m3_profile_input(p, "layers.3.q_proj");
    m3_profile_close(p);
    return rule;
}

/* Goal:  no number loses more than is allowed, and hardly less would be too little.
 * Given: rows of 300 numbers (the last group is not full) with outliers and zeros, a row of zeros, a row that is tiny
 *        beside the others, and one whose scales a fitting global scale holds and one of 16 times that loses; both
 *        global scales.
 * Claim: no error exceeds m3_codes_error; the largest share is above 0.9; the mean square is at most the variance. The
 *        plain program of m3_codes_scale and m3_coded is off as far as the engine with the fitting global scale is (at
 *        ties to the other side).
 * Seen to fail with a fourth of the step for half (Q8), without the F16 scale, with 1/6 for 1/5 (FP4), with nothing lost
 * to the global scale, with only one that fits, with the plain program's global scale 1, and with "down" allowed no
 * more than "up". */
LOOP_TEST(bounds, ENGINES)
{
    static double x[ROWS * WIDTH], got[ROWS * WIDTH];
    const enum engine engine = (enum engine)_i;
    const struct m3_input_rounding rule = rule_of(engine);
    uint64_t state = 5;
    double tensor = 0, largest = 0, squares = 0, variances = 0;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const int row = i / WIDTH;
        x[i] = (double)(float)(normal(&state) * exp2(row % 7 - 3) * (i % 61 == 0 ? 20 : 1));
        if (i % 37 == 0 || row == 5) x[i] = 0;
        if (row == 6) x[i] *= 0x1p-20;
        if (row == 7) x[i] *= 0x1p-6;
        tensor = fmax(tensor, fabs(x[i]));
    }
    ck_assert_int_eq(m3_codes_group(&rule, WIDTH), groups[engine]);
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < WIDTH; k += groups[engine]) {
            const int at = row * WIDTH + k, n = WIDTH - k < groups[engine] ? WIDTH - k : groups[engine];
            double most = 0;
            read_group(got + at, x + at, n, tensor, engine);
            for (int i = at; i < at + n; i++) most = fmax(most, fabs(x[i]));
            const struct m3_code_scale scale = m3_codes_scale(&rule, most, tensor);
            for (int i = at; i < at + n; i++) {
                double variance;
                const double allowed = m3_codes_error(&variance, &rule, x[i], most, tensor), off = fabs(got[i] - x[i]);
                ck_assert_msg(off <= allowed, "%d: %g of %g, allowed %g", i, got[i], x[i], allowed);
                const double plain = fabs(m3_coded(&rule, x[i], &scale) - x[i]);
                ck_assert(plain <= allowed);
                ck_assert(engine == NVFP4_STATIC || fabs(plain - off) <= 1e-4 * allowed);
                if (allowed > 0) largest = fmax(largest, off / allowed);
                squares += off * off, variances += variance;
            }
        }
    printf("%s: at most %.3f of what is allowed, mean square %.2f of the variance\n", rules[engine], largest,
           squares / variances);
    ck_assert(largest > 0.9 && squares <= variances);
}
