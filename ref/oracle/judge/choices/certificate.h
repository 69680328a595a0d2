/* Could a set of ids be selected by scores that are known up to bounds, and could any other set? These are pure
 * functions on arrays. SPEC 7.6.
 *
 * Every score may move by its bound, independently (except `twins`). A set is admissible if some such scores select it, and certified
 * if all of them do. Among equal scores any may be selected (`ties_lowest` 0), or the lowest ids must be. */
#ifndef M3_ORACLE_JUDGE_CERTIFICATE_H
#define M3_ORACLE_JUDGE_CERTIFICATE_H

#include <stdint.h>

#include "oracle/judge/compare.h"

/* Scores of one decision, by id. */
struct m3_scores {
    const double *score; /* [ids]; -inf: not selectable; NaN: nothing is admissible; NULL: unknown */
    const double *bound; /* [ids], for finite scores; NULL: zeros */
    const double *proven; /* [ids] if `bound` is statistical: the proven bounds; NULL: `bound` is proven */
    const unsigned char *forced; /* [ids] 1: selected whatever the score; NULL: none */
    const double *twins[2]; /* [ids] each: ids that are equal in both have one score, wherever it is within its bound.
                               For ties_lowest only; NULLs: every score moves on its own */
    int64_t ids;
};

/* One decision of the reference (want) and the candidate (got), slot by slot. */
struct m3_decision {
    const int64_t *want, *got; /* [width]; want is well-formed (m3_ids_fault) */
    int64_t width, limit; /* ids are below limit; INT64_MAX: unknown */
    int padded; /* -1 means no id */
    int ties_lowest;
    int slots_fixed; /* slots must be ordered by descending score */
    struct m3_scores scores; /* by which `got` is judged; at most `limit` ids */
    const double *truth; /* [limit] the reference's scores, to recognise ties; NULL: unknown */
    int64_t *lists; /* [2 width] scratch */
    unsigned char *marks; /* [scores.ids] scratch; zeros on entry and on return */
};

struct m3_certificate {
    enum m3_choice choice;
    const char *fault; /* static text: why the set is inadmissible; otherwise NULL */
    int differs; /* the sets differ */
    int unknown; /* inadmissible, because another set cannot be judged without scores */
    int suspect; /* inadmissible only by a statistical bound */
    int certified; /* no conforming result can have another set than the one of the scores */
    int64_t want, got; /* the first id that only this side has; -1: none */
    int64_t last, runner_up; /* the deciding ids: one of `got`, one outside it; -1: none */
    double gap, bound; /* score of `last` less that of `runner_up`: below 0, the scores choose otherwise;
                                       the sum of their bounds. +inf and 0 if one is missing, NaN without scores */
};

/* A decision as compare judged it. */
struct m3_judged_decision {
    const char *tap;
    int64_t row, group; /* its number in the sequence; -1: the tap has no groups */
    const struct m3_decision *decision;
    const struct m3_certificate *certificate;
    const char *scores, *bounded_by; /* as in struct m3_finding */
    int tainted; /* not judged */
};

/* Returns NULL, or the fault in a list of ids: out of range, or duplicate. `list` [width] receives the valid ids,
 * ascending, and *count their number. */
const char *m3_ids_fault(int64_t *list, int64_t *count, const int64_t *ids, int64_t width, int64_t limit, int padded);

/* Replaces by -1 the ids of a list of blocks that name no key which the row sees: attention reads nothing there, so
 * engines may leave them in the list. These are the ids after the row's own block, `own`, but below `blocks`; and those
 * that are not in `want` and score -inf in `score`, because a mask hides every key. want, score: NULL: not known.
 * Returns the first id that it replaced; -1: none. */
int64_t m3_drop_unseen(int64_t *got, const int64_t *want, int64_t width, int64_t own, int64_t blocks,
                       const double *score);

/* Do some scores within the bounds select `got`, a well-formed set? */
int m3_is_admissible(const struct m3_decision *decision);

struct m3_certificate m3_certify(const struct m3_decision *decision);

/* The smallest score of the selected ids (without forced ones) minus the largest of the others; +inf if there are none
 * of either. chosen [k], ids at least 0. `marks` as above. */
double m3_margin_of(const struct m3_scores *scores, const int64_t *chosen, int64_t k, unsigned char *marks);

/* ---- scores of experts, x = s + bias: x, b [E]; bias, s, z, h [E] */

struct m3_router_arithmetic {
    double u; /* unit roundoff of the sum and of the sigmoid */
    int c; /* error of exp, in u */
    double stored; /* u of storing s, if coarser; otherwise 0 */
    double added; /* u of storing s + bias, if coarser; otherwise 0 */
    double bias; /* u to which the bias may be rounded; 0: it is exact */
    int tanh_scores; /* the sigmoid's error is u, not u s */
};
/* From s, known up to h (NULL: exactly), as used in the sum. */
void m3_choice_by_scores(double *x, double *b, const double *s, const double *h, const double *bias, int64_t E,
                         const struct m3_router_arithmetic *);
/* From logits z of s, known up to h (NULL: exactly). */
void m3_choice_by_logits(double *x, double *b, const double *z, const double *h, const double *bias, int64_t E,
                         const struct m3_router_arithmetic *);

/* Without the bias: from the reference's margin, and the distance of each score from the reference's, moved [ids] (the
 * same bias on both sides cancels). Writes x and forced [ids]: used as scores they make admissible what the margin
 * cannot exclude, and certify what it can. `marks` as above. */
void m3_choice_by_margin(double *x, unsigned char *forced, double margin, const double *moved, const int64_t *want,
                         const int64_t *got, int64_t width, int64_t ids, unsigned char *marks);

#endif
