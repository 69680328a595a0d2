/* What the tests of fast bodies share: the choice of kernels, and drawn operands. Included once in a program. */
#ifndef M3_TESTS_DRAWN_BODIES_H
#define M3_TESTS_DRAWN_BODIES_H

#define M3_TESTS_OPS_INSIDE
#include "op_driver.h"

#include <stdio.h>

#include "ops/fast/kernels.h"
#include "stored_twin.h"

/* The choice of kernels is the test's: this takes the place of fast/kernels_pick.c. */
extern const struct m3_kernels m3_kernels_portable;
static const struct m3_kernels *chosen = &m3_kernels_portable;
const struct m3_kernels *m3_kernels(void) { return chosen; }

#ifdef __x86_64__
extern const struct m3_kernels m3_kernels_avx2, m3_kernels_avx512;
enum { BUILDS = 3 };

static int choose(int build)
{
    static const struct m3_kernels *const builds[] = { &m3_kernels_portable, &m3_kernels_avx2, &m3_kernels_avx512 };
    __builtin_cpu_init();
    const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    chosen = builds[build];
    if (build == 0 || (build == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) ||
        (build == 2 && wide))
        return 1;
    printf("%s: not tried, this processor does not have it\n", chosen->name);
    return 0;
}
#else
enum { BUILDS = 1 };
static int choose(int build) { return build == 0; }
#endif

#define PICK(list) list[twin_pick(&state, sizeof list / sizeof *list)]

static uint64_t state = 20250801;

/* ---- operands */

enum numbers { ORDINARY, LARGE, DENORMAL, INTEGERS, SPECIAL, KINDS };

static real *numbers(int64_t count, enum numbers kind)
{
    static const double special[] = { NAN, INFINITY, -INFINITY, 0, -0.0, 1e30, -1e30, 7, -7, 1e-42 };
    real *x = reals(count);
    for (int64_t i = 0; i < count; i++) {
        const double d = twin_fine(&state);
        if (kind == LARGE) x[i] = (real)(d * 30);
        else if (kind == DENORMAL) x[i] = (real)d * (sizeof(real) == 4 ? (real)0x1p-140 : (real)0x1p-1060);
        else if (kind == INTEGERS) x[i] = (real)(twin_pick(&state, 7) - 3);
        else x[i] = (real)d;
        if (kind == SPECIAL && twin_pick(&state, 29) == 0) x[i] = (real)PICK(special);
    }
    return x;
}

/* NULL, or a mask that hides some places, sometimes all but a few. */
static unsigned char *hidden(int64_t count)
{
    const int64_t often = twin_pick(&state, 4);
    unsigned char *seen = often ? room(count, 1) : NULL;
    for (int64_t j = 0; seen && j < count; j++) seen[j] = twin_pick(&state, 4) >= often;
    return seen;
}

static const int64_t rows_of[] = { 1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65 };
static const int64_t channels_of[] = { 1, 2, 3, 4, 7, 8, 15, 16, 17, 20, 32, 33, 64, 67 };
static const int64_t places_of[] = { 0, 0, 1, 3, 61, 130 };
static const struct {
    int64_t Q, G;
} heads_of[] = { { 1, 1 }, { 2, 1 }, { 6, 2 }, { 3, 3 }, { 16, 1 }, { 66, 1 } };

/* Lists of visible blocks, ascending, some empty, some full; one in ten is malformed somewhere. */
static int32_t *block_lists(const struct m3_attend *d)
{
    int32_t *blocks = room(d->T * d->G * d->N, sizeof *blocks);
    for (int64_t i = 0; i < d->T * d->G; i++) {
        const int64_t own = (d->p0 + i / d->G) / d->block, dense = twin_pick(&state, 4);
        int64_t n = 0;
        for (int64_t b = 0; b <= own && n < d->N; b++)
            if (twin_pick(&state, 4) <= dense && dense > 0) blocks[i * d->N + n++] = (int32_t)b;
        for (; n < d->N; n++) blocks[i * d->N + n] = -1;
    }
    if (twin_pick(&state, 10) == 0) blocks[twin_pick(&state, d->T * d->G * d->N)] = (int32_t)twin_pick(&state, 3) - 2;
    return blocks;
}

/* At most 7 experts. Slots of a row are in a drawn order; one case in ten has an id that there is not. */
struct mixture {
    int64_t T, E, K, H, F;
    struct m3_activation act;
    struct stored matrices[7][3];
    struct m3_expert experts[7];
    real *x, *p;
    int32_t *ids;
    char what[100];
};

static void draw_mixture(struct mixture *m, int64_t T, int64_t E, int64_t K, int64_t H, int64_t F, int i)
{
    *m = (struct mixture){ .T = T, .E = E, .K = K, .H = H, .F = F };
    m->act = (struct m3_activation){ .oai = i % 3 > 0, .alpha = (real)1.702, .limit = 7, .clamp = i % 7 == 0 };
    for (int64_t e = 0; e < E; e++)
        for (int w = 0; w < 3; w++) {
            struct stored *s = &m->matrices[e][w];
            stored_make(s, (enum stored_kind)(i % STORED_KINDS), w == 2 ? H : F, w == 2 ? F : H);
            stored_random(s, &state);
            stored_give(s, 0);
            *(w == 0 ? &m->experts[e].w1 : w == 1 ? &m->experts[e].w3 : &m->experts[e].w2) = s->weight;
        }
    m->x = numbers(T * H, (enum numbers)(i % KINDS));
    m->p = numbers(T * K, ORDINARY);
    m->ids = room(T * K, sizeof *m->ids);
    for (int64_t t = 0; t < T; t++) {
        const int64_t first = twin_pick(&state, E), step = 1 + twin_pick(&state, 2) * (E % 2) * (E > 1);
        for (int64_t k = 0; k < K; k++) m->ids[t * K + k] = (int32_t)((first + k * step) % E);
    }
    if (i % 10 == 9) m->ids[twin_pick(&state, T * K)] = (int32_t)(i % 20 == 9 ? E : -1);
    snprintf(m->what, sizeof m->what, "%s experts T %d E %d K %d H %d F %d", chosen->name, (int)T, (int)E, (int)K,
             (int)H, (int)F);
}

/* Its matrices are unchanged. */
static void end_mixture(struct mixture *m)
{
    for (int64_t e = 0; e < m->E; e++)
        for (int w = 0; w < 3; w++) ck_assert(stored_intact(&m->matrices[e][w]));
    rooms_free(0);
}

/* Runs both bodies of a call: the same status and the same failure. Outputs of the plain one go to `plain`, those of the
 * other stay; at first they are not the same. Returns the status. */
static int both_bodies(const char *what, struct call *c, void **plain, int without)
{
    const int status = call_run(c, (struct how){ .threads = 2, .plain = 1, .without = without });
    const struct m3_failure a = c->failure, *b = &c->failure;
    for (int o = 0; o < c->outputs; o++) plain[o] = memcpy(room((int64_t)c->p[o].size, 1), c->p[o].at, c->p[o].size);
    const int fast = call_run(c, (struct how){ .threads = 3, .without = without });
    ck_assert_msg(fast == status, "%s: status %d for %d", what, fast, status);
    if (status == M3_OK) return status;
    ck_assert_str_eq(a.what, b->what);
    ck_assert_msg(a.row == b->row && a.group == b->group && a.block == b->block,
                  "%s: fails at %d, %d, %d for %d, %d, %d", what, (int)b->row, (int)b->group, (int)b->block, (int)a.row,
                  (int)a.group, (int)a.block);
    return status;
}

static void check_outputs(const char *what, const struct call *c, void *const *want, int without)
{
    for (int o = 0; o < c->outputs; o++)
        for (size_t i = 0; !(without >> o & 1) && i < c->p[o].size / sizeof(real); i++)
            twin_check_same(what, o, (int64_t)i, ((const real *)c->p[o].at)[i], ((const real *)want[o])[i]);
}

#endif
