#include "oracle/operators/fills.h"

#include <math.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "ops/math.h"

static int is(const struct m3_fill *f, const char *kind) { return strcmp(f->kind, kind) == 0; }

/* Uniform in -1 .. 1; coarse values are whole 128ths. */
static double drawn_with(const struct m3_fill *f, uint64_t key, int64_t i)
{
    if (f->coarse) return ((double)m3_draw(key, (uint64_t)i, 255) - 127) / 128;
    return ((double)m3_draw(key, (uint64_t)i, 1 << 24) - 0x1p23) / 0x1p23;
}

static double drawn(const struct m3_fill *f, int64_t i) { return drawn_with(f, f->key, i); }

/* Uniform in 0 .. 1, never 0. */
static double positive(const struct m3_fill *f, int64_t i) { return (drawn(f, i) + 1) / 2 + 0x1p-9; }

static double at_limit(const struct m3_fill *f, int64_t i)
{
    static const double at[] = { 7, 6.9375, 7.0625, -7, -6.9375, -7.0625, 0.5, -0.5 };
    const double x = at[(uint64_t)(i + i / 8) % 8];
    return fabs(x) < 1 ? x : x * f->call.limit / 7;
}

/* Neighbours have the same size; the second operand has them with opposite signs, so that little is left. */
static double cancelling(const struct m3_fill *f, int64_t i)
{
    if (f->key == f->other) return drawn(f, i / 2);
    const double rest = 0x1p-7 * drawn(f, i);
    return (f->row->role == M3_ROLE_WEIGHT ? (i % 2 ? -1 : 1) * drawn(f, i / 2) : -drawn_with(f, f->other, i / 2)) +
           rest;
}

static double angle_of(const struct m3_fill *f, int64_t i)
{
    double sin, cos;
    m3_sincos(&sin, &cos, 3.5 * drawn_with(f, f->other, i));
    return f->row->role == M3_ROLE_COS ? cos : sin;
}

static double scaled(const struct m3_fill *f, int64_t i) { return f->scale * drawn(f, i); }

static double zeros(const struct m3_fill *f, int64_t i) { return (void)f, (void)i, 0; }

static double ones(const struct m3_fill *f, int64_t i) { return (void)f, (void)i, 1; }

static double small(const struct m3_fill *f, int64_t i) { return 0x1p-11 * drawn(f, i); }

static double large(const struct m3_fill *f, int64_t i) { return 48 * drawn(f, i); }

static double minus_large(const struct m3_fill *f, int64_t i) { return -8 - 24 * positive(f, i); }

static double far(const struct m3_fill *f, int64_t i) { return 100 * drawn(f, i); }

static double tail(const struct m3_fill *f, int64_t i) { return -2 - 4 * positive(f, i); }

static int64_t row_of(const struct m3_fill *f, int64_t i) { return i / f->width; }

static int64_t column_of(const struct m3_fill *f, int64_t i) { return i % f->cols; }

static double one_hot(const struct m3_fill *f, int64_t i) { return column_of(f, i) == row_of(f, i) % f->cols; }

static double spike(const struct m3_fill *f, int64_t i) { return one_hot(f, i) != 0 ? 1000 : drawn(f, i); }

static double mixed(const struct m3_fill *f, int64_t i)
{
    return ldexp(drawn(f, i), (int)m3_draw(f->key + 1, (uint64_t)i, 17) - 8);
}

static double whole(const struct m3_fill *f, int64_t i) { return (double)m3_draw(f->key, (uint64_t)i, 9) - 4; }

static double counted(const struct m3_fill *f, int64_t i)
{
    const int by_row = f->row->letters[0] == 'S' || f->row->letters[0] == 'P';
    return (by_row ? (double)row_of(f, i) : 0) + 1 + (double)column_of(f, i) / 64;
}

static double minus(const struct m3_fill *f, int64_t i) { return -1 - positive(f, i); }

static double rising(const struct m3_fill *f, int64_t i) { return 1 + (double)row_of(f, i) / 2; }

static double equal(const struct m3_fill *f, int64_t i) { return (void)f, (void)i, 0.5; }

static double ties(const struct m3_fill *f, int64_t i) { return (double)(1 + m3_draw(f->key, (uint64_t)i, 3)) / 4; }

static double falling(const struct m3_fill *f, int64_t i) { return -(double)column_of(f, i); }

static double infinite(const struct m3_fill *f, int64_t i) { return i % 3 == 1 ? -INFINITY : drawn(f, i); }

static double shifted(const struct m3_fill *f, int64_t i) { return 100 + drawn(f, i); }

static double signed_zeros(const struct m3_fill *f, int64_t i) { return (void)f, i % 2 ? -0.0 : 0; }

static double half_up(const struct m3_fill *f, int64_t i) { return 0.5 + positive(f, i); }

static double share(const struct m3_fill *f, int64_t i) { return positive(f, i) / (double)f->call.K; }

/* A kind without a function is one of ids, lists and places; the values of a real operand are then drawn. */
static const struct {
    const char *kind;
    m3_fill_value *value;
} kinds[] = {
    { "zeros", zeros },
    { "ones", ones },
    { "one", ones },
    { "small", small },
    { "large", large },
    { "far", far },
    { "tail", tail },
    { "minus_large", minus_large },
    { "spike", spike },
    { "mixed", mixed },
    { "whole", whole },
    { "one_hot", one_hot },
    { "cancel", cancelling },
    { "counted", counted },
    { "minus", minus },
    { "rising", rising },
    { "equal", equal },
    { "ties", ties },
    { "falling", falling },
    { "infinite", infinite },
    { "limits", at_limit },
    { "shifted", shifted },
    { "edges", NULL },
    { "short", NULL },
    { "own", NULL },
    { "first", NULL },
    { "same", NULL },
    { "some", NULL },
    { "late", NULL },
    { "block", NULL },
    { "parts", NULL },
    { "two", NULL },
    { "video", NULL },
    { "none", NULL },
    { "all", NULL },
    { "codes", NULL },
    { "wide", NULL },
    { "earlier", NULL },
    { "signed_zeros", signed_zeros },
};

static int kind_of(const char *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].kind, kind) == 0) return (int)i;
    return -1;
}

int m3_fill_is_known(const char *kind) { return !kind[0] || kind_of(kind) >= 0; }

static int is_tap(const struct m3_fill *f, enum m3_tap tap)
{
    return f->row->role == M3_ROLE_TAP && f->row->tap == tap;
}

m3_fill_value *m3_fill_real(const struct m3_fill *f)
{
    const int kind = kind_of(f->kind);
    if (f->row->role == M3_ROLE_COS || f->row->role == M3_ROLE_SIN) return angle_of;
    if (f->row->role == M3_ROLE_SCALES) return is(f, "one") ? ones : half_up;
    if (f->kind[0]) return kind >= 0 && kinds[kind].value ? kinds[kind].value : scaled;
    if (is_tap(f, M3_TAP_ROUTER_SCORES)) return positive;
    return is_tap(f, M3_TAP_EXPERT_WEIGHTS) ? share : scaled;
}

int m3_fill_drawing(struct m3_drawing *drawing, const struct m3_fill *f)
{
    const double half = f->coarse ? 127 : 0x1p23;
    *drawing = (struct m3_drawing){ .key = f->key,
                                    .levels = f->coarse ? 255 : 1 << 24,
                                    .offset = half,
                                    .scale = f->scale / (f->coarse ? 128 : 0x1p23),
                                    .dtype = M3_F32 };
    return m3_fill_real(f) == scaled;
}

/* ---- ids, lists, places */

/* Ascending blocks, the row's own one last, or with "earlier" the one before it, then -1. */
static int64_t listed_block(const struct m3_fill *f, int64_t i)
{
    const int64_t N = f->cols, slot = i % N, row = i / f->width, last = (f->call.p0 + row) / f->call.block;
    const int64_t own = is(f, "earlier") ? last - 1 : last;
    int64_t others = m3_min(N - 1, own);
    if (is(f, "short")) others = m3_min(others, 1);
    if (slot > others || own < 0) return -1;
    if (slot == others) return own;
    const int64_t step = own / others;
    return slot * step + (int64_t)m3_draw(f->key, (uint64_t)i, (uint64_t)step);
}

static int64_t expert(const struct m3_fill *f, int64_t i)
{
    const int64_t K = f->cols, k = i % K, row = i / K, E = f->call.E;
    if (is(f, "first")) return k;
    if (is(f, "same")) return E - 1 - k;
    return ((int64_t)m3_draw(f->key, (uint64_t)row, (uint64_t)E) + k) % E;
}

static int64_t token(const struct m3_fill *f, int64_t i)
{
    const struct m3_fill_call *c = &f->call;
    const int64_t drawn_id = (int64_t)m3_draw(f->key, (uint64_t)i, (uint64_t)(c->V ? c->V : 1000));
    if (c->V) return is(f, "edges") ? (i == 0 ? 0 : i == 1 ? c->V - 1 : 3) : drawn_id;
    const int64_t other = drawn_id == c->id ? drawn_id + 1 : drawn_id;
    if (is(f, "none") || c->M == 0) return other;
    if (is(f, "all")) return c->id;
    /* M placeholders: the first two rows, the last one, and those between them. */
    if (c->M == 1) return i == c->T / 2 ? c->id : other;
    return i == c->T - 1 || i < c->M - 1 ? c->id : other;
}

static int64_t position(const struct m3_fill *f, int64_t i)
{
    static const int64_t far[] = { 1, 4097, 65537, 999983 };
    if (is(f, "zeros")) return 0;
    return is(f, "far") ? far[i % 4] : f->row->role == M3_ROLE_PLACES ? (int64_t)m3_draw(f->key, (uint64_t)i, 64) : i;
}

static int64_t seen(const struct m3_fill *f, int64_t i)
{
    if (is(f, "late")) return i >= 3;
    if (is(f, "block")) return i / f->call.block != 1;
    return i % 3 != 1;
}

/* The ends of segments: of one row each, or of lengths 1, 2, .. as far as there is room. */
static int64_t segment_end(const struct m3_fill *f, int64_t i)
{
    const int64_t P = f->call.P, n = f->call.n;
    if (i == n - 1) return P;
    return is(f, "parts") ? m3_min((i + 1) * (i + 2) / 2, P - n + i + 1) : (i + 1) * P / n;
}

/* One picture of 4 rows; two pictures of 16 and P - 16 patches; a video of P / 8 steps. */
static int64_t grid(const struct m3_fill *f, int64_t i)
{
    const int64_t P = f->call.P, at = i % 3;
    if (is(f, "video")) return at == 0 ? P / 8 : at == 1 ? 2 : 4;
    if (is(f, "two")) return at == 0 ? 1 : i < 3 ? 4 : at == 1 ? 2 : (P - 16) / 2;
    return at == 0 ? 1 : at == 1 ? 4 : P / 4;
}

/* ue8m0. */
static int64_t scale_byte(const struct m3_fill *f, int64_t i)
{
    static const int64_t wide[] = { 0, 118, 127, 130 };
    if (is(f, "wide")) return wide[i % 4];
    return is(f, "one") ? 127 : 125 + (int64_t)m3_draw(f->key, (uint64_t)i, 4);
}

int64_t m3_fill_id(const struct m3_fill *f, int64_t i)
{
    switch (f->row->role) {
    case M3_ROLE_IDS: return token(f, i);
    case M3_ROLE_POSITIONS:
    case M3_ROLE_PLACES: return position(f, i);
    case M3_ROLE_SEEN: return seen(f, i);
    case M3_ROLE_ENDS: return segment_end(f, i);
    case M3_ROLE_GRID: return grid(f, i);
    case M3_ROLE_SCALES: return scale_byte(f, i);
    default: return f->row->tap == M3_TAP_INDEX_BLOCKS ? listed_block(f, i) : expert(f, i);
    }
}
