/* Errors carried through norms (SPEC 5.2, 5.3, 5.17, 7.4). */
#include "propagate_twin.h"

struct norm {
    int64_t T, H;
    double eps;
    const double *w;
    int offset, layer;
};

static int call(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                const void *self)
{
    const struct norm *n = self;
    return n->layer ? m3_propagate_layer_norm(ctx, out, x, of, n->w, n->T, n->H, n->eps)
                    : m3_propagate_rms_norm(ctx, out, x, of, n->w, n->T, n->H, n->eps, n->offset);
}

static void formula(long double *y, const long double *x, const void *self)
{
    const struct norm *n = self;
    for (int64_t t = 0; t < n->T; t++) {
        const long double *row = x + t * n->H;
        long double mean = 0, square = 0;
        for (int64_t i = 0; i < n->H && n->layer; i++) mean += row[i] / n->H;
        for (int64_t i = 0; i < n->H; i++) square += (row[i] - mean) * (row[i] - mean) / n->H;
        for (int64_t i = 0; i < n->H; i++)
            y[t * n->H + i] = (row[i] - mean) / sqrtl(square + n->eps) * (n->offset + n->w[i]);
    }
}

/* Goal:  errors of norms are the slopes' sums, and no looser.
 * Given: rows of 1, 2, 7, 30 channels; a dominant channel, a row of zeros, rows near eps, a mean far from 0; weights of
 *        both signs and 0; plain and offset.
 * Claim: what push_check says, at share 1; exact inputs add nothing.
 * Seen to fail with x_i's own slope 1, the others' share left out or H times too large; LayerNorm's root over H - 0.5,
 * its own term with |own| for |own| - |self|, v for (1 - 2 self) v, half the mixed term; 1 + w and w exchanged; = for
 * +=. */
START_TEST(slopes)
{
    static const int64_t widths[] = { 1, 2, 7, 30 };
    enum { T = 4 };
    uint64_t state = 4100;
    double w[30];
    for (int c = 0; c < 12; c++) {
        const int64_t H = widths[c % 4];
        struct norm norm = { T, H, 1e-4, w, c / 4 == 1, c / 4 == 2 };
        struct push_case p = push_new("norm", T * H, T * H, call, formula, &norm);
        for (int64_t i = 0; i < H; i++) w[i] = i == 3 ? 0 : normal(&state);
        for (int64_t i = 0; i < T * H; i++) {
            const int64_t t = i / H;
            p.x[i] = normal(&state) * (t == 0 && i == 1 ? 50 : t == 2 ? 0.01 : 1) + (t == 3 ? 3 : 0);
            if (t == 1 && H > 2) p.x[i] = 0;
        }
        push_errors(&p, 1e-6, &state);
        push_nothing(&p);
        push_check(&p, 1, &state);
        push_free(&p);
    }
}
END_TEST

Suite *m3_suite(void);
Suite *m3_suite(void)
{
    Suite *suite = suite_create("push_norm");
    TCase *test = tcase_create("push_norm");
    tcase_set_timeout(test, 60);
    tcase_add_test(test, slopes);
    suite_add_tcase(suite, test);
    return suite;
}
