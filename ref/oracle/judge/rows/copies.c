#include "oracle/judge/rows/copies.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fewer columns may agree by chance. */
enum { LEAST_COLUMNS = 8 };

struct key {
    uint64_t hash;
    int64_t pair;
};

struct rows {
    const struct m3_tensor *want, *got;
    const struct m3_row_pair *pairs;
    int64_t width, bytes; /* of a row of `got` */
};

static const unsigned char *bytes_of(const struct rows *r, int64_t pair)
{
    return (const unsigned char *)r->got->data + r->pairs[pair].got * r->bytes;
}

/* FNV-1a. */
static uint64_t hash_of(const unsigned char *bytes, int64_t n)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int64_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

static int by_hash(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    return x->hash != y->hash ? (x->hash > y->hash) - (x->hash < y->hash) : (x->pair > y->pair) - (x->pair < y->pair);
}

static int is_zero(const struct rows *r, int64_t pair)
{
    for (int64_t i = 0; i < r->width; i++)
        if (m3_decode(r->got->dtype, r->got->data, r->pairs[pair].got * r->width + i) != 0) return 0;
    return 1;
}

/* Is the reference's row a farther from its row b, or from the candidate's row a if b is -1, than `far` lengths? */
static int is_far(const struct rows *r, int64_t a, int64_t b, double far)
{
    double squares = 0, off = 0;
    for (int64_t i = 0; i < r->width; i++) {
        const double want = m3_decode(r->want->dtype, r->want->data, r->pairs[a].want * r->width + i);
        const double other = b < 0 ? 0 : m3_decode(r->want->dtype, r->want->data, r->pairs[b].want * r->width + i);
        squares += want * want;
        off += (want - other) * (want - other);
    }
    return sqrt(off) > far * sqrt(squares);
}

/* How far the candidate's row is from the reference's. */
static double off_by(const struct rows *r, int64_t pair)
{
    double off = 0;
    for (int64_t i = 0; i < r->width; i++) {
        const double d = m3_decode(r->got->dtype, r->got->data, r->pairs[pair].got * r->width + i) -
                         m3_decode(r->want->dtype, r->want->data, r->pairs[pair].want * r->width + i);
        off += d * d;
    }
    return off;
}

static void note(int64_t *found, int64_t pair)
{
    if (*found < 0 || pair < *found) *found = pair;
}

static void search(int64_t *found, const struct rows *r, struct key *keys, int64_t count, double far)
{
    for (int64_t k = 0; k < count; k++) {
        keys[k] = (struct key){ hash_of(bytes_of(r, k), r->bytes), k };
        if (is_zero(r, k) && is_far(r, k, -1, far)) note(found, k);
    }
    qsort(keys, (size_t)count, sizeof *keys, by_hash);
    for (int64_t i = 0; i + 1 < count; i++) {
        const int64_t a = keys[i].pair, b = keys[i + 1].pair;
        if (keys[i].hash != keys[i + 1].hash || is_zero(r, a)) continue;
        if (memcmp(bytes_of(r, a), bytes_of(r, b), (size_t)r->bytes) != 0) continue;
        if (is_far(r, a, b, far) && is_far(r, b, a, far)) note(found, off_by(r, a) > off_by(r, b) ? a : b);
    }
}

int m3_copies_find(int64_t *found, const struct m3_matched *matched, const struct m3_row_pair *pairs, int64_t count,
                   double far, struct m3_error *error)
{
    const struct m3_tensor *want = matched->want, *got = matched->got;
    const int64_t rows = got->rank > 0 ? got->shape[0] : 0;
    *found = -1;
    if (count == 0 || rows == 0 || want->shape[0] == 0) return M3_OK;
    const struct rows r = { want, got, pairs, want->count / want->shape[0], (int64_t)(got->bytes / (uint64_t)rows) };
    if (r.width < LEAST_COLUMNS || got->count / rows != r.width) return M3_OK;
    struct key *keys = malloc((size_t)count * sizeof *keys + 1);
    if (!keys) return m3_fail_memory(error, want->name, (size_t)count * sizeof *keys);
    search(found, &r, keys, count, far);
    free(keys);
    return M3_OK;
}
