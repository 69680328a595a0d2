#include "model/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

int m3_smart_resize(int64_t *new_height, int64_t *new_width, int64_t height, int64_t width, int64_t factor,
                    int64_t least, int64_t most)
{
    double h = (double)height, w = (double)width, f = (double)factor;
    if (m3_max(height, width) > 200 * m3_min(height, width)) return -1;

    /* nearbyint rounds halves to even, as Python does: 70 is 2.5 times 28 and becomes 56. */
    double to_h = nearbyint(h / f) * f, to_w = nearbyint(w / f) * f;
    if (to_h * to_w > (double)most) {
        double beta = sqrt(h * w / (double)most);
        to_h = fmax(f, floor(h / beta / f) * f);
        to_w = fmax(f, floor(w / beta / f) * f);
    } else if (to_h * to_w < (double)least) {
        double beta = sqrt((double)least / (h * w));
        to_h = ceil(h * beta / f) * f;
        to_w = ceil(w * beta / f) * f;
    }
    *new_height = (int64_t)to_h;
    *new_width = (int64_t)to_w;
    return 0;
}

/* For every output of an axis: the inputs that it reads, and their weights in units of 2^-precision. */
struct taps {
    int64_t *first, *count;         /* [outputs] */
    int32_t *weight;                /* [outputs, widest] */
    int64_t widest;
    int precision;
};

/* Catmull-Rom: a = -0.5, as in antialiased resampling; plain bicubic of the same library uses -0.75. */
static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static void free_taps(struct taps *t)
{
    free(t->first);
    free(t->count);
    free(t->weight);
}

/* Weights of output o, normalised to sum 1, into w; returns the largest. */
static double weights_of(struct taps *t, double *w, int64_t o, int64_t in, double scale)
{
    double filter = scale > 1 ? scale : 1, centre = scale * ((double)o + 0.5), reach = 2 * filter, sum = 0, largest = 0;
    t->first[o] = m3_max((int64_t)(centre - reach + 0.5), 0);
    t->count[o] = m3_min((int64_t)(centre + reach + 0.5), in) - t->first[o];
    for (int64_t i = 0; i < t->count[o]; i++) {
        w[i] = cubic(((double)(i + t->first[o]) - centre + 0.5) / filter);
        sum += w[i];
    }
    for (int64_t i = 0; i < t->count[o]; i++) {
        w[i] /= sum;
        if (w[i] > largest) largest = w[i];
    }
    return largest;
}

/* The finest fixed point for which the largest weight stays below 2^15. */
static int precision_for(double largest)
{
    int precision = 0;
    while (precision < 22 && (int)(0.5 + largest * (double)(1 << (precision + 1))) < 1 << 15) precision++;
    return precision;
}

static int make_taps(struct taps *t, int64_t out, int64_t in, struct m3_error *error)
{
    double scale = (double)in / (double)out, largest = 0;
    t->widest = (int64_t)ceil(2 * (scale > 1 ? scale : 1)) * 2 + 1;
    size_t count = (size_t)out * (size_t)t->widest;
    t->first = malloc((size_t)out * sizeof *t->first);
    t->count = malloc((size_t)out * sizeof *t->count);
    t->weight = malloc(count * sizeof *t->weight);
    double *w = malloc(count * sizeof *w);
    if (!t->first || !t->count || !t->weight || !w) {
        free(w);
        return m3_fail_memory(error, "the weights of a resize", count * (sizeof *w + sizeof *t->weight));
    }
    for (int64_t o = 0; o < out; o++) largest = fmax(largest, weights_of(t, w + o * t->widest, o, in, scale));
    t->precision = precision_for(largest);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < t->count[o]; i++)
            t->weight[o * t->widest + i] = (int32_t)round(w[o * t->widest + i] * (double)(1 << t->precision));
    free(w);
    return M3_OK;
}

/* Resamples the middle axis: out [rows,outs,each] from in [rows,ins,each]; rounded and clamped to a byte. */
static void pass(unsigned char *out, const unsigned char *in, const struct taps *t, int64_t rows, int64_t outs,
                 int64_t ins, int64_t each)
{
    int64_t half = (INT64_C(1) << t->precision) / 2;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < outs; o++) {
            const int32_t *w = t->weight + o * t->widest;
            const unsigned char *x = in + (r * ins + t->first[o]) * each;
            for (int64_t e = 0; e < each; e++) {
                int64_t sum = half;
                for (int64_t i = 0; i < t->count[o]; i++) sum += w[i] * (int64_t)x[i * each + e];
                sum >>= t->precision;
                out[(r * outs + o) * each + e] = (unsigned char)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
            }
        }
    }
}

int m3_resize_bicubic(unsigned char *out, int64_t out_h, int64_t out_w, const unsigned char *in, int64_t h, int64_t w,
                      struct m3_error *error)
{
    struct taps across = { 0 }, down = { 0 };
    unsigned char *wide = malloc((size_t)h * (size_t)out_w * 3);
    int status = wide ? M3_OK : m3_fail_memory(error, "a resized picture", (size_t)h * (size_t)out_w * 3);

    /* Horizontally, then vertically: each pass rounds, so the order matters. A pass that keeps the size would only
     * copy. */
    if (!status && out_w != w) status = make_taps(&across, out_w, w, error);
    if (!status && out_h != h) status = make_taps(&down, out_h, h, error);
    if (!status) {
        if (out_w != w) pass(wide, in, &across, h, out_w, w, 3);
        else memcpy(wide, in, (size_t)(h * w) * 3);
        if (out_h != h) pass(out, wide, &down, 1, out_h, h, out_w * 3);
        else memcpy(out, wide, (size_t)(h * out_w) * 3);
    }
    free_taps(&across);
    free_taps(&down);
    free(wide);
    return status;
}
