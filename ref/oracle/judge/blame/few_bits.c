/* Rows, heads and whole taps whose numbers all have fewer bits than the format in which the profile stores them, as if
 * they had been stored in a coarser format before. SPEC 7.12. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/side_by_side.h"

/* So many numbers that should have more bits do not lack them by chance. */
enum { LEAST = 40 };

/* Elements [first + i step + j], i < times, j < length. */
struct part {
    int64_t first, step, times, length;
};

/* Significant bits of x, which is finite. */
static int bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x == 0 ? 0 : 53 - __builtin_ctzll(bits | UINT64_C(1) << 52);
}

static int64_t element(const struct part *p, int64_t i) { return p->first + i / p->length * p->step + i % p->length; }

/* The most bits that a number has; 0: numbers are not all finite, or some have all bits. */
static int most_bits(const struct m3_side_by_side *s, const struct part *p, int full)
{
    int most = 0;
    for (int64_t i = 0; i < p->times * p->length; i++) {
        const double x = s->got[element(p, i)];
        const int bits = isfinite(x) ? bits_of(x) : full;
        if (bits >= full) return 0;
        if (bits > most) most = bits;
    }
    return most;
}

/* How many have fewer bits than what should be stored, in rows that are not alike. */
static int64_t lacking(const struct m3_side_by_side *s, const struct part *p, int most, enum m3_dtype stored)
{
    int64_t count = 0;
    for (int64_t i = 0; i < p->times * p->length; i++) {
        if (p->times > 1 && !m3_side_by_side_tells(s, i / p->length)) continue;
        count += bits_of(m3_stored_as(s->want[element(p, i)], stored)) > most;
    }
    return count;
}

/* Fails the tap if the numbers of this part have too few bits. */
static int fails(struct m3_finding *out, const struct m3_side_by_side *s, const struct part *p, enum m3_dtype stored,
                 const char *what, int64_t number)
{
    const int full = stored == M3_BF16 ? 8 : 11, most = most_bits(s, p, full);
    if (most == 0 || lacking(s, p, most, stored) < LEAST) return 0;
    if (number < 0) m3_finding_note(out, "its numbers have at most %d bits, not %d", most, full);
    else m3_finding_note(out, "%s %" PRId64 " holds numbers of at most %d bits, not %d", what, number, most, full);
    out->verdict = out->tiers.verdict = M3_VERDICT_FAIL;
    out->tiers.tiers |= M3_TIER_GRID;
    return 1;
}

void m3_blame_judge_bits(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_side_by_side *s)
{
    const struct m3_profile *profile = b->setting->profile;
    struct m3_finding *out = item->blamed;
    const int64_t width = item->width, heads = item->dumped->rank == 3 ? item->dumped->shape[1] : 1;
    if (!profile || (out->verdict != M3_VERDICT_PASS && out->verdict != M3_VERDICT_SUSPECT)) return;
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    const enum m3_dtype stored = m3_profile_dtype(profile, item->name);
    const enum m3_operator op = m3_graph_node(b->setting->model, b->setting->semantics, item->tap, item->layer)->op;
    if ((stored != M3_BF16 && stored != M3_F16) || m3_profile_exact(profile, item->name)) return;
    if (op == M3_OP_ATTEND && at.before > 0x1p-8) return; /* of a single key: its value, as the cache holds it */
    if (fails(out, s, &(struct part){ 0, width, s->rows, width }, stored, "", -1)) return;
    for (int64_t h = 0; h < heads && heads > 1 && op != M3_OP_EXPERT; h++) {
        const struct part head = { h * width / heads, width, s->rows, width / heads };
        if (fails(out, s, &head, stored, "head", h)) return;
    }
    for (int64_t r = 0; r < s->rows; r++)
        if (fails(out, s, &(struct part){ r * width, width, 1, width }, stored, "row", s->numbers[r])) return;
}
