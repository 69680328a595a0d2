/* Where inputs are rounded to codes of 4 or 8 bits, what is allowed may hold results that are plainly wrong. A pass that
 * zeros or a known mistake of the operator would also get says nothing. SPEC 7.7. */
#include <math.h>

#include "oracle/cause/mistaken.h"
#include "oracle/judge/side_by_side.h"
#include "oracle/judge/tolerance.h"

/* A mistake that moves the results by less, relative to them in L2, is small beside the rounding of codes itself. */
static const double least_effect = 0.01;

struct blind {
    const struct m3_blaming *b;
    const struct m3_blame_item *item;
    const struct m3_recomputed *made; /* the right results */
    struct m3_side_by_side_rules rules;
    double dumped; /* unit roundoff of the dump */
};

int m3_blame_is_product(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_setting *s = b->setting;
    switch (m3_graph_node(s->model, s->semantics, item->tap, item->layer)->op) {
    case M3_OP_LINEAR:
    case M3_OP_ACTIVATION:
    case M3_OP_GATED_MLP:
    case M3_OP_EXPERT:
    case M3_OP_ROUTED: return 1;
    default: return 0;
    }
}

/* Are numbers before the tap rounded more coarsely than to BF16? */
static int reads_codes(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    return m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer).before > 0x1p-8;
}

/* Would these results pass, though they are far from the right ones? y NULL: zeros in every row. */
static int passes(int *is_passed, const struct blind *at, const double *y, int64_t first, int64_t rows)
{
    const int64_t width = at->made->y.width;
    struct m3_side_by_side s;
    double off = 0, size = 0;
    int status = m3_side_by_side_room(&s, rows * width, rows, at->item->name, at->b->error);
    *is_passed = 0;
    for (int64_t r = 0; r < rows && !status; r++) {
        double *got = m3_side_by_side_row(&s, at->made, first + r, at->dumped);
        const double *want = s.want + s.count - width;
        for (int64_t i = 0; got && i < width; i++) {
            const double wrong = y ? y[r * width + i] : 0;
            got[i] = isfinite(wrong) ? wrong : want[i];
            off += (got[i] - want[i]) * (got[i] - want[i]);
            size += want[i] * want[i];
        }
    }
    if (!status && off > 0 && sqrt(off) >= least_effect * sqrt(size))
        *is_passed = m3_side_by_side_verdict(&s, &at->rules).verdict == M3_VERDICT_PASS;
    m3_side_by_side_free(&s);
    return status;
}

static int try_mistake(int *is_passed, const struct blind *at, struct m3_mistaken *mistaken,
                       const struct m3_mistake *mistake)
{
    struct m3_tap_values tap;
    int applies;
    int status = m3_mistaken_make(&tap, &applies, mistaken, mistake);
    *is_passed = 0;
    if (!status && applies && m3_tap_doubles(&tap) && tap.width == at->made->y.width)
        status = passes(is_passed, at, m3_tap_doubles(&tap), tap.first, tap.rows);
    m3_tap_values_free(&tap);
    return status;
}

static int try_mistakes(const char **what, const struct blind *at)
{
    struct m3_mistaken *mistaken = NULL;
    int is_passed = 0;
    int status = m3_mistaken_new(&mistaken, at->b, at->item, 0);
    for (int k = 0; k < m3_mistake_count() && !status && !is_passed; k++) {
        const struct m3_mistake *mistake = m3_mistake_at(k);
        if (!m3_mistaken_reaches(at->b, at->item, mistake)) continue;
        status = try_mistake(&is_passed, at, mistaken, mistake);
        if (is_passed) *what = mistake->id;
    }
    m3_mistaken_free(mistaken);
    return status;
}

int m3_blame_test_power(const struct m3_blaming *b, struct m3_blame_item *item, const struct m3_recomputed *made)
{
    const struct m3_profile *profile = b->setting->profile;
    struct m3_finding *out = item->blamed;
    int is_passed;
    if (out->verdict != M3_VERDICT_PASS || !profile || !made->y.values || !reads_codes(b, item)) return M3_OK;
    const double dumped = m3_profile_dump_rounding(profile, item->name);
    const struct blind at = {
        .b = b,
        .item = item,
        .made = made,
        .dumped = dumped,
        .rules = { .setting = b->setting,
                   .tap = item->name,
                   .n = made->n,
                   .f = made->f,
                   .has_suspect = made->suspect != NULL,
                   .has_extra = made->y.off.error != NULL || dumped > 0 },
    };
    int status = passes(&is_passed, &at, NULL, 0, item->rows);
    if (is_passed) out->blind_to = "zeros";
    /* Operands that are given one by one are not in a dump, from which mistakes could be made. */
    else if (!status && b->side.file && m3_blame_is_product(b, item)) status = try_mistakes(&out->blind_to, &at);
    return status;
}
