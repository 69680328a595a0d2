#define M3_REAL_IS_DOUBLE       /* the products are those of the engine in double */
#include "oracle/error/private/products.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "model/engine.h"
#include "ops/fast/kernels.h"
#include "oracle/error/bounds.h"
#include "oracle/error/private/kernels.h"

enum {
    PANEL = 96,             /* weight rows of a piece, */
    STEP = 24,              /* expanded so many at a time */
    ROWS = 192,             /* rows of the operands at a time */
    DEPTH = 128,            /* columns at a time, and a block of the walk */
};

/* Operands of rows [t0, t0 + rows), packed as the product takes them: blocks of at most DEPTH columns of range 0, then of
 * range 1, ..; of each block the strips of sum 0, then of sum 1, .. */
struct packing {
    const struct m3_products *of;
    const struct m3_fused *loops;
    int64_t t0, rows, lanes;            /* lanes: rows, and rows of zeros */
    double *packed;
};

/* ---- where things are */

static int64_t all_sums(const struct m3_products *p)
{
    return (p->second ? 2 : 1) * (int64_t)p->range_count * (p->count + p->walks);
}

static double *sum_at(const struct m3_piece *piece, int weight, int r, int i)
{
    const struct m3_products *p = piece->of;
    return piece->sums + (((int64_t)weight * p->range_count + r) * (p->count + p->walks) + i) * PANEL * piece->stride;
}

const double *m3_piece_sum(const struct m3_piece *piece, int weight, int r, int i)
{
    return sum_at(piece, weight, r, i);
}

const double *m3_piece_walked(const struct m3_piece *piece, int weight)
{
    return sum_at(piece, weight, 0, piece->of->count);
}

/* Range r from column k0 on: the number of columns of all ranges before it. */
static int64_t columns_before(const struct m3_products *p, int r, int64_t k0)
{
    int64_t columns = k0 - p->ranges[r][0];
    for (int i = 0; i < r; i++) columns += p->ranges[i][1] - p->ranges[i][0];
    return columns;
}

static double *packed_at(const struct packing *a, int r, int64_t k0, int64_t k, int i)
{
    return a->packed + (columns_before(a->of, r, k0) * a->of->count + k * i) * a->lanes;
}

/* ---- operands */

static double as_taken(double x, enum m3_sum_kind kind)
{
    return kind == M3_SUM_MASS ? fabs(x) : kind == M3_SUM_SQUARES ? x * x : x;
}

static void pack(const struct packing *a, int r, int64_t k0, int64_t k, int i)
{
    const struct m3_sum *sum = &a->of->sums[i];
    const int64_t cols = a->of->w->cols;
    double *to = packed_at(a, r, k0, k, i);
    for (int64_t first = 0, width; first < a->lanes; first += width) {
        width = m3_min(a->loops->width, a->lanes - first);
        for (int64_t lane = 0; lane < width; lane++) {
            const int64_t t = first + lane;
            const double *x = sum->x + (a->t0 + t) * cols + k0;
            double *strip = to + first * k + lane;
            for (int64_t j = 0; j < k; j++) strip[j * width] = t < a->rows ? as_taken(x[j], sum->kind) : 0;
        }
    }
}

static void pack_all(const struct packing *a, int team)
{
    const struct m3_products *p = a->of;
#pragma omp parallel num_threads(team)
    for (int r = 0; r < p->range_count; r++)
#pragma omp for nowait
        for (int64_t k0 = p->ranges[r][0]; k0 < p->ranges[r][1]; k0 += DEPTH)
            for (int i = 0; i < p->count; i++) pack(a, r, k0, m3_min(DEPTH, p->ranges[r][1] - k0), i);
}

/* ---- one piece */

/* Some weight rows, as the sums take them, and a block of products. */
struct room {
    double *w, *w_size, *w_square;      /* [STEP,DEPTH] */
    double *block;                      /* [STEP,ROWS] */
    double *sums;
};
enum { ROOM = 3 * STEP * DEPTH + STEP * ROWS };

static struct room room_at(double *memory)
{
    return (struct room){ memory, memory + STEP * DEPTH, memory + 2 * STEP * DEPTH, memory + 3 * STEP * DEPTH,
                          memory + ROOM };
}

static const double *as_summed(const struct room *room, enum m3_sum_kind kind)
{
    return kind == M3_SUM_PRODUCTS ? room->w : kind == M3_SUM_MASS ? room->w_size : room->w_square;
}

/* Adds columns [k0, k0 + k) of range r to the sums of weight rows [l, l + lanes) of the piece. */
static void add_block(const struct m3_piece *piece, const struct packing *a, const struct room *room, int weight, int r,
                      int64_t k0, int64_t k, int64_t l, int64_t lanes)
{
    const struct m3_products *p = piece->of;
    const int64_t at = l * piece->stride, n = lanes * piece->stride;
    const int is_first = k0 == p->ranges[r][0];
    for (int i = 0; i < p->count; i++) {
        const int walks = p->walks && i == 0;
        double *sums = sum_at(piece, weight, r, i) + at, *walked = sum_at(piece, weight, r, p->count) + at;
        a->loops->product(walks ? room->block : sums, piece->stride, as_summed(room, p->sums[i].kind),
                          packed_at(a, r, k0, k, i), lanes, piece->stride, k, !walks && !is_first);
        if (!walks) continue;
        if (is_first) memset(sums, 0, (size_t)n * sizeof *sums), memset(walked, 0, (size_t)n * sizeof *walked);
        m3_error_kernels()->walk(sums, walked, room->block, n, (double)k);
    }
}

static void add_range(const struct m3_piece *piece, const struct packing *a, const struct room *room, int weight, int r)
{
    const struct m3_products *p = piece->of;
    const struct m3_weight *w = weight ? p->second : p->w;
    const struct m3_kernels *engine = m3_engine_f64()->inner_loops();
    const struct m3_error_kernels *kernels = m3_error_kernels();
    const size_t all = (size_t)((p->count + p->walks) * PANEL * piece->stride) * sizeof(double);
    if (p->ranges[r][0] >= p->ranges[r][1]) memset(sum_at(piece, weight, r, 0), 0, all); /* a rank without columns */
    for (int64_t k0 = p->ranges[r][0], k; k0 < p->ranges[r][1]; k0 += k) {
        k = m3_min(DEPTH, p->ranges[r][1] - k0);
        for (int64_t l = 0; l < piece->lanes; l += STEP) {
            const int64_t lanes = m3_min(STEP, piece->lanes - l);
            for (int64_t i = 0; i < lanes; i++) engine->expand(room->w + i * k, w, piece->n0 + l + i, k0, k);
            kernels->sizes(room->w_size, room->w_square, room->w, lanes * k);
            add_block(piece, a, room, weight, r, k0, k, l, lanes);
        }
    }
}

/* ---- all pieces */

static void add_up(const struct packing *a, double *scratch, int64_t each, int team, m3_at_piece *visit,
                   const void *self)
{
    const struct m3_products *p = a->of;
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t n0 = 0; n0 < p->w->rows; n0 += PANEL) {
        const struct room room = room_at(scratch + omp_get_thread_num() * each);
        const struct m3_piece piece = { .t0 = a->t0,
                                        .rows = a->rows,
                                        .n0 = n0,
                                        .lanes = m3_min(PANEL, p->w->rows - n0),
                                        .stride = a->lanes,
                                        .of = p,
                                        .sums = room.sums };
        for (int weight = 0; weight < (p->second ? 2 : 1); weight++)
            for (int r = 0; r < p->range_count; r++) add_range(&piece, a, &room, weight, r);
        visit(self, &piece);
    }
}

int m3_products(struct m3_ctx *ctx, const struct m3_products *given, int64_t T, m3_at_piece *visit, const void *self)
{
    struct m3_products p = *given;
    const int64_t all[1][2] = { { 0, p.w->cols } };
    if (!p.ranges) p.ranges = all, p.range_count = 1;
    const struct m3_fused *loops = m3_engine_f64()->inner_loops()->fused;
    const int64_t most = (m3_min(T, ROWS) + loops->lanes - 1) / loops->lanes * loops->lanes;
    const int64_t columns = columns_before(&p, p.range_count - 1, p.ranges[p.range_count - 1][1]);
    const int64_t each = ROOM + all_sums(&p) * PANEL * most;
    const int team = (int)m3_min(m3_team(ctx, T * p.w->rows * p.w->cols), (p.w->rows + PANEL - 1) / PANEL);
    const size_t mark = m3_scratch_mark(ctx);
    double *packed = m3_scratch_take(ctx, columns * p.count * most, sizeof *packed);
    double *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    for (int64_t t0 = 0; t0 < T && packed && scratch; t0 += ROWS) {
        const int64_t rows = m3_min(ROWS, T - t0), lanes = (rows + loops->lanes - 1) / loops->lanes * loops->lanes;
        const struct packing a = { &p, loops, t0, rows, lanes, packed };
        pack_all(&a, team);
        add_up(&a, scratch, each, team, visit, self);
    }
    m3_scratch_release(ctx, mark);
    return packed && scratch ? M3_OK : M3_INTERNAL;
}

double m3_walk2(const struct m3_walk *how, double sum, double walked, double squares, double y)
{
    const double n = (double)how->cols, block = fmin(n, DEPTH);
    const double in_order = walked + ((block + 1) / 6 + 1) * squares;
    const double mean = (n / 6 + 1) * squares + (n / 3 + 1) * sum * sum;
    return fmax(in_order, mean) + how->weight_roundings * squares + (how->has_bias ? y * y : 0);
}

/* A double is rounded to a float, and so is a code times a scale of 24 bits, unless the scale is a power of 2. A code of
 * at most 5 bits times a scale of BF16, F16 or E4M3 is exact. */
int m3_bound_weight_roundings(const struct m3_weight *w, double u)
{
    if (u <= 0x1p-53) return 0;
    if (w->dtype == M3_F64) return 1;
    if (w->scaling == M3_SCALE_NVFP4) return !m3_is_power_of_two(w->global);
    if (m3_weight_is_packed(w)) return w->scale_dtype == M3_F32 || w->scale_dtype == M3_F64;
    if (w->scaling != M3_SCALE_128X128) return 0;
    int64_t scales = (w->rows + 127) / 128 * ((w->cols + 127) / 128);
    for (int64_t i = 0; i < scales; i++)
        if (!m3_is_power_of_two(m3_decode(M3_F32, w->scales, i))) return 1;
    return 0;
}
