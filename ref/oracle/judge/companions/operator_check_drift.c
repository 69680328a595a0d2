/* Taps that need weights: the reference's output, its bounds, and the drift of the inputs. SPEC 7.8. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/gain.h"
#include "oracle/error/intermediates.h"
#include "oracle/judge/companions/drift.h"
#include "oracle/error/profiles/codes.h"
#include "oracle/judge/companions/private/operator_check.h"
#include "oracle/judge/private/values.h"

/* The inputs of an operator whose weight is absent: one tap, or two side by side. */
struct inputs {
    const struct m3_tensor *want[2], *got[2];
    double dumped[2];           /* unit roundoff of their dump only */
    int count;
};

/* Returns 0 if one of them does not have the same rows. */
static int find_inputs(struct inputs *in, const struct m3_operator_check *check, const struct m3_matched *m)
{
    const struct m3_setting *s = &check->setting;
    const enum m3_tap tap = (enum m3_tap)m->tap;
    *in = (struct inputs){ .count = 0 };
    for (int i = 0; i < M3_OPERANDS; i++) {
        enum m3_tap operand;
        int64_t layer;
        char name[96];
        if (m3_graph_operand(&operand, &layer, s->model, s->semantics, tap, m->layer, i) != 0) continue;
        if (m3_tap_table[operand].kind != M3_KIND_REALS || operand == M3_TAP_EXPERT_WEIGHTS) continue;
        if (in->count == 2 || !m3_operator_check_is_admitted(check, operand, layer)) return 0;
        if (m3_tap_name(name, sizeof name, operand, layer) != 0) return 0;
        const struct m3_tensor *want = m3_safetensors_find(m->reference->file, name);
        const struct m3_tensor *got = m3_safetensors_find(m->candidate->file, name);
        if (want == NULL || got == NULL || !m3_holds_floats(want) || !m3_holds_floats(got)) return 0;
        if (want->rank != got->rank || want->rank == 0 || want->shape[0] != m->want->shape[0] ||
            got->shape[0] != m->got->shape[0])
            return 0;
        for (int k = 1; k < want->rank; k++)
            if (want->shape[k] != got->shape[k]) return 0;
        in->want[in->count] = want;
        in->got[in->count] = got;
        in->dumped[in->count++] = s->profile != NULL ? m3_profile_dump_rounding(s->profile, name) : 0;
    }
    return in->count > 0;
}

/* The tap's companions, and the roundings that the profile adds. */
struct drifting {
    struct m3_companion beside;
    struct inputs inputs;
    double stored, weights, dumped, intermediates;      /* roundoffs: here, of weights, the dump, intermediates */
    struct m3_input_rounding quantised;         /* of the inputs; dtype M3_DTYPES: none */
    struct m3_input_rounding inside; /* of the last product's inputs inside a gated MLP */
    double largest[2]; /* of each input, all its rows */
    double *row; /* scratch for an input row, its errors and variances; NULL: none */
    struct m3_partials partials; /* of the last product, */
    int64_t terms; /* which has so many terms */
    double reference_u; /* of a reference that is not the truth itself; 0 */
    double *bias; /* [width]; NULL: none */
    int bends;
};

/* How long a vector may be that roundings add to a row of inputs, and the sum of its variances. */
struct rounded {
    double dumped, quantised, variance;
};

/* Adds what quantising a row costs by its own numbers; returns its error squared. */
static double quantise(struct rounded *rounded, const struct drifting *d, const struct m3_weight *got, int64_t first,
                       int64_t n, double largest)
{
    double *x = d->row, *error = x + n, *variance = x + 2 * n, squares = 0;
    m3_expand_f64(x, got, 0, first, n);
    memset(error, 0, (size_t)(2 * n) * sizeof *error);
    m3_round_inputs(&(struct m3_spread){ error, variance }, x, 1, n, largest, &d->quantised);
    for (int64_t k = 0; k < n; k++) {
        squares += error[k] * error[k];
        rounded->variance += variance[k];
    }
    return squares;
}

/* Computes how far the inputs of one row have drifted, and the length that their own rounding may add. */
static int drift_of(struct m3_drift *drift, struct rounded *rounded, const struct drifting *d, int64_t want_row,
                    int64_t got_row)
{
    enum { SOME = 512 };
    const struct inputs *in = &d->inputs;
    double want[SOME], got[SOME], squares = 0, quantised = 0;
    *drift = (struct m3_drift){ 0 };
    *rounded = (struct rounded){ 0 };
    for (int i = 0; i < in->count; i++) {
        const struct m3_tensor *a = in->want[i], *b = in->got[i];
        const struct m3_weight w = { .data = a->data, .dtype = a->dtype, .rows = 1, .cols = a->count };
        const struct m3_weight g = { .data = b->data, .dtype = b->dtype, .rows = 1, .cols = b->count };
        const double u = in->dumped[i];
        const int64_t n = a->shape[0] > 0 ? a->count / a->shape[0] : 0;
        for (int64_t at = 0; at < n; at += SOME) {
            const int64_t piece = m3_min(SOME, n - at);
            m3_expand_f64(want, &w, 0, want_row * n + at, piece);
            m3_expand_f64(got, &g, 0, got_row * n + at, piece);
            m3_drift_add(drift, want, got, piece);
            for (int64_t k = 0; k < piece; k++) squares += u * got[k] * u * got[k];
        }
        if (d->row != NULL) quantised += quantise(rounded, d, &g, got_row * n, n, d->largest[i]);
    }
    rounded->dumped = sqrt(squares);
    rounded->quantised = sqrt(quantised);
    rounded->variance += squares / 3;
    return m3_drift_is_known(drift) && isfinite(squares) && isfinite(quantised);
}

/* At most the sum of the squares of the last product's terms, of output `at` of size `size`: for a dot product it
 * follows from walk, and for experts it is not more than what the rounding of their activations says. */
static double squares_of(const struct drifting *d, double walk, int64_t at, double size)
{
    const double n = (double)d->terms, squares = (walk * walk - (n / 3 + 1) * size * size) / (n / 6 + 1);
    const double *inside = d->bends ? d->beside.intermediates_walk : NULL;
    return inside != NULL ? fmin(squares, inside[at] * inside[at]) : squares;
}

/* What rounding the parts of a product adds to what storing it costs. How large its terms are is not known. `error` is
 * that of element `i` so far: the candidate's terms may be so much larger. */
static void add_partials(struct m3_side_by_side *s, const struct drifting *d, int64_t i, int64_t at, double size)
{
    const double u = d->stored, error = s->error[i], growth = pow(1 + u, d->partials.ranks + 1);
    struct m3_sum_sizes of = { .mass = s->bound[i] / (d->bends ? (double)d->terms : 1) + error, .sum = size + error };
    double most, variance;
    m3_partials_estimate(&most, &variance, &of, &d->partials);
    s->error[i] += growth * u * most;
    of = (struct m3_sum_sizes){ .squares = fmax(0, squares_of(d, s->walk[i], at, size)), .sum = size };
    m3_partials_estimate(&most, &variance, &of, &d->partials);
    s->variance[i] += u * u * variance;
}

/* What rounding inside a gated MLP adds: of intermediates where they are stored, and of the activation where it is
 * rounded for the last product. Its numbers are not known. In E4M3 the largest number of a block may saturate, which
 * raises the variance by less than half. */
static void add_inside(struct m3_side_by_side *s, const struct drifting *d, int64_t i, int64_t at, double size)
{
    const double spread = d->intermediates * d->beside.intermediates_walk[at];
    const double u = d->inside.codes == M3_CODES_E4M3 ? sqrt(1.5) * 0x1p-4 : m3_input_roundoff(&d->inside);
    s->error[i] += d->intermediates * d->beside.intermediates[at];
    s->variance[i] += spread * spread / 3;
    if (d->inside.dtype == M3_DTYPES) return;
    s->error[i] += m3_input_roundoff(&d->inside) * d->beside.intermediates[at];
    s->variance[i] += u * u * fmax(0, squares_of(d, s->walk[i], at, size)) / 3;
}

/* One row, or one slot of it: n elements, at `to` in s and at `at` in the reference. */
static void drift_row(struct m3_side_by_side *s, const struct drifting *d, int64_t to, int64_t at, int64_t got_at,
                      int64_t n, int64_t got_width)
{
    const int64_t width = d->beside.width, row = at / width;
    const double *gain = d->beside.gain + row * d->beside.gain_stride + at % width;
    struct m3_drift drift;
    struct rounded rounded;
    if (drift_of(&drift, &rounded, d, row, got_at / got_width)) {
        const struct m3_drift_row out = { .reference = s->want + to,
                                          .gain = gain,
                                          .width = n,
                                          .bends = d->bends,
                                          .bias = d->bias != NULL ? d->bias + at % width : NULL };
        m3_drift_propagate(&(struct m3_spread){ s->error, s->variance }, to, &drift, &out);
    } else {
        rounded = (struct rounded){ 0 };
    }
    for (int64_t i = 0; i < n; i++) {
        const double size = isfinite(s->want[to + i]) ? fabs(s->want[to + i]) : 0, B = s->bound[to + i];
        s->error[to + i] += gain[i] * (rounded.dumped + (d->bends ? 1.5 : 1) * rounded.quantised);
        s->variance[to + i] += drift.n > 0 ? gain[i] * gain[i] * rounded.variance / (double)drift.n : 0;
        m3_side_by_side_add(s, to + i, d->stored * size);
        m3_side_by_side_add(s, to + i, d->dumped * size);
        s->error[to + i] += d->weights * B;
        s->variance[to + i] += d->weights * d->weights * B * B / 3;
        if (d->partials.ranks > 0) add_partials(s, d, to + i, at + i, size);
        if (d->intermediates > 0 || d->inside.dtype != M3_DTYPES) add_inside(s, d, to + i, at + i, size);
        if (d->reference_u == 0) continue;
        const double steps = (double)(d->beside.n + d->beside.f), sigma = d->reference_u * s->walk[to + i];
        s->error[to + i] += m3_bound_allowed(B, steps, d->reference_u);
        s->variance[to + i] += sigma * sigma / 3;
    }
}

static int gather_drift(struct m3_side_by_side *s, const struct m3_pieces *pieces, const struct drifting *d,
                        const struct m3_matched *m, struct m3_error *error)
{
    const struct m3_finding stage = { .reference = m->want, .candidate = m->got };
    int status = m3_side_by_side_room(s, pieces->elements, 0, m->want->name, error);
    if (status != M3_OK) return status;
    for (int64_t p = 0; p < pieces->count; p++) {
        const struct m3_piece *piece = &pieces->all[p];
        m3_piece_read(s->want + s->count, s->got + s->count, &stage, piece, 0, piece->length);
        memcpy(s->bound + s->count, d->beside.bound + piece->want, (size_t)piece->length * sizeof(double));
        memcpy(s->walk + s->count, d->beside.walk + piece->want, (size_t)piece->length * sizeof(double));
        for (int64_t i = 0, n; i < piece->length; i += n) {
            const int64_t at = piece->want + i;
            n = m3_min(piece->length - i, pieces->width - at % pieces->width);
            drift_row(s, d, s->count + i, at, piece->got + i, n, pieces->width);
        }
        s->count += piece->length;
    }
    return M3_OK;
}

/* Sets the row number of the worst element and its index in that row. */
static void place_worst(struct m3_operator_check_result *found, const struct m3_pieces *pieces)
{
    int64_t rest = found->tiers.worst, p = 0;
    found->row = -1;
    if (rest < 0) return;
    while (rest >= pieces->all[p].length) rest -= pieces->all[p++].length;
    const struct m3_piece *piece = &pieces->all[p];
    const int64_t at = piece->want + rest;
    found->row = piece->row + at / pieces->width - piece->want / pieces->width;
    found->rest = at % pieces->width;
}

static int judge_drift(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                       struct m3_matched m, const struct drifting *d, struct m3_error *error)
{
    struct m3_span_walk walk;
    struct m3_pieces pieces;
    struct m3_side_by_side s = { 0 };
    m.drift_is_judged = 1;
    if (m3_span_walk_begin(&walk, &m) != NULL) return M3_OK;
    int status = m3_pieces_of(&pieces, walk, m.want->name, error);
    if (status != M3_OK) return status;
    if (pieces.elements > 0) {
        found->how = M3_CHECK_DRIFT;
        found->n = d->beside.n;
        found->f = d->beside.f;
        status = gather_drift(&s, &pieces, d, &m, error);
        if (status == M3_OK) m3_operator_check_judge_sides(found, check, &s, m.got->name, 0);
        if (status == M3_OK) place_worst(found, &pieces);
    }
    m3_side_by_side_free(&s);
    m3_pieces_free(&pieces);
    return status;
}

/* The coarsest roundoff at which the profile stores intermediates of an expert or the shared expert, and how it
 * quantises the inputs of their products. */
static void read_inside(struct drifting *d, const struct m3_operator_check *check, enum m3_tap tap, int64_t layer)
{
    static const char *const parts[] = { "gate", "up", "chain", "act" };
    const struct m3_profile *profile = check->setting.profile;
    const char *folder = tap == M3_TAP_EXPERT_OUT || tap == M3_TAP_ROUTED ? "moe.expert" : "moe.shared";
    char name[160], point[192];
    if (profile == NULL || m3_tap_name(name, sizeof name, tap, layer) != 0) return;
    d->inside = d->quantised; /* the name of the tap is that of the last product */
    d->quantised.dtype = M3_DTYPES;
    char *moe = strstr(name, "moe.");
    if (moe == NULL) return;
    *moe = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(point, sizeof point, "%s%s.%s", name, folder, parts[i]);
        const struct m3_input_rounding input = m3_profile_input(profile, point);
        if (m3_input_roundoff(&input) > m3_input_roundoff(&d->quantised)) d->quantised = input;
        d->intermediates = fmax(d->intermediates, m3_profile_store(profile, point));
    }
}

/* Do the companions contain the cost of rounding intermediates? */
static int knows_intermediates(const struct drifting *d)
{
    if (d->intermediates == 0 && d->inside.dtype == M3_DTYPES) return 1;
    if (m3_has_wide_error(&d->inside)) return 0;
    return d->intermediates <= M3_INTERMEDIATES_U && d->beside.intermediates != NULL &&
           d->beside.intermediates_walk != NULL;
}

/* The parts in which the profile computes the tap's last product. */
static void read_partials(struct drifting *d, const struct m3_operator_check *check, const struct m3_matched *m)
{
    const struct m3_setting *s = &check->setting;
    const struct m3_weight *w = m3_graph_weight(s->model, s->semantics, (enum m3_tap)m->tap, m->layer, 0);
    if (s->profile == NULL || w == NULL ||
        m3_graph_node(s->model, s->semantics, (enum m3_tap)m->tap, m->layer)->adds_input)
        return;
    d->terms = d->bends ? w->rows : w->cols;
    if (d->terms > 0) d->partials = m3_profile_partials(s->profile, m->want->name);
}

/* d->bias := that of a linear operator, if it has one. */
static int read_bias(struct drifting *d, const struct m3_operator_check *check, const struct m3_matched *m,
                     struct m3_error *error)
{
    const struct m3_setting *s = &check->setting;
    const enum m3_tap tap = (enum m3_tap)m->tap;
    if (m3_graph_node(s->model, s->semantics, tap, m->layer)->op != M3_OP_LINEAR) return M3_OK;
    const struct m3_weight *bias = m3_graph_weight(s->model, s->semantics, tap, m->layer, 1);
    if (bias == NULL || bias->data == NULL || bias->cols != d->beside.width) return M3_OK;
    d->bias = malloc((size_t)bias->cols * sizeof *d->bias);
    if (d->bias == NULL) return m3_fail_memory(error, m->want->name, (size_t)bias->cols * sizeof *d->bias);
    m3_expand_f64(d->bias, bias, 0, 0, bias->cols);
    return M3_OK;
}

/* d->row, if inputs are quantised. */
static int make_room(struct drifting *d, const struct m3_matched *m, struct m3_error *error)
{
    int64_t most = 0;
    if (d->quantised.dtype == M3_DTYPES) return M3_OK;
    for (int i = 0; i < d->inputs.count; i++) {
        const struct m3_tensor *in = d->inputs.got[i];
        if (in->shape[0] > 0) most = m3_max(most, in->count / in->shape[0]);
        for (int64_t k = 0; k < in->count && m3_codes_need_tensor(&d->quantised); k++)
            d->largest[i] = fmax(d->largest[i], fabs(m3_decode(in->dtype, in->data, k)));
    }
    d->row = malloc((size_t)(3 * most + 1) * sizeof *d->row);
    return d->row != NULL ? M3_OK : m3_fail_memory(error, m->want->name, (size_t)(3 * most) * sizeof *d->row);
}

int m3_operator_check_judge_drift(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                                  const struct m3_matched *m, struct m3_error *error)
{
    const enum m3_tap tap = (enum m3_tap)m->tap;
    const struct m3_profile *profile = check->setting.profile;
    const enum m3_gain_kind kind = m3_gain_kind_of(&check->setting, tap, m->layer, 0);
    struct drifting d = { .bends = kind == M3_GAIN_PROBED,
                          .quantised = { .dtype = M3_DTYPES },
                          .inside = { .dtype = M3_DTYPES } };
    if (tap == M3_TAP_EXPERT_OUT && m3_setting_weighs_first(&check->setting, m->layer)) {
        found->how = M3_CHECK_NO_GAIN;          /* the reference's outputs are not weighted */
        return M3_OK;
    }
    if (kind == M3_GAIN_NONE || !find_inputs(&d.inputs, check, m)) return M3_OK;
    if (profile != NULL) {
        d.quantised = m3_profile_input(profile, m->want->name);
        if (d.bends) read_inside(&d, check, tap, m->layer);
        d.stored = m3_profile_store(profile, m->want->name);
        d.weights = m3_profile_weights(profile, m->want->name);
        d.dumped = m3_profile_dump_rounding(profile, m->want->name);
        read_partials(&d, check, m);
    }
    if (d.bends && d.terms == 0) d.terms = 1;
    const char *precision = m3_safetensors_metadata(m->reference->file, "precision");
    if (precision != NULL && strcmp(precision, "f32") == 0) d.reference_u = 0x1p-24;
    int status = m3_companion_read(&d.beside, check->companions, tap, m->layer, error);
    if (status == M3_OK) status = read_bias(&d, check, m, error);
    if (status == M3_OK) status = make_room(&d, m, error);
    const int has_bound = status == M3_OK && d.beside.bound != NULL && d.beside.walk != NULL;
    if (has_bound && !knows_intermediates(&d))
        found->why = "the profile rounds intermediate values, and the reference does not say what that costs";
    else if (has_bound && d.beside.gain == NULL) found->how = M3_CHECK_NO_GAIN;
    else if (has_bound) status = judge_drift(found, check, *m, &d, error);
    m3_companion_free(&d.beside);
    free(d.bias);
    free(d.row);
    return status;
}
