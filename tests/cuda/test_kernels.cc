/* The kernels of ref/cuda/kernels.h on device memory at released sizes, those of bfloat16 and of stored types above
 * all: heads of 128 channels, 64 on 4 groups, blocks of 128 keys of which 16 are chosen, matrices 6144 deep. Expected
 * values are formed here in double, from operands that are rounded as section 15.1 says. Compiled for a CPU and for a
 * device. Seen to fail: mutations.sh has a list. */
#include "cuda/kernels.h"
#include "slice.h"

#include <algorithm>
#include <check.h>
#include <math.h>
#include <string.h>
#include <vector>

TIMEOUT(120);

enum { G = 4, Q = 64, D = 128, BLOCK = 128, N = 16, H = 6144, F = 3072 };

static const double U = 0x1p-23, U_BF16 = 0x1p-7;    /* of sums that are cut (float), or rounded; a step of bfloat16 */

static uint64_t state = 15;

static double draw()
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(state >> 32) * 0x1p-31;
}

static int pick(int n) { return (int)((draw() + 1) / 2 * n); }

static uint16_t bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double bf16_value(uint16_t code)
{
    const uint32_t bits = (uint32_t)code << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static double rounded(double x) { return bf16_value(bf16_bits((float)x)); }

/* Device memory with a copy of the values. */
template <class T> struct there {
    T *p;
    size_t n;
    explicit there(const std::vector<T> &values) : p(NULL), n(values.size())
    {
        ck_assert_int_eq(cudaMalloc((void **)&p, n * sizeof(T)), cudaSuccess);
        ck_assert_int_eq(cudaMemcpyAsync(p, values.data(), n * sizeof(T), cudaMemcpyHostToDevice, NULL), cudaSuccess);
    }
    there(const there &) = delete;
    ~there() { cudaFree(p); }
    std::vector<T> back() const
    {
        std::vector<T> values(n);
        ck_assert_int_eq(cudaMemcpyAsync(values.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, NULL), cudaSuccess);
        ck_assert_int_eq(cudaStreamSynchronize(NULL), cudaSuccess);
        return values;
    }
};

/* Numbers as the kernels get them, float or bfloat16, and their values. */
struct operand {
    std::vector<double> is;
    std::vector<float> floats;
    std::vector<uint16_t> halves;
    there<unsigned char> *p;
    operand(const std::vector<double> &x, enum m3_cuda_type type) : is(x)
    {
        std::vector<unsigned char> bytes(x.size() * (type == M3_CUDA_F32 ? 4 : 2));
        for (size_t i = 0; i < x.size(); i++) {
            const float value = (float)x[i];
            const uint16_t half = bf16_bits(value);
            is[i] = type == M3_CUDA_F32 ? value : bf16_value(half);
            if (type == M3_CUDA_F32) memcpy(&bytes[4 * i], &value, 4);
            else memcpy(&bytes[2 * i], &half, 2);
        }
        p = new there<unsigned char>(bytes);
    }
    operand(const operand &) = delete;
    ~operand() { delete p; }
};

static std::vector<double> drawn(size_t n, double size)
{
    std::vector<double> x(n);
    for (double &value : x) value = size * draw();
    return x;
}

static void check(const char *what, size_t i, double got, double want, double allowed)
{
    if (!(fabs(got - want) <= allowed))
        ck_abort_msg("%s [%zu]: got %.9g, want %.9g, allowed %.3g", what, i, got, want, allowed);
}

// ---- block scores

/* Rows after p0 places; some keys hidden, one block of them wholly. */
static void check_scores(int T, int p0, enum m3_cuda_type type)
{
    const int S = p0 + T, B = (S + BLOCK - 1) / BLOCK;
    operand q(drawn((size_t)T * G * D, 2), type), k(drawn((size_t)S * D, 1), type);
    std::vector<unsigned char> seen((size_t)S);
    for (int j = 0; j < S; j++) seen[(size_t)j] = j / BLOCK != 1 && j % 17 != 3;
    there<unsigned char> seen_there(seen);
    there<float> m(std::vector<float>((size_t)T * G * B, NAN));
    there<unsigned long long> nan_at({ 0 });
    struct m3_semantics semantics = {};
    struct m3_index d = { T, p0, G, D, BLOCK, B, N, seen_there.p, &semantics };
    semantics.index_scale = T % 2 ? M3_INDEX_SCALE_RSQRT : M3_INDEX_SCALE_1;
    const double scale = T % 2 ? 1 / sqrt((double)D) : 1;
    ck_assert_int_eq(m3_cuda_block_scores(NULL, m.p, nan_at.p, q.p->p, k.p->p, type, &d), cudaSuccess);
    const std::vector<float> got = m.back();
    ck_assert(nan_at.back()[0] == ~0ull);
    for (int at = 0; at < T * G * B; at++) {
        double most = -INFINITY, allowed = 0;
        for (int j = at % B * BLOCK; j < at % B * BLOCK + BLOCK && j <= p0 + at / B / G; j++) {
            double s = 0, size = 0;
            for (int x = 0; x < D && seen[(size_t)j]; x++) {
                const double term = q.is[(size_t)(at / B * D + x)] * k.is[(size_t)(j * D + x)] * scale;
                s += term;
                size += fabs(term);
            }
            if (!seen[(size_t)j]) continue;
            most = fmax(most, s);
            allowed = fmax(allowed, (D + 2) * U * size);
        }
        if (most == -INFINITY) ck_assert(got[(size_t)at] == -INFINITY);
        else check("m", (size_t)at, got[(size_t)at], most, allowed);
    }
}

TEST(scores)
{
    for (int T : { 1, 2, 3, 81 }) {
        check_scores(T, 1001, M3_CUDA_BF16);
        check_scores(T, 300, M3_CUDA_F32);
    }
}

// ---- selection

/* Given: scores with many ties; 1M keys, and so many rows that each has one warp. */
TEST(selection)
{
    for (int many = 0; many < 2; many++) {
        const int T = many ? 520 : 1, B = many ? 40 : 8192, p0 = B * BLOCK - T;
        std::vector<float> scores((size_t)T * G * B);
        for (float &s : scores) s = (float)pick(many ? 9 : 3000);
        there<float> m(scores);
        there<int32_t> ids(std::vector<int32_t>((size_t)T * G * N, -7));
        there<unsigned long long> nan_at({ 0 });
        struct m3_semantics semantics = {};
        semantics.local_blocks = 1;
        struct m3_index d = { T, p0, G, D, BLOCK, B, N, NULL, &semantics };
        ck_assert_int_eq(m3_cuda_select_blocks(NULL, ids.p, nan_at.p, m.p, &d), cudaSuccess);
        const std::vector<int32_t> got = ids.back();
        for (int row = 0; row < T * G; row++) {
            const float *s = &scores[(size_t)row * B];
            const int own = (p0 + row / G) / BLOCK;
            std::vector<int> want;
            for (int b = 0; b < own; b++) want.push_back(b);
            std::stable_sort(want.begin(), want.end(), [s](int a, int b) { return s[a] > s[b]; });
            want.resize(std::min(want.size(), (size_t)N - 1));
            want.push_back(own);
            std::sort(want.begin(), want.end());
            for (size_t n = 0; n < N; n++)
                ck_assert_int_eq(got[(size_t)row * N + n], n < want.size() ? want[n] : -1);
        }
    }
}

// ---- attention

/* The keys of a row and group, from its list. */
static std::vector<int> keys_of(const std::vector<int32_t> &lists, int list, int place)
{
    std::vector<int> keys;
    for (int n = 0; n < N && lists[(size_t)list * N + n] >= 0; n++)
        for (int j = 0; j < BLOCK && lists[(size_t)list * N + n] * BLOCK + j <= place; j++)
            keys.push_back(lists[(size_t)list * N + n] * BLOCK + j);
    return keys;
}

/* One row and head. The weights are rounded to bfloat16 (half a step each), and partial results if they are. */
static void check_row(const float *o, float lse, const double *q, const operand &k, const operand &v, int g,
                      const std::vector<int> &keys, enum m3_cuda_type type, enum m3_cuda_type partials)
{
    std::vector<double> z(keys.size());
    const double scale = 1 / sqrt((double)D);
    double top = -INFINITY, sum = 0, off = 0;
    for (size_t i = 0; i < keys.size(); i++) {
        const double *k_i = &k.is[(size_t)(keys[i] * G + g) * D];
        double size = 0;
        for (int c = 0; c < D; c++) {
            const double term = q[c] * k_i[c] * scale;
            z[i] += term;
            size += fabs(term);
        }
        top = fmax(top, z[i]);
        off = fmax(off, (D + 4) * U * size + 8 * U);
    }
    for (double &x : z) sum += x = exp(x - top);
    const double sums = 2 * off + ((double)keys.size() + 40) * U;
    const double halves = type == M3_CUDA_F32 ? 0 : U_BF16 / 2 * (partials == M3_CUDA_BF16 ? 2.01 : 1.005);
    check("lse", 0, lse, top + log(sum), sums * (1 + fabs(top)));
    double want[D] = {}, size[D] = {};
    for (size_t i = 0; i < keys.size(); i++) {
        const double p = z[i] / sum, *v_i = &v.is[(size_t)(keys[i] * G + g) * D];
        for (int c = 0; c < D; c++) {
            want[c] += p * v_i[c];
            size[c] += fabs(p * v_i[c]);
        }
    }
    for (int c = 0; c < D; c++) check("o", (size_t)c, o[c], want[c], size[c] * (sums + halves));
}

/* `counts`: q is 0, so that every key has the same weight, and a value has a single 1: o counts keys, exactly. */
static void check_attention(int T, int p0, enum m3_cuda_type type, enum m3_cuda_type partials, int counts)
{
    const int S = p0 + T;
    std::vector<double> ones((size_t)S * G * D);
    for (int j = 0; j < S * G; j++) ones[(size_t)(j * D + (j / G * 5 + j) % D)] = 1;
    operand q(drawn((size_t)T * Q * D, counts ? 0 : 3), type), k(drawn((size_t)S * G * D, 1), type);
    operand v(counts ? ones : drawn((size_t)S * G * D, 1), type);
    std::vector<int32_t> lists((size_t)T * G * N, -1);
    for (int i = 0; i < T * G; i++) {
        const int own = (p0 + i / G) / BLOCK;
        int n = 0;
        for (int b = 0; b <= own && n < N; b++)
            if (b == own || (n < N - 1 && pick(10) < 8)) lists[(size_t)i * N + n++] = b;
    }
    there<int32_t> lists_there(lists);
    there<float> o(std::vector<float>((size_t)T * Q * D, NAN)), lse(std::vector<float>((size_t)T * Q, NAN));
    struct m3_attend d = { T, p0, Q, G, D, NULL, BLOCK, N, M3_SELECT_GROUP };
    const size_t bytes = m3_cuda_attend_scratch(&d, partials, (size_t)(T > 100 ? 256 : 16) << 20);
    ck_assert_uint_gt(bytes, 0);
    there<unsigned char> scratch((std::vector<unsigned char>(bytes, 0xFF)));
    ck_assert_int_eq(m3_cuda_attend_blocks(NULL, o.p, lse.p, q.p->p, k.p->p, v.p->p, lists_there.p, type, &d, partials,
                                           scratch.p, bytes),
                     cudaSuccess);
    const std::vector<float> got = o.back(), got_lse = lse.back();
    for (int row = 0; row < T * Q; row += counts || T < 9 ? 1 : 7) {
        const int t = row / Q, g = row % Q / (Q / G);
        const std::vector<int> keys = keys_of(lists, t * G + g, p0 + t);
        if (!counts) {
            check_row(&got[(size_t)row * D], got_lse[(size_t)row], &q.is[(size_t)row * D], k, v, g, keys, type,
                      partials);
            continue;
        }
        std::vector<int> count(D);
        for (int j : keys) count[(size_t)(j * 5 + j * G + g) % D]++;
        for (int c = 0; c < D; c++)
            check("count", (size_t)(row * D + c), got[(size_t)(row * D + c)] * (double)keys.size(), count[(size_t)c],
                  1e-3);
    }
}

/* A slice has each number of tokens and each type, in half of their pairs. */
TEST(attention)
{
    for (int T : { 1, 3, 20 })
        for (int counts = 0; counts < 2; counts++)
            for (int half = 0; half < 2; half++)
                if (in_slice(T / 2 + counts + half, 2))
                    check_attention(T, 2500, M3_CUDA_BF16, half ? M3_CUDA_BF16 : M3_CUDA_F32, counts);
    check_attention(280, 0, M3_CUDA_BF16, M3_CUDA_F32, 0);      /* so many that a warp has rows after its first */
    check_attention(3, 2500, M3_CUDA_F32, M3_CUDA_F32, 0);
    check_attention(3, 2500, M3_CUDA_F32, M3_CUDA_F32, 1);
}

// ---- stored matrices

enum kind { F32, BF16, F8_BLOCK, F8_MX, KINDS };

/* The codes of E4M3, by its definition. */
static const struct e4m3 {
    double is[256];
    e4m3()
    {
        for (int code = 0; code < 256; code++) {
            const int exponent = code >> 3 & 15, fraction = code & 7;
            const double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
            is[code] = code & 128 ? -size : size;
        }
    }
} e4m3;

struct matrix {
    int rows, cols;
    std::vector<float> is;
    there<unsigned char> *data, *scales;
    struct m3_weight weight;
    /* `integers`: numbers of at most 8 times 1 or 2, so that sums of products are exact. */
    matrix(enum kind kind, int n_rows, int n_cols, int integers) : rows(n_rows), cols(n_cols), is((size_t)rows * cols)
    {
        static const int code_of[9] = { 0, 0x38, 0x40, 0x44, 0x48, 0x4A, 0x4C, 0x4E, 0x50 };   /* of 0 .. 8 */
        const int wide = kind == F32 ? 4 : kind == BF16 ? 2 : 1, mx = kind == F8_MX, edge = mx ? 32 : 128;
        const int scale_cols = (cols + edge - 1) / edge, scale_rows = mx ? rows : (rows + 127) / 128;
        std::vector<unsigned char> bytes(is.size() * (size_t)wide);
        std::vector<unsigned char> scale_bytes((size_t)scale_rows * scale_cols * (mx ? 1 : 4));
        std::vector<float> scale((size_t)scale_rows * scale_cols, 1);
        for (size_t i = 0; i < scale.size() && kind >= F8_BLOCK; i++) {
            const int exponent = integers ? pick(2) : -3 - pick(4);
            scale[i] = (float)ldexp(mx || integers ? 1 : 1.5 + 0.4 * draw(), exponent);
            if (mx) scale_bytes[i] = (unsigned char)(127 + exponent);
            else memcpy(&scale_bytes[4 * i], &scale[i], 4);
        }
        size_t i = 0;
        for (int row = 0; row < rows; row++)
            for (int col = 0; col < cols; col++, i++) {
                if (kind >= F8_BLOCK) {
                    const int n = pick(integers ? 17 : 140), integer = n - 8;
                    const int code = !integers ? n / 70 * 128 + 8 + n % 70 : code_of[abs(integer)] | (integer < 0) << 7;
                    is[i] = (float)(e4m3.is[code] * scale[(size_t)((mx ? row : row / 128) * scale_cols + col / edge)]);
                    bytes[i] = (unsigned char)code;
                    continue;
                }
                const float value = integers ? (float)(pick(17) - 8) : (float)draw() / 16;
                const uint16_t half = bf16_bits(value);
                is[i] = kind == F32 ? value : (float)bf16_value(half);
                if (kind == F32) memcpy(&bytes[4 * i], &value, 4);
                else memcpy(&bytes[2 * i], &half, 2);
            }
        data = new there<unsigned char>(bytes);
        scales = new there<unsigned char>(scale_bytes);
        weight = {};
        weight.data = data->p;
        weight.scales = kind >= F8_BLOCK ? scales->p : NULL;
        weight.dtype = kind == F32 ? M3_F32 : kind == BF16 ? M3_BF16 : M3_F8_E4M3;
        weight.scaling = kind == F8_BLOCK ? M3_SCALE_128X128 : mx ? M3_SCALE_MX32 : M3_UNSCALED;
        weight.rows = rows;
        weight.cols = cols;
    }
    matrix(const matrix &) = delete;
    ~matrix() { delete data, delete scales; }
    double at(size_t i, enum m3_cuda_type type) const { return type == M3_CUDA_BF16 ? rounded(is[i]) : is[i]; }
};

/* Of bfloat16 few rows and many, which have kernels of their own. Integers: every order of summation is exact. */
static void check_linear(enum kind kind, enum m3_cuda_type type, int T, int integers)
{
    const int rows = 131;
    matrix w(kind, rows, H, integers);
    std::vector<double> numbers = drawn((size_t)T * H, 1);
    for (double &x : numbers) x = integers ? pick(17) - 8 : x;
    operand x(numbers, type);
    std::vector<float> bias((size_t)rows);
    for (float &b : bias) b = (float)(pick(9) - 4);
    there<float> y(std::vector<float>((size_t)T * rows, NAN)), bias_there(bias);
    ck_assert_int_eq(m3_cuda_linear(NULL, y.p, x.p->p, type, &w.weight, bias_there.p, T), cudaSuccess);
    const std::vector<float> got = y.back();
    for (int i = 0; i < T * rows; i++) {
        double want = bias[(size_t)(i % rows)], size = fabs(want);
        for (int c = 0; c < H; c++) {
            const double term = w.at((size_t)(i % rows * H + c), type) * x.is[(size_t)(i / rows * H + c)];
            want += term;
            size += fabs(term);
        }
        check("y", (size_t)i, got[(size_t)i], want, integers ? 0 : (H + 1) * U * size);
    }
}

TEST(matrices)
{
    for (int kind = F32; kind < KINDS; kind++)
        for (int T : { 1, 3, 8, 20 })
            for (int integers = 0; integers < 2; integers++) {
                check_linear((enum kind)kind, M3_CUDA_F32, T, integers);
                if (kind != F32) check_linear((enum kind)kind, M3_CUDA_BF16, T, integers);
            }
}

static double activation(double gate, double up, double *slope)
{
    const double g = fmin(gate, 7), u = fmax(fmin(up, 7), -7), sig = 1 / (1 + exp(-1.702 * g));
    *slope = fabs((u + 1) * sig * (1 + 1.702 * g * (1 - sig))) + fabs(g * sig);
    return (u + 1) * g * sig;
}

/* x is 0 in 30 of 31 places, others in each token, so that a sum that has lost some of its terms is seen. An expert
 * that no token has chosen has no weights: reading them would crash. */
static void check_experts(enum kind kind, enum m3_cuda_type type, int T, int K, int E, int hidden, int width)
{
    std::vector<matrix *> w;
    std::vector<struct m3_expert> experts((size_t)E);
    std::vector<int32_t> ids((size_t)T * K);
    for (int i = 0; i < T * K; i++) ids[(size_t)i] = (i / K * 3 + i % K * (E - 1)) % E;
    for (int i = 0; i < 3 * E; i++) {
        const int chosen = std::count(ids.begin(), ids.end(), i / 3) > 0, down = i % 3 == 2;
        w.push_back(chosen ? new matrix(kind, down ? hidden : width, down ? width : hidden, 0) : NULL);
    }
    for (int e = 0; e < E; e++) {
        if (!w[(size_t)(3 * e)]) continue;
        experts[(size_t)e].w1 = w[(size_t)(3 * e)]->weight;
        experts[(size_t)e].w3 = w[(size_t)(3 * e + 1)]->weight;
        experts[(size_t)e].w2 = w[(size_t)(3 * e + 2)]->weight;
    }
    std::vector<double> numbers((size_t)T * hidden);
    for (int i = 0; i < T * hidden; i++) numbers[(size_t)i] = (i % hidden + i / hidden * 8) % 31 ? 0 : draw();
    operand x(numbers, type);
    std::vector<float> p((size_t)T * K);
    for (float &weight : p) weight = (float)(0.5 + 0.25 * draw());
    const struct m3_activation act_of = { 1, 1.702f, 7, M3_GATE_CLAMP_UPPER };
    struct m3_cuda_experts d = { T, E, K, hidden, width, 2, type, w[0]->weight.dtype, act_of };
    there<int32_t> ids_there(ids);
    there<float> p_there(p), routed(std::vector<float>((size_t)T * hidden, NAN));
    there<float> each(std::vector<float>((size_t)T * K * hidden, NAN));
    there<struct m3_expert> experts_there(experts);
    const size_t bytes = m3_cuda_experts_scratch(&d, (size_t)64 << 20);
    there<unsigned char> scratch((std::vector<unsigned char>(bytes, 0xFF)));
    ck_assert_int_eq(m3_cuda_experts(NULL, routed.p, each.p, x.p->p, ids_there.p, p_there.p, experts_there.p, &d,
                                     scratch.p, bytes),
                     cudaSuccess);
    const std::vector<float> got = each.back(), sum = routed.back();
    for (int slot = 0; slot < T * K; slot++) {
        const double *x_t = &x.is[(size_t)(slot / K * hidden)];
        matrix *const *of = &w[(size_t)(3 * ids[(size_t)slot])];
        std::vector<double> act((size_t)width), off((size_t)width);
        for (int f = 0; f < width; f++) {
            double sums[2] = {}, size = 0, slope;
            for (int c = (31 - slot / K * 8 % 31) % 31; c < hidden; c += 31)
                for (int i = 0; i < 2; i++) {
                    const double term = of[i]->at((size_t)(f * hidden + c), type) * x_t[c];
                    sums[i] += term;
                    size += fabs(term);
                }
            act[(size_t)f] = activation(sums[0], sums[1], &slope);
            off[(size_t)f] = slope * 210 * U * size + 12 * U * fabs(act[(size_t)f]) +
                             (type == M3_CUDA_BF16 ? U_BF16 / 2 * fabs(act[(size_t)f]) : 0);
        }
        for (int h = slot % 5; h < hidden; h += 5) {
            double want = 0, allowed = 0x1p-140;
            for (int f = 0; f < width; f++) {
                const double w2 = of[2]->at((size_t)(h * width + f), type);
                want += w2 * act[(size_t)f];
                allowed += fabs(w2) * (off[(size_t)f] + width * U * fabs(act[(size_t)f]));
            }
            check("each", (size_t)(slot * hidden + h), got[(size_t)(slot * hidden + h)], want, allowed);
        }
    }
    for (int i = 0; i < T * hidden; i++) {
        double want = 0, size = 0;
        for (int k = 0; k < K; k++) {
            const size_t slot = (size_t)(i / hidden * K + k);
            const double term = 2 * (double)p[slot] * got[slot * (size_t)hidden + (size_t)(i % hidden)];
            want += term;
            size += fabs(term);
        }
        check("routed", (size_t)i, sum[(size_t)i], want, (K + 2) * U * size);
    }
    for (matrix *m : w) delete m;
}

/* Released sizes for the kernel of few tokens; for many the released depth, and fewer columns. A slice has one of the three
 * kinds. */
LOOP_TEST(mlps, 3)
{
    static const enum kind kinds[] = { BF16, F8_BLOCK, F8_MX };
    if (!in_slice(_i, 3)) return;
    check_experts(kinds[_i], M3_CUDA_BF16, 2, 2, 3, H, F);
    check_experts(kinds[_i], M3_CUDA_F32, 2, 2, 3, H, 640);
    check_experts(kinds[_i], M3_CUDA_BF16, 40, 2, 3, H, 64);
    check_experts(kinds[_i], M3_CUDA_BF16, 40, 2, 3, 64, F);
    check_experts(kinds[_i], M3_CUDA_F32, 20, 2, 3, H, 64);
}
