/* Does the rounding of inputs that a word allows make the candidate's errors? The operator is run with its inputs rounded
 * so, which says more than that errors of this size would be allowed. REFERENCE 7.3. */
#include <math.h>

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

/* The largest number that the tap reads, in all rows of the candidate; 0: its dump does not say. */
static int largest_read(double *largest, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_blame_item *operand = m3_blame_operand(b, item, 0);
    struct m3_tap_values x = { 0 };
    *largest = 0;
    if (!operand || !operand->dumped) return M3_OK;
    const int status = m3_blame_read(&x, b, operand);
    for (int64_t i = 0; i < x.rows * x.width && !status; i++)
        if (isfinite(x.values[i])) *largest = fmax(*largest, fabs(x.values[i]));
    m3_tap_values_free(&x);
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

int m3_blame_emulate(int *fits, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t near,
                     const struct m3_profile *profile)
{
    const struct m3_input_rounding rule = m3_profile_input(profile, item->name);
    const struct m3_input_rounding own = m3_profile_input(b->setting->profile, item->name);
    struct m3_tap_values got = { 0 }, right = { 0 }, emulated = { 0 };
    struct m3_mistaken *m = NULL;
    double largest = 0;
    int applies = 0;
    *fits = 1;
    if (!b->side.file || rule.dtype == M3_DTYPES || same_rule(&rule, &own) || !m3_blame_is_product(b, item))
        return M3_OK;
    int status = m3_mistaken_new(&m, b, item, near, NUMBERS);
    if (!status) status = m3_mistaken_make(&right, &applies, m, NULL);
    if (!status && m3_has_codes(&rule) && m3_codes_need_tensor(&rule)) status = largest_read(&largest, b, item);
    if (!status && applies) status = m3_mistaken_emulate(&emulated, &applies, m, profile, largest);
    if (!status && applies) status = m3_blame_read(&got, b, item);
    if (!status && applies) *fits = share_of(&got, &right, &emulated) >= enough;
    m3_tap_values_free(&got);
    m3_tap_values_free(&right);
    m3_tap_values_free(&emulated);
    m3_mistaken_free(m);
    return status;
}
