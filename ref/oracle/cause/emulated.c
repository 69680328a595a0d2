/* Does the rounding of inputs or caches that a word allows make the candidate's errors? The operator is run with its
 * operands rounded so, which says more than that errors of this size would be allowed. REFERENCE 7.3. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/cause/mistaken.h"
#include "oracle/cause/tap.h"
#include "oracle/error/profiles/codes.h"

enum { NUMBERS = 1 << 13 }; /* of the tap that are compared */

/* What the word would explain of the errors, in L2. Programs that choose their scales otherwise, which the word allows
 * too, agree with the emulation in a part of the codes. */
static const double enough = 0.3;

static int same_rule(const struct m3_input_rounding *a, const struct m3_input_rounding *b)
{
    return a->dtype == b->dtype && a->codes == b->codes && a->group == b->group && a->scaling == b->scaling &&
           a->u == b->u;
}

/* The largest number of each operand, in all rows of the candidate; 0: its dump does not say. */
static int largest_read(struct m3_emulation *how, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    int status = M3_OK;
    for (int j = 0; j < M3_OPERANDS && !status; j++) {
        const struct m3_blame_item *operand = m3_blame_operand(b, item, j);
        struct m3_tap_values x = { 0 };
        if (!operand || !operand->dumped || m3_tap_table[operand->tap].kind != M3_KIND_REALS) continue;
        status = m3_blame_read(&x, b, operand);
        for (int64_t i = 0; i < x.rows * x.width && !status; i++)
            if (isfinite(x.values[i])) how->largest[j] = fmax(how->largest[j], fabs(x.values[i]));
        m3_tap_values_free(&x);
    }
    return status;
}

/* The share of sum (got - right)^2 that lies in the direction of emulated - right. */
static double share_of(const struct m3_tap_values *got, const struct m3_tap_values *right,
                       const struct m3_tap_values *emulated)
{
    double along = 0, of_word = 0, of_errors = 0;
    for (int64_t r = 0; r < right->rows; r++) {
        const int64_t at = m3_tap_values_row(got, right->first + r) * got->width;
        for (int64_t i = 0; i < got->width && at >= 0; i++) {
            const double want = right->values[r * got->width + i], error = got->values[at + i] - want;
            const double word = emulated->values[r * got->width + i] - want;
            if (!isfinite(error) || !isfinite(word)) continue;
            along += error * word;
            of_word += word * word;
            of_errors += error * error;
        }
    }
    return along > 0 && of_word > 0 && of_errors > 0 ? along / of_word * along / of_errors : 0;
}

/* Does a product read otherwise rounded inputs, or attention another cache? A scale is asked for if it has one. */
static int may_emulate(int *has_scale, const struct m3_blaming *b, const struct m3_blame_item *item,
                       const struct m3_profile *profile)
{
    const struct m3_input_rounding rule = m3_profile_input(profile, item->name);
    const struct m3_input_rounding own = m3_profile_input(b->setting->profile, item->name);
    int reads = 0;
    *has_scale = 0;
    if (m3_blame_is_product(b, item)) return rule.dtype != M3_DTYPES && !same_rule(&rule, &own);
    for (int j = 0; j < M3_OPERANDS; j++) {
        const struct m3_blame_item *operand = m3_blame_operand(b, item, j);
        if (!operand) continue;
        const struct m3_read_rounding read = m3_profile_read(profile, operand->name);
        if (read.u == m3_profile_read(b->setting->profile, operand->name).u) continue;
        reads = 1;
        *has_scale |= read.largest > 0;
    }
    return reads;
}

/* By how much the profile rounds parts of attention before they are merged. */
static double rounds_parts(const struct m3_profile *profile, const struct m3_blame_item *item)
{
    char name[160];
    const char *point = item->tap == M3_TAP_ATTN       ? "attn.partial"
                        : item->tap == M3_TAP_ATTN_LSE ? "attn.partial.lse"
                                                       : "";
    if (!point[0]) return 0;
    const int before = (int)(strlen(item->name) - strlen(m3_tap_table[item->tap].name));
    snprintf(name, sizeof name, "%.*s%s", before, item->name, point);
    return m3_profile_store(profile, name);
}

/* Distance of x from y, over the size of y, in L2. */
static double off_by(const double *x, const double *y, int64_t n)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) off += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
    return sqrt(off / size);
}

/* A tap of the candidate beside what its operator makes of the candidate's own inputs, in rows about `near`. */
struct trial {
    struct m3_mistaken *mistaken;
    struct m3_tap_values got, right;
    int applies;    /* 0: it cannot be made */
};

static int begin(struct trial *t, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t near,
                 int64_t numbers)
{
    *t = (struct trial){ 0 };
    int status = m3_mistaken_new(&t->mistaken, b, item, near, numbers);
    if (!status) status = m3_mistaken_make(&t->right, &t->applies, t->mistaken, NULL);
    return status || !t->applies ? status : m3_blame_read(&t->got, b, item);
}

static void end(struct trial *t)
{
    m3_tap_values_free(&t->got);
    m3_tap_values_free(&t->right);
    m3_mistaken_free(t->mistaken);
}

/* In how many parts an engine computes a row is not known. But the first row has one key, and so one part: there it is
 * right, or rounded as parts are. */
static int fits_first_row(int *fits, const struct m3_blaming *b, const struct m3_blame_item *item, double u)
{
    const struct m3_read_rounding rule = { .u = u };
    const double few = 8 * fmax(0x1p-24, m3_profile_store(b->setting->profile, item->name));
    struct trial t;
    const int status = begin(&t, b, item, 0, 1);
    const int64_t width = t.got.width,
                  at = status || !t.applies || t.right.first > 0 ? -1 : m3_tap_values_row(&t.got, 0);
    if (at >= 0) {
        const double *own = t.got.values + at * width, exact = off_by(own, t.right.values, width);
        for (int64_t i = 0; i < width; i++) t.right.values[i] = m3_read_value(t.right.values[i], &rule, 1);
        *fits = exact <= few || off_by(own, t.right.values, width) <= few;
    }
    end(&t);
    return status;
}

/* What is stored in a coarser format has its numbers. */
static int fits_format(int *fits, const struct m3_blaming *b, const struct m3_blame_item *item, enum m3_dtype format)
{
    struct m3_tap_values got = { 0 };
    const int status = m3_blame_read(&got, b, item);
    int64_t off = 0;
    for (int64_t i = 0; i < got.rows * got.width && !status; i++) off += !m3_on_grid(got.values[i], format);
    *fits = 2 * off < got.rows * got.width;
    m3_tap_values_free(&got);
    return status;
}

/* What experts multiply is not known to the last bit, but ranks round their parts of every product. If o_proj of this
 * layer, whose input the dump holds, gives nearly always what one product gives, the engine has no ranks. */
static int fits_ranks(int *fits, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    static const double nearly = 0.9;
    const struct m3_blame_item *out = m3_blame_find(b, M3_TAP_ATTN_OUT, item->layer);
    const struct m3_blame_item *in = m3_blame_find(b, M3_TAP_ATTN, item->layer);
    const enum m3_dtype stored = out ? m3_profile_dtype(b->setting->profile, out->name) : M3_F32;
    struct trial t;
    int64_t same = 0, count = 0;
    if (!out || !out->dumped || !in || !in->dumped || (stored != M3_BF16 && stored != M3_F16)) return M3_OK;
    const int status = begin(&t, b, out, 0, NUMBERS);
    for (int64_t r = 0; r < t.right.rows && !status && t.applies; r++) {
        const int64_t at = m3_tap_values_row(&t.got, t.right.first + r) * t.got.width;
        for (int64_t i = 0; i < t.got.width && at >= 0; i++, count++)
            same += t.got.values[at + i] == m3_stored_as(t.right.values[r * t.got.width + i], stored);
    }
    if (count > 0) *fits = (double)same < nearly * (double)count;
    end(&t);
    return status;
}

/* *fits: are the errors those of this emulation? t->applies becomes 0 if it cannot be made. */
static int try(int *fits, struct trial *t, const struct m3_emulation *how)
{
    struct m3_tap_values emulated = { 0 };
    const int status = m3_mistaken_emulate(&emulated, &t->applies, t->mistaken, how);
    if (!status && t->applies) *fits = share_of(&t->got, &t->right, &emulated) >= enough;
    m3_tap_values_free(&emulated);
    return status;
}

/* The operator with its operands rounded. */
static int fits_operands(int *fits, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t near,
                         const struct m3_profile *profile, int has_scale)
{
    struct m3_emulation how = { .profile = profile };
    struct trial t;
    int status = begin(&t, b, item, near, NUMBERS);
    if (!status && t.applies) status = largest_read(&how, b, item);
    if (!status && t.applies) status = try(fits, &t, &how);
    how.is_scaled = 1;
    if (!status && t.applies && !*fits && has_scale) status = try(fits, &t, &how);
    end(&t);
    return status;
}

int m3_blame_emulate(int *fits, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t near,
                     const struct m3_profile *profile)
{
    const struct m3_profile *own = b->setting->profile;
    const double parts = rounds_parts(profile, item);
    const int is_fused = item->tap == M3_TAP_SHARED || item->tap == M3_TAP_EXPERT_OUT;
    const int has_ranks = m3_profile_partials(profile, item->name).ranks > 0;
    int has_scale;
    *fits = 1;
    if (!b->side.file) return M3_OK;
    if (b->setting->the_case->p0 == 0 && parts > rounds_parts(own, item)) return fits_first_row(fits, b, item, parts);
    if (is_fused && has_ranks && m3_profile_partials(own, item->name).ranks == 0) return fits_ranks(fits, b, item);
    if (m3_tap_table[item->tap].kind == M3_KIND_REALS &&
        m3_profile_store(profile, item->name) > m3_profile_store(own, item->name))
        return fits_format(fits, b, item, m3_profile_dtype(profile, item->name));
    if (!may_emulate(&has_scale, b, item, profile)) return M3_OK;
    return fits_operands(fits, b, item, near, profile, has_scale);
}
