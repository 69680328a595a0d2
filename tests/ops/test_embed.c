/* embed, SPEC 5.1, against stored numbers read by their definition. */
#include "op_driver.h"
#include "stored_twin.h"

TIMEOUT(60);

/* Every row by its id, in the bits of the stored numbers. */
static void check_all(struct stored *w, const int32_t *ids, int64_t T)
{
    const struct embed_values d = { T };
    const int64_t H = w->cols;
    real *y = reals(T * H);
    struct call c = CALL(call_embed, &d, 1, 2, OPERAND(y, T * H), OPERAND(ids, T), OPERAND(&w->weight, 1));
    call_all(&c);
    for (int64_t i = 0; i < T * H; i++)
        twin_check_same(stored_types[w->kind].name, i / H, i % H, y[i], (real)stored_value(w, ids[i / H], i % H));
    ck_assert(stored_intact(w));
    rooms_free(0);
}

/* Goal:  every stored type, expanded by its definition and rounded once to real; no factor.
 * Given: random codes, aligned and not; V and H 1, odd, prime, with partial blocks of scales; ids 0, V-1, repeated and
 *        random; three numbers of threads, the last shape enough for all.
 * Claim: equal bits.
 * Seen to fail with a factor sqrt(H), the next row, scales left out, divided by, transposed, or their number rounded
 * down at the edge, F64 truncated to float, everything by way of float or BF16, one element too many, the last row
 * left out, one bit off with five threads. */
TEST(stored_types_and_shapes)
{
    static const struct {
        int64_t V, H, T;
    } shapes[] = {
        { 1, 1, 1 },      { 3, 17, 2 },     { 2, 33, 31 },     { 129, 31, 32 },
        { 257, 130, 33 }, { 131, 521, 67 }, { 67, 2053, 127 },
    };
    uint64_t state = 51;
    for (enum stored_kind kind = 0; kind < STORED_KINDS; kind++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t V = shapes[s].V, H = shapes[s].H, T = shapes[s].T;
            struct stored w;
            stored_make(&w, kind, V, H);
            stored_random(&w, &state);
            stored_give(&w, (int)(s % 4));
            int32_t ids[127];
            for (int64_t t = 0; t < T; t++)
                ids[t] = (int32_t)(t == 0 ? V - 1 : t == 1 ? 0 : t % 5 == 2 ? ids[t - 1] : twin_pick(&state, V));
            check_all(&w, ids, T);
        }
}

/* Goal:  the ends of each type: all E4M3 codes under small, large and NaN scales; signed zeros, subnormals,
 * infinities,        NaN of the wide types.
 * Claim: equal bits, in float too where a product or an F64 overflows to infinity, or is subnormal.
 * Seen to fail with subnormals flushed, NaN made 0, a ue8m0 of 255 read as infinity. */
TEST(ends_of_the_types)
{
    static const uint64_t scale_bits[] = { 0x1, 0x7FFFFF, 0x800000, 0x3F9D70A4, 0x7F7FFFFF, 0x7F800000, 0x7FC00000 };
    static const uint64_t scale_bytes[] = { 0, 1, 117, 127, 246, 247, 254, 255 };
    static const uint64_t f32[] = { 0, 0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000 };
    static const uint64_t f64[] = {
        0,
        UINT64_C(1) << 63,
        1,
        0x7FF0000000000000,
        0xFFF0000000000000,
        0x7FF8000000000000,
        0x7FEFFFFFFFFFFFFF,
        0x3FF0000010000000,
        0x3FF0000030000000,
        0x3FF0000010000001,     /* halfway between floats, and just above */
        0x47EFFFFFEFFFFFFF,
        0x47EFFFFFF0000000,                         /* to the largest float, to infinity */
        0x36A0000000000000,
        0x3690000000000000,
        0x3690000000000001,     /* least float, half of it, just above */
    };
    for (enum stored_kind kind = 0; kind < STORED_KINDS; kind++) {
        const int64_t V = 256, H = kind == STORED_F8_BLOCK ? 7 * 128 : 256;         /* 7 blocks, or 8 groups of 32 */
        struct stored w;
        stored_make(&w, kind, V, H);
        for (int64_t n = 0; n < V; n++)
            for (int64_t k = 0; k < H; k++) {
                uint64_t code = (uint64_t)n;                                        /* E4M3: row n is code n */
                if (kind == STORED_F32) code = f32[(n + k) % 8];
                if (kind == STORED_F64) code = f64[(n + k) % 15];
                if (kind == STORED_F16 || kind == STORED_BF16) code = (uint64_t)(n * 256 + k);       /* all codes */
                w.codes[n * H + k] = code;
            }
        for (int64_t i = 0; i < w.scale_count; i++)
            w.scales[i] = kind == STORED_F8_MX ? scale_bytes[i % 8] : scale_bits[i % 7];
        stored_give(&w, 1);
        int32_t ids[256];
        for (int32_t n = 0; n < 256; n++) ids[n] = n;
        check_all(&w, ids, V);
    }
}

/* Goal:  an id outside [0,V) is an error that names the first such row, found before anything is written.
 * Given: rows of good ids with bad ones among them: -1, V, the ends of int32.
 * Claim: a status, the row, and an output that is poison throughout.
 * Seen to fail with ids clamped, V let through, the last bad row named, rows written before the check. */
TEST(ids_outside)
{
    enum { V = 5, H = 2053, T = 101 };
    static const struct {
        int64_t row;
        int32_t id;
    } bad[] = {
        { 0, -1 }, { 0, V }, { 1, V }, { 50, -1 }, { 99, INT32_MAX }, { 100, INT32_MIN }, { 100, V },
    };
    struct stored w;
    uint64_t state = 15;
    stored_make(&w, STORED_BF16, V, H);
    stored_random(&w, &state);
    stored_give(&w, 0);
    const struct embed_values d = { T };
    int32_t ids[T];
    struct call c = CALL(call_embed, &d, 1, 2, OPERAND(reals(T * H), T * H), OPERAND(ids, T), OPERAND(&w.weight, 1));
    c.checks_first = 1;
    for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
        for (int t = 0; t < T; t++) ids[t] = t % V;
        for (int64_t t = bad[b].row; t < T; t += 7) ids[t] = t % 2 ? V : -1;   /* later ones are not the first */
        ids[bad[b].row] = bad[b].id;
        call_refused(&c, M3_BAD_INPUT, bad[b].row, NOWHERE, NOWHERE);
    }
    ck_assert(stored_intact(&w));
}
