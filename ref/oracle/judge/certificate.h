/* Could a set of ids have been chosen by scores that are known up to bounds, and could any other? Pure functions on
 * arrays. SPEC 7.6.
 *
 * Every score may move by its bound, each by itself. A set is admissible if some such scores choose it, and certified
 * if all of them do. Equal scores: any of them (`ties_lowest` 0), or the lowest ids. */
#ifndef M3_ORACLE_JUDGE_CERTIFICATE_H
#define M3_ORACLE_JUDGE_CERTIFICATE_H

#include <stdint.h>

#include "oracle/judge/compare.h"

/* Scores of one decision, by id. */
struct m3_scores {
    const double *score; /* [ids]; -inf: not there to be chosen; NaN: nothing is admissible; NULL: unknown */
    const double *bound; /* [ids], of finite scores; NULL: zeros */
    const double *proven; /* [ids] where `bound` is statistical: the proven ones; NULL: `bound` is proven */
    const unsigned char *forced; /* [ids] 1: chosen whatever the score; NULL: none is */
    int64_t ids;
};

/* One decision of both sides, slot by slot. */
struct m3_decision {
    const int64_t *want, *got; /* [width]; want is sound (m3_ids_fault) */
    int64_t width, limit; /* ids are below limit; INT64_MAX: unknown */
    int padded; /* -1 is no id */
    int ties_lowest;
    int slots_fixed; /* slots are to descend by score */
    struct m3_scores scores; /* by which `got` is judged; ids at most limit */
    const double *truth; /* [limit] the reference's scores, which tell a tie; NULL: unknown */
    int64_t *lists; /* [2 width] room */
    unsigned char *marks; /* [scores.ids] room; zeros, and left so */
};

struct m3_certificate {
    enum m3_choice choice;
    const char *fault; /* static text of what is inadmissible; else NULL */
    int differs; /* the sets do */
    int unknown; /* inadmissible, for there are no scores to judge another set by */
    int suspect; /* inadmissible by a statistical bound alone */
    int certified; /* no conforming result can be another set than that of the scores */
    int64_t want, got; /* the first ids that the other side has not; -1: none */
    int64_t last, runner_up; /* the ids that decide: one of `got`, one that it left; -1: none */
    double gap, bound; /* score of `last` less that of `runner_up`: below 0, the scores choose otherwise;
                                       the sum of their bounds. +inf and 0 if one is missing, NaN without scores */
};

/* As compare judged it. */
struct m3_judged_decision {
    const char *tap;
    int64_t row, group; /* its number in the sequence; -1: the tap has no groups */
    const struct m3_decision *decision;
    const struct m3_certificate *certificate;
    const char *scores, *bounded_by; /* as in struct m3_stage */
    int tainted; /* left out of judgement */
};

/* NULL, or what is wrong with a list of ids: out of range, twice. `list` [width] gets those that are ids, ascending,
 * and *count how many. */
const char *m3_ids_fault(int64_t *list, int64_t *count, const int64_t *ids, int64_t width, int64_t limit, int padded);

/* Do some scores within the bounds choose `got`, a sound set? */
int m3_is_admissible(const struct m3_decision *decision);

struct m3_certificate m3_certify(const struct m3_decision *decision);

/* Least score of the chosen, forced ones excepted, less the greatest of the others; +inf if there is none of either.
 * chosen [k], ids at least 0. `marks` as above. */
double m3_margin_of(const struct m3_scores *scores, const int64_t *chosen, int64_t k, unsigned char *marks);

/* ---- scores of experts, x = s + bias: x, b [E]; bias, s, z, h [E] */

struct m3_router_arithmetic {
    double u; /* unit roundoff of the sum and of the sigmoid */
    int c; /* error of exp, in u */
    double stored; /* u of storing s, if coarser; else 0 */
    double bias; /* u at which the bias itself may be rounded; 0: it is exact */
    int tanh_scores; /* the sigmoid's error is u, not u s */
};
/* s known up to h (NULL: exactly), as it was added. */
void m3_choice_by_scores(double *x, double *b, const double *s, const double *h, const double *bias, int64_t E,
                         const struct m3_router_arithmetic *);
/* s made of logits z, known up to h (NULL: exactly). */
void m3_choice_by_logits(double *x, double *b, const double *z, const double *h, const double *bias, int64_t E,
                         const struct m3_router_arithmetic *);

/* Without the bias: the reference's margin, and how far each score is from the reference's, moved [ids] (the same bias
 * on both sides drops out). Writes x and forced [ids]: as scores they make admissible what the margin cannot rule out,
 * and certify what it can. `marks` as above. */
void m3_choice_by_margin(double *x, unsigned char *forced, double margin, const double *moved, const int64_t *want,
                         const int64_t *got, int64_t width, int64_t ids, unsigned char *marks);

#endif
