#include "oracle/weightless.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/drift.h"
#include "oracle/gain.h"
#include "oracle/inside.h"
#include "oracle/precision.h"
#include "oracle/remake.h"
#include "oracle/values.h"

struct m3_weightless {
    const struct m3_companions *companions;
    const struct m3_side *candidate;
    struct m3_setting setting;
    struct m3_ctx ctx;
    struct m3_trace *trace;
    int64_t next;               /* of the call's taps: those before it have been given to the trace */
    struct admitted {
        enum m3_tap tap;
        int64_t layer;
    } *admitted;                /* [count], in execution order: taps that were judged themselves */
    int64_t count, room;
};

int m3_weightless_new(struct m3_weightless **out, const struct m3_companions *companions,
                      const struct m3_profile *profile, const struct m3_side *candidate, struct m3_error *error)
{
    struct m3_weightless *w = *out = calloc(1, sizeof *w);
    if (w == NULL) return m3_fail_memory(error, "comparison", sizeof *w);
    w->companions = companions;
    w->candidate = candidate;
    w->setting = (struct m3_setting){ .model = m3_companions_model(companions), .profile = profile, .ctx = &w->ctx,
                                      .semantics = m3_companions_semantics(companions),
                                      .the_case = m3_companions_case(companions) };
    int status = m3_ctx_init(&w->ctx, omp_get_max_threads(), M3_LINEAR_ORDERED);
    if (status != M3_OK) m3_fail_memory(error, "comparison", 0);
    if (status == M3_OK) status = m3_trace_new(&w->trace, &w->setting, error);
    if (status == M3_OK) return M3_OK;
    m3_weightless_free(w);
    *out = NULL;
    return status;
}

void m3_weightless_free(struct m3_weightless *w)
{
    if (w == NULL) return;
    m3_trace_free(w->trace);
    free(w->admitted);
    m3_ctx_free(&w->ctx);
    free(w);
}

int m3_weightless_admit(struct m3_weightless *w, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    if (w->count == w->room) {
        const int64_t room = 2 * w->room + 64;
        struct admitted *more = realloc(w->admitted, (size_t)room * sizeof *more);
        if (more == NULL) return m3_fail_memory(error, "comparison", (size_t)room * sizeof *more);
        w->admitted = more;
        w->room = room;
    }
    w->admitted[w->count++] = (struct admitted){ tap, layer };
    return M3_OK;
}

static int is_admitted(const struct m3_weightless *w, enum m3_tap tap, int64_t layer)
{
    int64_t low = 0, high = w->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int order = m3_tap_order(w->admitted[middle].tap, w->admitted[middle].layer, tap, layer);
        if (order == 0) return 1;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return 0;
}

/* ---- the candidate's taps, as operands */

static const struct m3_tensor *rows_of(const struct m3_side *side, enum m3_tap tap)
{
    const char letter = m3_tap_table[tap].shape[0];
    return letter == 'T' ? side->rows : letter == 'P' ? side->vision_rows : NULL;
}

static int64_t number_of(const struct m3_tensor *rows, int64_t r) { return rows != NULL ? m3_id_at(rows, r) : r; }

/* The tensor of a tap, if it has the shape that the call gives it. */
static const struct m3_tensor *fitting(const struct m3_weightless *w, enum m3_tap tap, int64_t layer)
{
    char name[96];
    if (m3_tap_name(name, sizeof name, tap, layer) != 0) return NULL;
    const struct m3_tensor *t = m3_safetensors_find(w->candidate->file, name);
    const struct m3_tensor *rows = rows_of(w->candidate, tap);
    if (t == NULL || t->rank == 0) return NULL;
    int64_t width = 1;
    for (int i = 1; i < t->rank; i++) width *= t->shape[i];
    const int64_t all = m3_tap_rows(&w->setting, tap, layer), last = t->shape[0] - 1;
    if (width != m3_tap_width(&w->setting, tap, layer) || (rows != NULL && rows->count != t->shape[0])) return NULL;
    return last < 0 || number_of(rows, last) < all ? t : NULL;
}

/* Can an operator take these ids? Experts: all different; blocks: ascending, then -1; both below `limit`. */
static int are_operands(const int32_t *ids, int64_t width, int blocks, int64_t limit)
{
    for (int64_t i = 0; i < width; i++) {
        if (blocks && ids[i] == -1) {
            if (i == 0 || (i + 1 < width && ids[i + 1] != -1)) return 0;
            continue;
        }
        if (ids[i] < 0 || ids[i] >= limit || (blocks && i > 0 && ids[i] <= ids[i - 1])) return 0;
        for (int64_t j = 0; j < i; j++)
            if (ids[j] == ids[i]) return 0;
    }
    return 1;
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;      /* -1 last */
    return (x > y) - (x < y);
}

/* Ids of a row; returns whether it can be used. */
static int read_ids(int32_t *ids, const struct m3_weightless *w, const struct m3_tensor *t, enum m3_tap tap, int64_t r,
                    int64_t width, int64_t number)
{
    const struct m3_case *c = w->setting.the_case;
    const int blocks = tap == M3_TAP_INDEX_BLOCKS;
    const int64_t groups = blocks ? w->setting.model->config.G : 1, k = width / groups;
    const int64_t limit = blocks ? (c->p0 + number) / w->setting.model->config.block + 1 : w->setting.model->config.E;
    int usable = 1;
    for (int64_t i = 0; i < width; i++) {
        const int64_t id = m3_id_at(t, r * width + i);
        ids[i] = id == (int32_t)id ? (int32_t)id : -2;
    }
    for (int64_t g = 0; g < groups; g++) {
        if (blocks) qsort(ids + g * k, (size_t)k, sizeof *ids, ascending);
        usable &= are_operands(ids + g * k, k, blocks, limit);
    }
    return usable;
}

/* Numbers of a row; returns whether an operator can take them. Only scores of blocks may be -inf. */
static int read_reals(double *x, const struct m3_tensor *t, enum m3_tap tap, int64_t r, int64_t width)
{
    const struct m3_weight row = { .data = t->data, .dtype = t->dtype, .rows = 1, .cols = t->count };
    int usable = 1;
    m3_expand_f64(x, &row, 0, r * width, width);
    for (int64_t i = 0; i < width; i++)
        usable &= fabs(x[i]) <= (double)FLT_MAX || (tap == M3_TAP_INDEX_BLOCK_SCORES && x[i] == -INFINITY);
    return usable;
}

/* Tells the trace the rows of a tap that an operator can take. */
static int put(struct m3_weightless *w, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    const struct m3_tensor *t = fitting(w, tap, layer), *rows = rows_of(w->candidate, tap);
    const int ids = m3_tap_table[tap].kind == M3_KIND_CHOICES;
    if (m3_tap_table[tap].kind == M3_KIND_COUNTS) return M3_OK;
    if (t == NULL || !(ids ? m3_holds_ids(t) : m3_holds_floats(t))) return M3_OK;
    const int64_t width = m3_tap_width(&w->setting, tap, layer), all = m3_tap_rows(&w->setting, tap, layer);
    const size_t size = ids ? sizeof(int32_t) : sizeof(double), room = (size_t)t->count * size + 1;
    char *values = malloc(room);
    int64_t *numbers = malloc(((size_t)t->shape[0] + 1) * sizeof *numbers), kept = 0;
    int status = values != NULL && numbers != NULL ? M3_OK : m3_fail_memory(error, t->name, room);
    for (int64_t r = 0; r < t->shape[0] && status == M3_OK; r++) {
        void *to = values + (size_t)(kept * width) * size;
        numbers[kept] = number_of(rows, r);
        kept += ids ? read_ids(to, w, t, tap, r, width, numbers[kept]) : read_reals(to, t, tap, r, width);
    }
    if (status == M3_OK && kept > 0) {
        struct m3_value value = { .rows = kept, .width = width, .complete = kept == all };
        if (ids) value.ids = (int32_t *)(void *)values;
        else value.values = (double *)(void *)values;
        if (!value.complete) value.numbers = numbers;
        status = m3_trace_put(w->trace, tap, layer, &value, error);
    }
    free(values);
    free(numbers);
    return status;
}

static int put_all_before(struct m3_weightless *w, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    enum m3_tap next;
    int64_t of_layer;
    int status = M3_OK;
    while (status == M3_OK && m3_trace_tap(&w->setting, w->next, &next, &of_layer) &&
           m3_tap_order(next, of_layer, tap, layer) < 0) {
        if (is_admitted(w, next, of_layer)) status = put(w, next, of_layer, error);
        w->next++;
    }
    return status;
}

/* ---- elements side by side */

struct side_by_side {
    double *got, *want, *bound, *walk, *suspect, *error, *variance;     /* [count]; got owns all */
    int64_t count, room;
    int64_t *rows;              /* numbers of rows of created; NULL: pieces say */
};

static int make_room(struct side_by_side *s, int64_t room, const char *tap, struct m3_error *error)
{
    const size_t n = (size_t)room + 1;
    *s = (struct side_by_side){ .got = calloc(n, 7 * sizeof *s->got), .room = room };
    if (s->got == NULL) return m3_fail_memory(error, tap, n * 7 * sizeof *s->got);
    double **parts[] = { &s->want, &s->bound, &s->walk, &s->suspect, &s->error, &s->variance };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) *parts[i] = s->got + (i + 1) * n;
    return M3_OK;
}

static void free_room(struct side_by_side *s)
{
    free(s->got);
    free(s->rows);
}

static void add_spread(struct side_by_side *s, int64_t i, double error)
{
    s->error[i] += error;
    s->variance[i] += error * error / 3;
}

/* By the three tiers. has_suspect: of attention. */
static void judge(struct m3_weightless_found *found, const struct m3_weightless *w, const struct side_by_side *s,
                  const char *name, int has_suspect)
{
    const struct m3_profile *profile = w->setting.profile;
    int any = 0;
    for (int64_t i = 0; i < s->count && !any; i++) any = s->error[i] > 0;
    const struct m3_tap_values tap = {
        .reference = s->want, .candidate = s->got, .bound = s->bound, .walk = s->walk,
        .suspect = has_suspect ? s->suspect : NULL, .extra = any ? s->error : NULL,
        .extra_variance = any ? s->variance : NULL, .count = s->count, .n = found->n, .f = found->f,
        .u = m3_setting_arithmetic(&w->setting, s->count).u,
        .stored = profile != NULL ? m3_profile_dumped(profile, name) : M3_F32,
        .truncates = profile != NULL && m3_profile_truncates(profile),
        .flushes = profile != NULL && m3_profile_flushes(profile),
    };
    found->tiers = m3_verdict_of(&tap);
    if (found->tiers.status != M3_OK) {     /* of inputs as large as floats go, or of companions that are damaged */
        found->how = M3_WEIGHTLESS_NOT;
        found->why = "a bound is no number";
        return;
    }
    found->elements = s->count;
    double squares = 0, allowed = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double a = m3_bound_allowed(s->bound[i], (double)(tap.n + tap.f), tap.u) + s->error[i];
        if (!(a < INFINITY)) continue;
        found->allowed_most = fmax(found->allowed_most, a);
        allowed += a * a;
        squares += isfinite(s->want[i]) ? s->want[i] * s->want[i] : 0;
    }
    found->allowed_l2 = squares > 0 ? sqrt(allowed / squares) : INFINITY;
    const int64_t worst = found->tiers.worst;
    if (worst < 0) return;
    found->got = s->got[worst];
    found->want = s->want[worst];
}

/* ---- made again */

/* How large is what was created, and which arithmetic makes such errors? */
static int look(struct m3_weightless_found *found, const struct side_by_side *s, const char *name,
                struct m3_error *error)
{
    struct looking {
        struct m3_errors errors;
        struct m3_precision_sums sums;
    } *at = calloc(1, sizeof *at);
    if (at == NULL) return m3_fail_memory(error, name, sizeof *at);
    m3_errors_add(&at->errors, s->want, s->got, s->count);
    m3_precision_add(&at->sums, s->want, s->got, s->walk, NULL, s->count);
    for (int k = 0; k < M3_QUANTILES; k++) found->quantiles[k] = m3_errors_quantile(&at->errors, m3_quantiles[k]);
    struct m3_precision precision;
    m3_precision_of(&precision, &at->sums);
    if (precision.looks != M3_LOOKS_UNKNOWN) snprintf(found->looks, sizeof found->looks, "%s", precision.words);
    free(at);
    return M3_OK;
}

static int has_nan(const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(x[i])) return 1;
    return 0;
}

static int64_t number_of_made(const struct m3_remade *made, int64_t k) { return made->numbers ? made->numbers[k] : k; }

/* Rows of the candidate that were made again. */
static int gather_made(struct side_by_side *s, const struct m3_weightless *w, const struct m3_matched *m,
                       const struct m3_remade *made, struct m3_error *error)
{
    const struct m3_tensor *got = m->got, *rows = rows_of(w->candidate, (enum m3_tap)m->tap);
    const struct m3_weight all = { .data = got->data, .dtype = got->dtype, .rows = 1, .cols = got->count };
    const double dumped = w->setting.profile != NULL ? m3_profile_dump_rounding(w->setting.profile, got->name) : 0;
    const int64_t width = made->width;
    int status = make_room(s, got->count, got->name, error);
    if (status != M3_OK) return status;
    s->rows = malloc(((size_t)got->shape[0] + 1) * sizeof *s->rows);
    if (s->rows == NULL) return m3_fail_memory(error, got->name, (size_t)got->shape[0] * sizeof *s->rows);
    for (int64_t r = 0, k = 0; r < got->shape[0]; r++) {
        const int64_t number = number_of(rows, r), to = s->count, bytes = width * (int64_t)sizeof(double);
        while (k < made->rows && number_of_made(made, k) < number) k++;
        if (k == made->rows || number_of_made(made, k) != number || has_nan(made->y + k * width, width)) continue;
        m3_expand_f64(s->got + to, &all, 0, r * width, width);
        memcpy(s->want + to, made->y + k * width, (size_t)bytes);
        memcpy(s->bound + to, made->bound + k * width, (size_t)bytes);
        memcpy(s->walk + to, made->walk + k * width, (size_t)bytes);
        if (made->suspect != NULL) memcpy(s->suspect + to, made->suspect + k * width, (size_t)bytes);
        for (int64_t i = 0; i < width; i++) {
            if (made->extra.error != NULL) s->error[to + i] = made->extra.error[k * width + i];
            if (made->extra.error != NULL) s->variance[to + i] = made->extra.variance[k * width + i];
            if (dumped > 0 && isfinite(s->want[to + i])) add_spread(s, to + i, dumped * fabs(s->want[to + i]));
        }
        s->rows[to / width] = number;
        s->count += width;
    }
    return M3_OK;
}

static int judge_made(struct m3_weightless_found *found, const struct m3_weightless *w, const struct m3_matched *m,
                      const struct m3_remade *made, struct m3_error *error)
{
    struct side_by_side s;
    int status = gather_made(&s, w, m, made, error);
    if (status == M3_OK && s.count > 0) {
        found->how = M3_WEIGHTLESS_CREATED;
        found->rows = s.count / made->width;
        found->n = made->n;
        found->f = made->f;
        judge(found, w, &s, m->got->name, made->suspect != NULL);
        const int64_t worst = found->tiers.worst;
        status = look(found, &s, m->got->name, error);
        found->row = worst < 0 ? -1 : s.rows[worst / made->width];
        found->rest = worst < 0 ? 0 : worst % made->width;
    }
    free_room(&s);
    return status;
}

/* ---- measured drift */

/* What a weight that is absent reads: one tap, or two side by side. */
struct inputs {
    const struct m3_tensor *want[2], *got[2];
    double dumped[2];           /* unit roundoff of their dump alone */
    int count;
};

/* 0 if one of them is not there row by row. */
static int find_inputs(struct inputs *in, const struct m3_weightless *w, const struct m3_matched *m)
{
    const struct m3_setting *s = &w->setting;
    const enum m3_tap tap = (enum m3_tap)m->tap;
    *in = (struct inputs){ .count = 0 };
    for (int i = 0; i < M3_OPERANDS; i++) {
        enum m3_tap operand;
        int64_t layer;
        char name[96];
        if (m3_graph_operand(&operand, &layer, s->model, s->semantics, tap, m->layer, i) != 0) continue;
        if (m3_tap_table[operand].kind != M3_KIND_REALS || operand == M3_TAP_EXPERT_WEIGHTS) continue;
        if (in->count == 2 || !is_admitted(w, operand, layer)) return 0;
        if (m3_tap_name(name, sizeof name, operand, layer) != 0) return 0;
        const struct m3_tensor *want = m3_safetensors_find(m->reference->file, name);
        const struct m3_tensor *got = m3_safetensors_find(m->candidate->file, name);
        if (want == NULL || got == NULL || !m3_holds_floats(want) || !m3_holds_floats(got)) return 0;
        if (want->rank != got->rank || want->rank == 0 || want->shape[0] != m->want->shape[0] ||
            got->shape[0] != m->got->shape[0]) return 0;
        for (int k = 1; k < want->rank; k++)
            if (want->shape[k] != got->shape[k]) return 0;
        in->want[in->count] = want;
        in->got[in->count] = got;
        in->dumped[in->count++] = s->profile != NULL ? m3_profile_dump_rounding(s->profile, name) : 0;
    }
    return in->count > 0;
}

/* How far the inputs of one row have drifted, and how long what their own rounding may add is. */
static int drift_of(struct m3_drift *drift, double *rounded, const struct inputs *in, double quantised,
                    int64_t want_row, int64_t got_row)
{
    enum { SOME = 512 };
    double want[SOME], got[SOME], squares = 0;
    *drift = (struct m3_drift){ 0 };
    for (int i = 0; i < in->count; i++) {
        const struct m3_tensor *a = in->want[i], *b = in->got[i];
        const struct m3_weight w = { .data = a->data, .dtype = a->dtype, .rows = 1, .cols = a->count };
        const struct m3_weight g = { .data = b->data, .dtype = b->dtype, .rows = 1, .cols = b->count };
        const double u = quantised + in->dumped[i];
        const int64_t n = a->shape[0] > 0 ? a->count / a->shape[0] : 0;
        for (int64_t at = 0; at < n; at += SOME) {
            const int64_t piece = m3_min(SOME, n - at);
            m3_expand_f64(want, &w, 0, want_row * n + at, piece);
            m3_expand_f64(got, &g, 0, got_row * n + at, piece);
            m3_drift_add(drift, want, got, piece);
            for (int64_t k = 0; k < piece; k++) squares += u * got[k] * u * got[k];
        }
    }
    *rounded = sqrt(squares);
    return m3_drift_is_known(drift) && isfinite(squares);
}

/* What is beside the tap, and what the profile adds. */
struct drifting {
    struct m3_companion beside;
    struct inputs inputs;
    double stored, quantised, weights, dumped, inside;  /* roundoffs: here, of inputs, weights, the dump, inside */
    double reference_u;                         /* of a reference that is no truth itself; 0 */
    double *bias;                               /* [width]; NULL: none */
    int bends;
};

/* One row, or one slot of it: n elements that are at `to` of s, and at `at` of the reference. */
static void drift_row(struct side_by_side *s, const struct drifting *d, int64_t to, int64_t at, int64_t got_at,
                      int64_t n, int64_t got_width)
{
    const int64_t width = d->beside.width, row = at / width;
    const double *gain = d->beside.gain + row * d->beside.gain_stride + at % width;
    struct m3_drift drift;
    double rounded;
    if (drift_of(&drift, &rounded, &d->inputs, d->quantised, row, got_at / got_width)) {
        const struct m3_drift_row out = { .reference = s->want + to, .gain = gain, .width = n, .bends = d->bends,
                                          .bias = d->bias != NULL ? d->bias + at % width : NULL };
        m3_drift_push(&(struct m3_spread){ s->error, s->variance }, to, &drift, &out);
    } else {
        rounded = 0;
    }
    for (int64_t i = 0; i < n; i++) {
        const double size = isfinite(s->want[to + i]) ? fabs(s->want[to + i]) : 0, B = s->bound[to + i];
        const double length = drift.n > 0 ? rounded / sqrt((double)drift.n) : 0;
        s->error[to + i] += gain[i] * rounded;
        s->variance[to + i] += gain[i] * gain[i] * length * length / 3;
        add_spread(s, to + i, d->stored * size);
        add_spread(s, to + i, d->dumped * size);
        s->error[to + i] += d->weights * B;
        s->variance[to + i] += d->weights * d->weights * B * B / 3;
        if (d->inside > 0) {
            const double spread = d->inside * d->beside.inside_walk[at + i];
            s->error[to + i] += d->inside * d->beside.inside[at + i];
            s->variance[to + i] += spread * spread / 3;
        }
        if (d->reference_u == 0) continue;
        const double steps = (double)(d->beside.n + d->beside.f), sigma = d->reference_u * s->walk[to + i];
        s->error[to + i] += m3_bound_allowed(B, steps, d->reference_u);
        s->variance[to + i] += sigma * sigma / 3;
    }
}

static int gather_drift(struct side_by_side *s, const struct m3_pieces *pieces, const struct drifting *d,
                        const struct m3_matched *m, struct m3_error *error)
{
    const struct m3_stage stage = { .reference = m->want, .candidate = m->got };
    int status = make_room(s, pieces->elements, m->want->name, error);
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

/* The number of the row and the place in it of the worst element. */
static void place_worst(struct m3_weightless_found *found, const struct m3_pieces *pieces)
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

static int judge_drift(struct m3_weightless_found *found, const struct m3_weightless *w, struct m3_matched m,
                       const struct drifting *d, struct m3_error *error)
{
    struct m3_span_walk walk;
    struct m3_pieces pieces;
    struct side_by_side s = { 0 };
    m.drift_is_judged = 1;
    if (m3_span_walk_begin(&walk, &m) != NULL) return M3_OK;
    int status = m3_pieces_of(&pieces, walk, m.want->name, error);
    if (status != M3_OK) return status;
    if (pieces.elements > 0) {
        found->how = M3_WEIGHTLESS_DRIFT;
        found->n = d->beside.n;
        found->f = d->beside.f;
        status = gather_drift(&s, &pieces, d, &m, error);
        if (status == M3_OK) judge(found, w, &s, m.got->name, 0);
        if (status == M3_OK) place_worst(found, &pieces);
    }
    free_room(&s);
    m3_pieces_free(&pieces);
    return status;
}

/* The coarsest roundoff of what the profile stores inside an expert or the shared expert; infinite where inputs are
 * quantised there, too. */
static double roundoff_inside(const struct m3_weightless *w, enum m3_tap tap, int64_t layer)
{
    static const char *const parts[] = { "gate", "up", "chain", "act" };
    const struct m3_profile *profile = w->setting.profile;
    const char *folder = tap == M3_TAP_EXPERT_OUT || tap == M3_TAP_ROUTED ? "moe.expert" : "moe.shared";
    char name[160], point[192];
    double u = 0;               /* `name` is the tap's, whose input rule is that of the last product */
    if (profile == NULL || m3_tap_name(name, sizeof name, tap, layer) != 0) return 0;
    char *moe = strstr(name, "moe.");
    if (moe == NULL) return 0;
    if (m3_profile_input(profile, name).dtype != M3_DTYPES) return INFINITY;
    *moe = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(point, sizeof point, "%s%s.%s", name, folder, parts[i]);
        if (m3_profile_input(profile, point).dtype != M3_DTYPES) return INFINITY;
        u = fmax(u, m3_profile_store(profile, point));
    }
    return u;
}

/* Do the companions say what is rounded inside? */
static int knows_inside(const struct drifting *d)
{
    if (d->inside == 0) return 1;
    return d->inside <= M3_INSIDE_U && d->beside.inside != NULL && d->beside.inside_walk != NULL;
}

/* d->bias := that of a linear operator, if it has one. */
static int read_bias(struct drifting *d, const struct m3_weightless *w, const struct m3_matched *m,
                     struct m3_error *error)
{
    const struct m3_setting *s = &w->setting;
    const enum m3_tap tap = (enum m3_tap)m->tap;
    if (m3_graph_row_of(s->model, s->semantics, tap, m->layer)->op != M3_OP_LINEAR) return M3_OK;
    const struct m3_weight *bias = m3_graph_weight(s->model, s->semantics, tap, m->layer, 1);
    if (bias == NULL || bias->data == NULL || bias->cols != d->beside.width) return M3_OK;
    d->bias = malloc((size_t)bias->cols * sizeof *d->bias);
    if (d->bias == NULL) return m3_fail_memory(error, m->want->name, (size_t)bias->cols * sizeof *d->bias);
    m3_expand_f64(d->bias, bias, 0, 0, bias->cols);
    return M3_OK;
}

static int judge_by_drift(struct m3_weightless_found *found, const struct m3_weightless *w, const struct m3_matched *m,
                          struct m3_error *error)
{
    const enum m3_tap tap = (enum m3_tap)m->tap;
    const struct m3_profile *profile = w->setting.profile;
    const enum m3_gain_kind kind = m3_gain_kind_of(&w->setting, tap, m->layer, 0);
    struct drifting d = { .bends = kind == M3_GAIN_PROBED };
    if (kind == M3_GAIN_NONE || !find_inputs(&d.inputs, w, m)) return M3_OK;
    if (d.bends) d.inside = roundoff_inside(w, tap, m->layer);
    if (profile != NULL) {
        const struct m3_input_rounding input = m3_profile_input(profile, m->want->name);
        if (input.dtype != M3_DTYPES) d.quantised = input.exponent_down ? 0x1p-3 : 0x1p-4;
        d.stored = m3_profile_store(profile, m->want->name);
        d.weights = m3_profile_weights(profile, m->want->name);
        d.dumped = m3_profile_dump_rounding(profile, m->want->name);
    }
    const char *precision = m3_safetensors_metadata(m->reference->file, "precision");
    if (precision != NULL && strcmp(precision, "f32") == 0) d.reference_u = 0x1p-24;
    int status = m3_companion_read(&d.beside, w->companions, tap, m->layer, error);
    if (status == M3_OK) status = read_bias(&d, w, m, error);
    const int has_bound = status == M3_OK && d.beside.bound != NULL && d.beside.walk != NULL;
    if (has_bound && !knows_inside(&d)) found->why = "the profile rounds inside, and nothing says what that costs";
    else if (has_bound && d.beside.gain == NULL) found->how = M3_WEIGHTLESS_NO_GAIN;
    else if (has_bound) status = judge_drift(found, w, *m, &d, error);
    m3_companion_free(&d.beside);
    free(d.bias);
    return status;
}

/* ---- both */

int m3_weightless_judge(struct m3_weightless_found *found, struct m3_weightless *w, const struct m3_matched *matched,
                        struct m3_error *error)
{
    const enum m3_tap tap = (enum m3_tap)matched->tap;
    struct m3_error ignored = { 0 };
    struct m3_remade made;
    *found = (struct m3_weightless_found){ .n = -1, .f = -1, .row = -1, .why = "inputs are lacking" };
    int status = put_all_before(w, tap, matched->layer, error);
    if (status != M3_OK) return status;
    if (fitting(w, tap, matched->layer) == NULL || m3_holds_ids(matched->got)) return M3_OK;
    status = m3_trace_remake(&made, w->trace, tap, matched->layer, &ignored);
    const int is_made = status == M3_OK && made.lacking == NULL && made.y != NULL;
    if (is_made) status = judge_made(found, w, matched, &made, error);
    m3_remade_free(&made);
    if (status == M3_INTERNAL && !is_made)
        status = m3_fail(error, M3_INTERNAL, "%s", ignored.text != NULL ? ignored.text : "memory is short");
    m3_error_free(&ignored);
    if (status == M3_INTERNAL || is_made) return status;
    return judge_by_drift(found, w, matched, error);
}
