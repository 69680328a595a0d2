#include "ranks/division.h"

#include "base/minmax.h"

struct m3_rows m3_division_rows(const struct m3_division *d, int rank)
{
    struct m3_rows r = { { 0, 0 }, { 0, 0 } };
    const int64_t cuts = INT64_C(2) * d->count, chunks[2] = { rank, cuts - 1 - rank };
    if (d->T == 0) return rank == 0 ? m3_rows_whole(d->rows) : r;
    for (int i = 0; i < 2; i++) {
        r.first[i] = d->T * chunks[i] / cuts;
        r.rows[i] = m3_max(0, m3_min(d->rows, d->T * (chunks[i] + 1) / cuts) - r.first[i]);
    }
    return r;
}

int64_t m3_rows_before(const struct m3_rows *r, int64_t row)
{
    return m3_max(0, m3_min(r->rows[0], row - r->first[0])) + m3_max(0, m3_min(r->rows[1], row - r->first[1]));
}

int64_t m3_rows_seen(const struct m3_rows *r)
{
    const int last = r->rows[1] > 0;
    return r->rows[last] > 0 ? r->first[last] + r->rows[last] : 0;
}

int64_t m3_experts_first(int64_t E, int count, int rank) { return E * rank / count; }

int m3_experts_owner(int64_t E, int count, int64_t expert)
{
    int rank = (int)(expert * count / E);
    while (m3_experts_first(E, count, rank + 1) <= expert) rank++;
    return rank;
}
