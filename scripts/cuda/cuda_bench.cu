/* Times the operators of cuda/kernels.h on data that lies on the device, at released sizes, one JSON line each.
 *
 * Inputs are drawn; blocks are those that select_blocks takes by the scores measured before it. Outputs start as NaN
 * and must have none left, lists must be as long as they have to be, and some rows of everything that is timed are
 * computed again in double. flops and bytes are counted from sizes: pairs
 * of query and key that are seen, inputs once, outputs once. `moved` adds what passes through device memory between
 * kernels: the partial results of attention, written and read.
 *
 * Before each run memory is written that fills the device's cache; decoding takes other data with every call. */
#include "cuda_bench.cuh"

static const char help[] =
    "usage: cuda_bench [--small]\n"
    "\n"
    "Times block scores, selection, attention to chosen blocks, linear and experts on device 0. One JSON line each:\n"
    "seconds is the median of the runs, least the shortest; tflops and gbs are flops and bytes over seconds; moved is\n"
    "bytes, and what kernels hand on to each other through device memory.\n"
    "\n"
    "  --small   sizes that take no time: to see that everything runs\n"
    "\n"
    "Exit status: 0 done; 1 an output is wrong; 64 wrong usage; 69 no device; 70 an error of the device.\n";

/* G X Q D block N H F E K; T of prefill, S of decoding, T of products; the rest as it stands in struct sizes. */
static const struct sizes released = {
    4, 128, 64, 128, 128, 16, 6144, 3072, 128, 4,
    { 8 << 10, 64 << 10 }, { 64 << 10, 1 << 20 }, { 1, 8, 512, 8192 },
    (int64_t)2 << 30, (int64_t)4 << 30, 256 << 20, 1 << 30, 0.5, 5, 64,
};
static const struct sizes small = {
    2, 32, 8, 32, 16, 4, 64, 32, 8, 2,
    { 112, 201 }, { 65, 500 }, { 1, 8, 12, 70 },
    8 << 10, 1 << 20, 1 << 10, 1 << 16, 0, 1, 3,
};

/* ---- sparse attention */

enum { MOST_COPIES = 16 };

/* T rows at places p0 on, with all that a sparse layer needs. Decoding: row r is a call of its own. */
struct sparse {
    struct m3_semantics semantics;
    enum m3_cuda_type type, partials;
    int64_t rows, T, p0, B, copies;
    struct m3_attend attend;
    void *index_q, *index_k[MOST_COPIES], *q, *k[MOST_COPIES], *v[MOST_COPIES];
    float *m, *o, *lse;
    int32_t *ids;
    void *scratch;
    size_t bytes;
};

static const void *at(const void *x, enum m3_cuda_type type, int64_t i)
{
    return (const char *)x + i * (int64_t)bytes_of(type);
}

static struct m3_index index_of(const struct bench *b, const struct sparse *s, int64_t T, int64_t p0)
{
    struct m3_index d = {};
    d.T = T, d.p0 = p0, d.G = b->z.G, d.X = b->z.X, d.block = b->z.block, d.B = s->B, d.N = b->z.N;
    d.semantics = &s->semantics;
    return d;
}

/* `rows` rows in calls of T; m has room for `score_rows` of them. */
static struct sparse sparse_of(struct bench *b, enum m3_cuda_type type, int64_t rows, int64_t T, int64_t p0,
                               int64_t score_rows, int64_t copies)
{
    const struct sizes *z = &b->z;
    const int64_t S = p0 + T;
    struct sparse s = {};
    s.semantics.local_blocks = 1;
    s.type = type, s.rows = rows, s.T = T, s.p0 = p0, s.B = m3_pieces(S, z->block), s.copies = copies;
    s.attend.T = T, s.attend.p0 = p0, s.attend.Q = z->Q, s.attend.G = z->G, s.attend.D = z->D;
    s.attend.block = z->block, s.attend.N = z->N;
    s.index_q = drawn(b, type, rows * z->G * z->X, 0, 1);
    s.q = drawn(b, type, rows * z->Q * z->D, 0, 1);
    for (int64_t c = 0; c < copies; c++) {
        s.index_k[c] = drawn(b, type, S * z->X, 0, 1);
        s.k[c] = drawn(b, type, S * z->G * z->D, 0, 1);
        s.v[c] = drawn(b, type, S * z->G * z->D, 0, 1);
    }
    s.m = (float *)take(b, score_rows * z->G * s.B, sizeof *s.m);
    s.ids = (int32_t *)take(b, rows * z->G * z->N, sizeof *s.ids);
    s.o = (float *)take(b, rows * z->Q * z->D, sizeof *s.o);
    s.lse = (float *)take(b, rows * z->Q, sizeof *s.lse);
    s.bytes = m3_cuda_attend_scratch(&s.attend, s.partials, (size_t)z->scratch);
    demand(s.bytes > 0, "scratch for one row");
    s.scratch = take(b, (int64_t)s.bytes, 1);
    return s;
}

/* Keys that the rows of a call see, all of them or those of N blocks, the row's own among them. */
static double keys_seen(const struct bench *b, const struct sparse *s, int chosen)
{
    const int64_t most = b->z.N * b->z.block;
    double keys = 0;
    for (int64_t p = s->p0; p < s->p0 + s->T; p++)
        keys += !chosen || p < most ? (double)p + 1 : (double)(most - b->z.block + p % b->z.block + 1);
    return keys;
}

/* Lists of a call are of blocks that its rows see, and none is missing. */
static void demand_full_lists(struct bench *b, const struct sparse *s)
{
    const int64_t N = b->z.N, lists = s->rows * b->z.G;
    int32_t *ids = (int32_t *)malloc((size_t)(lists * N) * sizeof *ids);
    demand(ids != NULL, "no memory for lists");
    fetch(b, ids, s->ids, lists * N * (int64_t)sizeof *ids);
    for (int64_t i = 0; i < lists; i++) {
        const int64_t own = (s->p0 + i / b->z.G % s->T) / b->z.block, length = own + 1 < N ? own + 1 : N;
        const int32_t *list = ids + i * N;
        demand(list[length - 1] == own && list[0] >= 0, "a list of blocks without the row's own");
        for (int64_t n = 1; n < length; n++) demand(list[n] > list[n - 1], "a list of blocks that does not ascend");
        for (int64_t n = length; n < N; n++) demand(list[n] == -1, "a list of blocks without its tail");
    }
    free(ids);
}

static void scores_of(struct bench *b, struct sparse *s, float *m, int64_t row, int64_t T, int64_t p0, int64_t copy)
{
    const struct m3_index d = index_of(b, s, T, p0);
    ok(m3_cuda_block_scores(b->stream, m, b->nan_at, at(s->index_q, s->type, row * d.G * d.X), s->index_k[copy],
                            s->type, &d), "block_scores");
}

static void select_of(struct bench *b, struct sparse *s, const float *m, int64_t row, int64_t T, int64_t p0)
{
    const struct m3_index d = index_of(b, s, T, p0);
    ok(m3_cuda_select_blocks(b->stream, s->ids + row * d.G * d.N, b->nan_at, m, &d), "select_blocks");
}

static void attend_of(struct bench *b, struct sparse *s, int64_t row, int64_t copy)
{
    const struct m3_attend *d = &s->attend;
    ok(m3_cuda_attend_blocks(b->stream, s->o + row * d->Q * d->D, s->lse + row * d->Q,
                             at(s->q, s->type, row * d->Q * d->D), s->k[copy], s->v[copy],
                             s->ids + row * d->G * d->N, s->type, d, s->partials, s->scratch, s->bytes),
       "attend_blocks");
}

/* Of one row: m [G,B] at `m`, q of index row `row`, first, middle and last visible block. */
static void check_scores(struct bench *b, const struct sparse *s, const float *m, int64_t row, int64_t place, int copy)
{
    const struct sizes *z = &b->z;
    const enum m3_dtype dtype = dtype_of(s->type);
    const int64_t X = z->X, own = place / z->block, wide = (int64_t)bytes_of(s->type);
    for (int64_t g = 0; g < z->G; g += z->G - 1)
        for (int64_t sample = 0; sample < 3; sample++) {
            const int64_t at = own * sample / 2, first = at * z->block, end = first + z->block;
            void *q = copied(b, (const char *)s->index_q + (row * z->G + g) * X * wide, X * wide);
            void *k = copied(b, (const char *)s->index_k[copy] + first * X * wide,
                             ((end < place + 1 ? end : place + 1) - first) * X * wide);
            double most = -INFINITY, size, largest = 0;
            float got;
            fetch(b, &got, m + g * s->B + at, sizeof got);
            for (int64_t j = first; j < end && j <= place; j++) {
                const double x = dot(&size, q, dtype, (const char *)k + (j - first) * X * wide, dtype, X);
                most = x > most ? x : most;
                largest = size > largest ? size : largest;
            }
            demand_near(got, most, largest, (double)X, "a block score");
            free(q);
            free(k);
        }
}

/* Of one row: its first and its last head. Weights of bfloat16 are off by 2^-8, those of partial results too. */
static void check_attention(struct bench *b, const struct sparse *s, int64_t row, int64_t place, int copy)
{
    const struct sizes *z = &b->z;
    const enum m3_dtype dtype = dtype_of(s->type);
    const int64_t D = z->D, wide = (int64_t)bytes_of(s->type), heads = z->Q / z->G;
    double size, off = s->type == M3_CUDA_F32 ? 0x1p-12 : 0x1p-7;
    double *sums = (double *)calloc((size_t)D * 2, sizeof *sums);
    demand(sums != NULL, "no memory for a sample");
    for (int64_t h = 0; h < z->Q; h += z->Q - 1) {
        const int64_t g = h / heads, stride = z->G * D * wide;
        int32_t *list = (int32_t *)copied(b, s->ids + (row * z->G + g) * z->N, z->N * 4);
        void *q = copied(b, (const char *)s->q + (row * z->Q + h) * D * wide, D * wide);
        float *o = (float *)copied(b, s->o + (row * z->Q + h) * D, D * 4), lse;
        double sum = 0;
        memset(sums, 0, (size_t)D * 2 * sizeof *sums);
        fetch(b, &lse, s->lse + row * z->Q + h, sizeof lse);
        for (int64_t n = 0; n < z->N && list[n] >= 0; n++) {
            const int64_t first = list[n] * z->block, left = place + 1 - first;
            const int64_t keys = left < z->block ? left : z->block;
            char *k = (char *)copied(b, (const char *)s->k[copy] + first * stride, keys * stride) + g * D * wide;
            char *v = (char *)copied(b, (const char *)s->v[copy] + first * stride, keys * stride) + g * D * wide;
            for (int64_t j = 0; j < keys; j++) {        /* logits of drawn numbers need no maximum */
                const double p = exp(dot(&size, q, dtype, k + j * stride, dtype, D) / sqrt((double)D));
                sum += p;
                for (int64_t c = 0; c < D; c++) {
                    const double term = p * value_of(v + j * stride, dtype, c);
                    sums[2 * c] += term;
                    sums[2 * c + 1] += fabs(term);
                }
            }
            free(k - g * D * wide);
            free(v - g * D * wide);
        }
        demand(fabs(lse - log(sum)) <= 0x1p-12 * (1 + fabs(log(sum))), "an lse of attention");
        for (int64_t c = 0; c < D; c++)
            demand(fabs(o[c] - sums[2 * c] / sum) <= off * sums[2 * c + 1] / sum, "an output of attention");
        free(list);
        free(q);
        free(o);
    }
    free(sums);
}

/* Scores and lists of all rows, in pieces whose scores fit into m. */
static void time_selection(struct bench *b, struct sparse *s, int64_t piece, double *scores, double *select)
{
    *scores = *select = 0;
    for (int64_t t = 0; t < s->T; t += piece) {
        const int64_t rows = t + piece < s->T ? piece : s->T - t;
        flush(b);
        scores_of(b, s, s->m, t, rows, t, 0);
        mark(b, 1);
        select_of(b, s, s->m, t, rows, t);
        mark(b, 2);
        *select += between(b, 1);
        *scores += between(b, 0);
    }
}

static void attend_all(struct bench *b, void *s, int) { attend_of(b, (struct sparse *)s, 0, 0); }

static void prefill(struct bench *b, enum m3_cuda_type type, int64_t T)
{
    const struct sizes *z = &b->z;
    const int64_t most = z->scores / (z->G * m3_pieces(T, z->block) * 4), piece = most < T ? most : T;
    struct sparse s = sparse_of(b, type, T, T, 0, piece, 1);
    struct samples scores = {}, select = {}, attend;
    double seconds[2] = { 0, 0 }, all[2] = { 0, 0 };
    const double size = bytes_of(type), rows = (double)T, lists = rows * (double)(z->G * z->N) * 4;
    const double m_bytes = rows * (double)(z->G * s.B) * 4, qo = rows * (double)(z->Q * z->D);

    scores.n = select.n = -1;
    do time_selection(b, &s, piece, &seconds[0], &seconds[1]);
    while (goes_on(b, &select, seconds[1], &all[1]) | goes_on(b, &scores, seconds[0], &all[0]));
    demand_no_nan_met(b);
    demand_written(b, s.m, (T - (T - 1) / piece * piece) * z->G * s.B, "a block score was not written");
    demand_full_lists(b, &s);
    attend = time_calls(b, attend_all, &s, 1);
    demand_written(b, s.o, T * z->Q * z->D, "an output of attention was not written, or is NaN");
    demand_written(b, s.lse, T * z->Q, "an lse was not written, or is NaN");
    for (int64_t t = T - 1; t >= 0 && t > T - 4; t -= 2) {      /* m has the last piece */
        const int64_t in_piece = t - (T - 1) / piece * piece;
        if (in_piece >= 0) check_scores(b, &s, s.m + in_piece * z->G * s.B, t, t, 0);
        check_attention(b, &s, t * 2 / 3, t * 2 / 3, 0);
    }

    const double seen = keys_seen(b, &s, 0), chosen = keys_seen(b, &s, 1);
    double candidates = 0, entries = 0;
    for (int64_t t = 0; t < T; t++) {
        const double visible = (double)(t / z->block + 1);
        candidates += visible;
        entries += visible < (double)z->N ? visible : (double)z->N;
    }
    report(&scores, "block_scores", type, T, T, 2 * (double)(z->G * z->X) * seen,
           (rows * (double)(z->G * z->X) + rows * (double)z->X) * size + m_bytes, 0);
    report(&select, "select_blocks", type, T, T, 0, candidates * (double)z->G * 4 + lists, 0);
    report(&attend, "attend_blocks", type, T, T, 4 * (double)(z->Q * z->D) * chosen,
           (qo + 2 * rows * (double)(z->G * z->D)) * size + lists + (qo + rows * (double)z->Q) * 4,
           2 * entries * (double)(z->Q * (z->D + 2)) * 4);
    free_taken(b);
}

static void decode_scores(struct bench *b, void *self, int i)
{
    struct sparse *s = (struct sparse *)self;
    scores_of(b, s, s->m + i * b->z.G * s->B, i, 1, s->p0, i % s->copies);
}

static void decode_select(struct bench *b, void *self, int i)
{
    struct sparse *s = (struct sparse *)self;
    select_of(b, s, s->m + i * b->z.G * s->B, i, 1, s->p0);
}

static void decode_attend(struct bench *b, void *self, int i)
{
    struct sparse *s = (struct sparse *)self;
    attend_of(b, s, i, i % s->copies);
}

static void decode_step(struct bench *b, void *self, int i)
{
    decode_scores(b, self, i);
    decode_select(b, self, i);
    decode_attend(b, self, i);
}

/* As many copies of all keys as take a quarter of what is free, so that calls one behind the other read others. */
static int64_t copies_of(struct bench *b, enum m3_cuda_type type, int64_t S)
{
    size_t left = 0, total = 0;
    ok(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    const int64_t most = MOST_COPIES, one = S * (b->z.X + 2 * b->z.G * b->z.D) * (int64_t)bytes_of(type);
    const int64_t fit = (int64_t)(left / 4) / one;
    return fit < 1 ? 1 : fit < most ? fit : most;
}

static void decode(struct bench *b, enum m3_cuda_type type, int64_t S)
{
    const struct sizes *z = &b->z;
    struct sparse s = sparse_of(b, type, z->calls, 1, S - 1, z->calls, copies_of(b, type, S));
    const double size = bytes_of(type), chosen = keys_seen(b, &s, 1), qo = (double)(z->Q * z->D);
    const double index_bytes = ((double)S + (double)z->G) * (double)z->X * size, m_bytes = (double)(z->G * s.B) * 4;
    const double lists = (double)(z->G * z->N) * 4, index_flops = 2 * (double)(z->G * z->X) * (double)S;
    const double attend_bytes = 2 * chosen * (double)(z->G * z->D) * size + qo * (size + 4) + (double)z->Q * 4 + lists;
    const double attend_flops = 4 * qo * chosen;

    struct samples scores = time_calls(b, decode_scores, &s, z->calls);
    demand_no_nan_met(b);
    struct samples select = time_calls(b, decode_select, &s, z->calls);
    demand_written(b, s.m, z->calls * z->G * s.B, "a block score was not written");
    demand_full_lists(b, &s);
    struct samples attend = time_calls(b, decode_attend, &s, z->calls);
    demand_written(b, s.o, z->calls * z->Q * z->D, "an output of attention was not written, or is NaN");
    for (int i = 0; i < z->calls; i += z->calls - 1) {
        check_scores(b, &s, s.m + i * z->G * s.B, i, S - 1, (int)(i % s.copies));
        check_attention(b, &s, i, S - 1, (int)(i % s.copies));
    }
    struct samples step = time_calls(b, decode_step, &s, z->calls);
    report(&scores, "block_scores", type, 1, S, index_flops, index_bytes + m_bytes, 0);
    report(&select, "select_blocks", type, 1, S, 0, m_bytes + lists, 0);
    report(&attend, "attend_blocks", type, 1, S, attend_flops, attend_bytes, 0);
    report(&step, "step", type, 1, S, index_flops + attend_flops, index_bytes + attend_bytes, 0);
    free_taken(b);
}

/* ---- products with weights */

enum { MATRICES = 4, MOST_EXPERTS = 128 };

struct products {
    enum m3_cuda_type type;
    int64_t T, rows_of_x;
    struct m3_weight w[MATRICES];
    struct m3_cuda_experts d;
    struct m3_expert *experts;
    const void *x;
    float *y, *p;
    int32_t *ids;
    void *scratch;
    size_t bytes;
};

/* Codes of E4M3 from 2^-4 to nearly 16, of both signs. */
static __global__ void draw_codes(unsigned char *codes, int64_t n, uint64_t seed)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const uint64_t z = (seed + (uint64_t)i) * 0x9e3779b97f4a7c15u;
        codes[i] = (unsigned char)((z >> 40 & 128) | (24 + (z >> 50 & 63)));
    }
}

/* BF16, or E4M3 with a ue8m0 of 2^-9 for 32 columns. */
static struct m3_weight matrix(struct bench *b, enum m3_dtype dtype, int64_t rows, int64_t cols)
{
    struct m3_weight w = {};
    w.dtype = dtype;
    w.rows = rows, w.cols = cols;
    if (dtype == M3_BF16) {
        w.data = drawn(b, M3_CUDA_BF16, rows * cols, 0, 1 / sqrtf((float)cols));
        return w;
    }
    unsigned char *codes = (unsigned char *)take(b, rows * cols, 1);
    void *scales = take(b, rows * (cols / 32), 1);
    b->seed += 0x5851f42d4c957f2du;
    ok(m3_launch(b->stream, draw_codes, dim3(blocks_for(rows * cols)), 256, 0, codes, rows * cols, b->seed), "draw");
    ok(cudaMemsetAsync(scales, 118, (size_t)(rows * (cols / 32)), b->stream), "memset");
    w.data = codes, w.scales = scales, w.scaling = M3_SCALE_MX32;
    return w;
}

/* Row n of w, with *scale for all its numbers; to be freed. */
static void *row_of(struct bench *b, double *scale, const struct m3_weight *w, int64_t n)
{
    const int64_t wide = w->dtype == M3_BF16 ? 2 : 1;
    *scale = w->scaling == M3_SCALE_MX32 ? 0x1p-9 : 1;
    return copied(b, (const char *)w->data + n * w->cols * wide, w->cols * wide);
}

static void run_linear(struct bench *b, void *self, int i)
{
    struct products *s = (struct products *)self;
    ok(m3_cuda_linear(b->stream, s->y, s->x, s->type, &s->w[i % MATRICES], NULL, s->T), "linear");
}

static void linear(struct bench *b, enum m3_cuda_type type, int64_t T)
{
    const int64_t H = b->z.H;
    struct products s = {};
    s.type = type, s.T = T;
    for (int i = 0; i < MATRICES; i++) s.w[i] = matrix(b, M3_BF16, H, H);
    s.x = drawn(b, type, T * H, 0, 1);
    s.y = (float *)take(b, T * H, sizeof *s.y);
    struct samples samples = time_calls(b, run_linear, &s, MATRICES);
    demand_written(b, s.y, T * H, "an output of linear was not written, or is NaN");
    for (int64_t i = 0; i < 8; i++) {
        const int64_t t = T * i / 8, n = H - 1 - i * 5, last = MATRICES - 1;
        void *x_t = copied(b, at(s.x, type, t * H), H * (int64_t)bytes_of(type));
        double size, scale;
        void *w = row_of(b, &scale, &s.w[last], n);
        float got;
        fetch(b, &got, s.y + t * H + n, sizeof got);
        const double want = dot(&size, x_t, dtype_of(type), w, M3_BF16, H);
        demand_near(got, want, size, (double)H, "an output of linear");
        free(x_t);
        free(w);
    }
    const double weights = (double)(H * H), x = (double)(T * H);
    report(&samples, "linear", type, T, 0, 2 * (double)T * weights, 2 * weights + x * (bytes_of(type) + 4), 0);
    free_taken(b);
}

/* Call i takes tokens i T to (i + 1) T - 1. */
static void run_experts(struct bench *b, void *self, int i)
{
    struct products *s = (struct products *)self;
    const int64_t first = i * s->T % s->rows_of_x;
    ok(m3_cuda_experts(b->stream, s->y, NULL, at(s->x, s->type, first * s->d.H), s->ids + first * s->d.K,
                       s->p + first * s->d.K, s->experts, &s->d, s->scratch, s->bytes), "experts");
}

/* Weights of all experts if they take at most half of what is free; else some serve for several. all [E]. */
static void put_experts(struct bench *b, struct products *s, struct m3_expert *all)
{
    size_t left = 0, total = 0;
    const int64_t E = s->d.E, H = s->d.H, F = s->d.F, wide = s->d.dtype == M3_BF16 ? 2 : 1;
    ok(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    const int64_t fit = (int64_t)(left / 2) / (3 * wide * H * F), own = fit < E ? 16 : E;
    const struct m3_weight up = matrix(b, s->d.dtype, 2 * own * F, H), down = matrix(b, s->d.dtype, own * H, F);
    for (int64_t e = 0; e < E; e++) {
        struct m3_weight *const w[] = { &all[e].w1, &all[e].w3, &all[e].w2 };
        for (int i = 0; i < 3; i++) {
            const int64_t rows = i < 2 ? F : H, first = i < 2 ? (e % own * 2 + i) * F : e % own * H;
            *w[i] = i < 2 ? up : down;
            w[i]->rows = rows;
            w[i]->data = (const char *)w[i]->data + first * w[i]->cols * wide;
            if (w[i]->scales) w[i]->scales = (const char *)w[i]->scales + first * (w[i]->cols / 32);
        }
    }
    s->experts = (struct m3_expert *)take(b, E, sizeof *s->experts);
    ok(cudaMemcpyAsync(s->experts, all, (size_t)E * sizeof *all, cudaMemcpyHostToDevice, b->stream), "experts");
    ok(cudaStreamSynchronize(b->stream), "experts");
}

/* Token t of the last call, which began at token `first`: 4 of its outputs, from x on. */
static void check_experts(struct bench *b, const struct products *s, const struct m3_expert *all, int64_t first,
                          int64_t t)
{
    const int64_t H = s->d.H, F = s->d.F, K = s->d.K, slot = (first + t) * K;
    int32_t *ids = (int32_t *)copied(b, s->ids + slot, K * 4);
    float *p = (float *)copied(b, s->p + slot, K * 4), got[4];
    void *x = copied(b, at(s->x, s->type, (first + t) * H), H * (int64_t)bytes_of(s->type));
    double *act = (double *)malloc((size_t)F * sizeof *act), want[4] = {}, sizes[4] = {}, size, scale;
    demand(act != NULL, "no memory for a sample");
    for (int64_t k = 0; k < K; k++) {
        const struct m3_expert *e = &all[ids[k]];
        for (int64_t f = 0; f < F; f++) {
            double sums[2];
            for (int i = 0; i < 2; i++) {
                void *w = row_of(b, &scale, i ? &e->w3 : &e->w1, f);
                sums[i] = scale * dot(&size, x, dtype_of(s->type), w, s->d.dtype, H);
                free(w);
            }
            const double g = fmin(sums[0], 7), u = fmax(fmin(sums[1], 7), -7);
            act[f] = (u + 1) * g / (1 + exp(-(double)s->d.act.alpha * g));
        }
        for (int i = 0; i < 4; i++) {
            void *w = row_of(b, &scale, &e->w2, H * (2 * i + 1) / 8);
            for (int64_t f = 0; f < F; f++) {
                const double term = s->d.factor * p[k] * scale * value_of(w, s->d.dtype, f) * act[f];
                want[i] += term;
                sizes[i] += fabs(term);
            }
            free(w);
        }
    }
    for (int i = 0; i < 4; i++) {       /* activations are rounded to bfloat16: 2^-8 */
        fetch(b, &got[i], s->y + t * H + H * (2 * i + 1) / 8, sizeof got[i]);
        demand(fabs(got[i] - want[i]) <= (s->type == M3_CUDA_F32 ? 0x1p-9 : 0x1p-6) * sizes[i], "an output of experts");
    }
    free(ids);
    free(p);
    free(x);
    free(act);
}

/* How many experts a call needs, on average. */
static double experts_met(struct bench *b, const struct products *s, int calls)
{
    const int64_t chosen = s->T * s->d.K;
    int32_t *ids = (int32_t *)malloc((size_t)(s->rows_of_x * s->d.K) * sizeof *ids);
    double met = 0;
    demand(ids != NULL, "no memory for experts");
    fetch(b, ids, s->ids, s->rows_of_x * s->d.K * (int64_t)sizeof *ids);
    for (int i = 0; i < calls; i++) {
        char seen[MOST_EXPERTS] = {};
        for (int64_t j = 0; j < chosen; j++) {
            const int32_t e = ids[i * chosen + j];
            demand(e >= 0 && e < s->d.E, "route chose an expert that is not there");
            met += !seen[e];
            seen[e] = 1;
        }
    }
    free(ids);
    return met / calls;
}

static void experts(struct bench *b, enum m3_cuda_type type, enum m3_dtype dtype, int64_t T)
{
    struct m3_expert all[MOST_EXPERTS] = {};
    const struct sizes *z = &b->z;
    const int calls = T == 1 ? z->calls : 1;
    struct products s = {};
    s.type = type, s.T = T, s.rows_of_x = T * calls;
    s.d.T = T, s.d.E = z->E, s.d.K = z->K, s.d.H = z->H, s.d.F = z->F, s.d.factor = 2;
    s.d.type = type, s.d.dtype = dtype;
    s.d.act.oai = 1, s.d.act.alpha = 1.702f, s.d.act.limit = 7, s.d.act.clamp = M3_GATE_CLAMP_UPPER;
    put_experts(b, &s, all);
    s.x = drawn(b, type, s.rows_of_x * z->H, 0, 1);
    s.y = (float *)take(b, T * z->H, sizeof *s.y);
    s.ids = (int32_t *)take(b, s.rows_of_x * z->K, sizeof *s.ids);
    s.p = (float *)take(b, s.rows_of_x * z->K, sizeof *s.p);
    const float *scores = (const float *)drawn(b, M3_CUDA_F32, s.rows_of_x * z->E, 0.5f, 0.1f);
    const float *bias = (const float *)drawn(b, M3_CUDA_F32, z->E, 0, 0.1f);
    unsigned long long *zero_at = (unsigned long long *)take(b, 1, sizeof *zero_at);
    ok(m3_cuda_route(b->stream, s.ids, s.p, b->nan_at, zero_at, scores, bias, s.rows_of_x, z->E, z->K), "route");
    demand_no_nan_met(b);
    s.bytes = m3_cuda_experts_scratch(&s.d, (size_t)z->scratch);
    demand(s.bytes > 0, "scratch for one token");
    s.scratch = take(b, (int64_t)s.bytes, 1);
    const double each = 3 * (double)(z->H * z->F), x = (double)(T * z->H), met = experts_met(b, &s, calls);
    struct samples samples = time_calls(b, run_experts, &s, calls);
    demand_written(b, s.y, T * z->H, "an output of experts was not written, or is NaN");
    check_experts(b, &s, all, (calls - 1) * T % s.rows_of_x, T - 1);
    report(&samples, dtype == M3_BF16 ? "experts" : "experts mxfp8", type, T, 0, 2 * (double)(T * z->K) * each,
           (dtype == M3_BF16 ? 2 : 33.0 / 32) * met * each + x * (bytes_of(type) + 4) + (double)(T * z->K) * 8, 0);
    free_taken(b);
}

/* ---- the limit, and everything */

static void run_copy(struct bench *b, void *self, int i)
{
    void *const *halves = (void *const *)self;
    ok(cudaMemcpyAsync(halves[i % 2], halves[1 - i % 2], (size_t)b->z.copy, cudaMemcpyDeviceToDevice, b->stream),
       "copy");
}

static void copy(struct bench *b)
{
    void *halves[2] = { drawn(b, M3_CUDA_F32, b->z.copy / 4, 0, 1), drawn(b, M3_CUDA_F32, b->z.copy / 4, 0, 1) };
    struct samples samples = time_calls(b, run_copy, halves, 2);
    report(&samples, "copy", M3_CUDA_F32, 0, 0, 0, 2 * (double)b->z.copy, 0);
    free_taken(b);
}

static void measure_all(struct bench *b)
{
    const struct sizes *z = &b->z;
    copy(b);
    for (int i = 0; i < SIZES; i++) prefill(b, M3_CUDA_BF16, z->prefill[i]);
    for (int i = 0; i < SIZES; i++) decode(b, M3_CUDA_BF16, z->decode[i]);
    for (int i = 0; i < TOKENS; i++) linear(b, M3_CUDA_BF16, z->tokens[i]);
    for (int i = 0; i < TOKENS; i++) experts(b, M3_CUDA_BF16, M3_BF16, z->tokens[i]);
    for (int i = 0; i < TOKENS; i++) experts(b, M3_CUDA_BF16, M3_F8_E4M3, z->tokens[i]);
    prefill(b, M3_CUDA_F32, z->prefill[0]);     /* in float, which is for checking: the smallest */
    decode(b, M3_CUDA_F32, z->decode[0]);
    linear(b, M3_CUDA_F32, z->tokens[0]);
    experts(b, M3_CUDA_F32, M3_BF16, z->tokens[0]);
}

int main(int argc, char **argv)
{
    struct bench b = {};
    cudaDeviceProp device = {};
    int devices = 0;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return fputs(help, stdout) < 0;
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--small") != 0)) {
        fputs(help, stderr);
        return 64;
    }
    b.z = argc == 2 ? small : released;
    b.seed = 1;
    ok(cudaGetDeviceCount(&devices), "no device");
    ok(devices > 0 ? cudaSuccess : cudaErrorNoDevice, "no device");
    ok(cudaSetDevice(0), "device 0");
    ok(cudaGetDeviceProperties(&device, 0), "device 0");
    ok(cudaStreamCreate(&b.stream), "stream");
    for (int i = 0; i < MARKS; i++) ok(cudaEventCreate(&b.marks[i]), "event");
    ok(cudaMalloc(&b.flushed, (size_t)b.z.flush), "memory");
    ok(cudaMalloc(&b.nan_at, sizeof *b.nan_at), "memory");
    printf("{\"what\": \"device\", \"name\": \"%s\", \"capability\": \"%d.%d\", \"processors\": %d, \"bytes\": %zu}\n",
           device.name, device.major, device.minor, device.multiProcessorCount, device.totalGlobalMem);
    measure_all(&b);
    ok(cudaFree(b.flushed), "free");
    ok(cudaFree(b.nan_at), "free");
    for (int i = 0; i < MARKS; i++) ok(cudaEventDestroy(b.marks[i]), "event");
    ok(cudaStreamDestroy(b.stream), "stream");
    ok(cudaGetLastError(), "at the end");
    return 0;
}
