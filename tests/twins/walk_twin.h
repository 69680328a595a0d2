/* Partial sums of a dot product, in the mean over all orders within blocks of 128 terms, and the sums that go with them;
 * in long double, one term at a time. */
#ifndef M3_TESTS_TWINS_WALK_TWIN_H
#define M3_TESTS_TWINS_WALK_TWIN_H

#include <math.h>
#include <stdint.h>

enum { TWIN_BLOCK = 128 };

struct twin_dot {
    long double sum, mass, squares, walked; /* walked: of the squares of the partial sums */
    long double n, before; /* terms; the sum before the block */
};

/* Of m terms that add up to d, k drawn at random add up to k d / m, with the variance k (m - k) / (m (m - 1)) times
 * their squares less d^2 / m. The squares are added at the end. */
static inline void twin_dot_end_block(struct twin_dot *dot)
{
    const long double m = fmodl(dot->n - 1, TWIN_BLOCK) + 1, d = dot->sum - dot->before;
    for (long double k = 1; k <= m; k++) {
        const long double s = dot->before + k * d / m;
        dot->walked += s * s;
        if (k < m) dot->walked -= k * (m - k) / (m * (m - 1)) * d * d / m;
    }
    if (m == 1) dot->walked -= d * d / 3;
    dot->before = dot->sum;
}

static inline void twin_dot_add(struct twin_dot *dot, long double p)
{
    if (dot->n > 0 && fmodl(dot->n, TWIN_BLOCK) == 0) twin_dot_end_block(dot);
    dot->sum += p;
    dot->mass += fabsl(p);
    dot->squares += p * p;
    dot->n++;
}

/* walk^2 of the sum after the last term: without roundings of weights and of a bias. */
static inline long double twin_dot_walk2(struct twin_dot *dot)
{
    const long double block = fminl(dot->n, TWIN_BLOCK);
    if (dot->n > 0) twin_dot_end_block(dot);
    const long double in_blocks = dot->walked + ((block + 1) / 6 + 1) * dot->squares;
    return fmaxl(in_blocks, (dot->n / 6 + 1) * dot->squares + (dot->n / 3 + 1) * dot->sum * dot->sum);
}

#endif
