/* The limits of the machine: products by BLAS, reading, copying. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "base/room.h"
#include "cli/bench/work.h"

void *m3_bench_need(struct bench *m, size_t count, size_t size)
{
    void *memory = m->taken_count < MOST_BLOCKS ? aligned_alloc(64, (count * size + 63) / 64 * 64) : NULL;
    if (memory) {
        m3_large_pages(memory, count * size);
        return m->taken[m->taken_count++] = memory;
    }
    fprintf(stderr, "m3ref: bench: out of memory: got none for %zu bytes\n", count * size);
    exit(M3_INTERNAL);
}

real *m3_bench_numbers(struct bench *m, int64_t count, const char *name)
{
    real *x = m3_bench_need(m, (size_t)count, sizeof *x);
    uint64_t key = m3_draw_key(1, name);
#pragma omp parallel for
    for (int64_t i = 0; i < count; i++) x[i] = (real)((int)m3_draw(key, (uint64_t)i, 255) - 127) / 64;
    return x;
}

void m3_bench_sgemm(real *y, const real *x, const real *w, int64_t T, int64_t N, int64_t threads)
{
    const int64_t share = (N + threads - 1) / threads;
#pragma omp parallel for num_threads((int)threads)
    for (int64_t n = 0; n < N; n += share)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)T, (int)m3_min(share, N - n), H, 1, x, H, w + n * H,
                    H, 0, y + n, (int)N);
}

static uint64_t sum_words(const uint64_t *words, int64_t n)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += words[i];
    return sum;
}

enum { READ_PIECE = 1 << 16 };

uint64_t m3_bench_read(const real *x, int64_t n, int64_t threads)
{
    uint64_t sum = 0;
#pragma omp parallel for num_threads((int)threads) reduction(+ : sum)
    for (int64_t i = 0; i < n / 2; i += READ_PIECE)
        sum += sum_words((const uint64_t *)(const void *)x + i, m3_min(READ_PIECE, n / 2 - i));
    return sum;
}

void m3_bench_copy(real *y, const real *x, int64_t n, int64_t threads)
{
#pragma omp parallel for simd num_threads((int)threads)
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + 1;
}

void m3_bench_prepare_limit(struct limit_run *l, struct bench *m, enum limit limit)
{
    enum { ROWS = 512, OUTPUTS = 1024, READ = 128 << 20, COPIED = 32 << 20 };
    *l = (struct limit_run){ .limit = limit };
    if (limit == SGEMM) {
        l->n = OUTPUTS * m->threads;
        l->x = m3_bench_numbers(m, ROWS * H, "x");
        l->w = m3_bench_numbers(m, l->n * H, "w");
        l->y = m3_bench_need(m, (size_t)(ROWS * l->n), sizeof(real));
        l->operations = 2.0 * ROWS * H * (double)l->n;
        return;
    }
    l->n = limit == COPY ? COPIED : READ;
    l->x = m3_bench_numbers(m, l->n, "x");
    if (limit == COPY) l->y = m3_bench_numbers(m, l->n, "y");
    l->operations = (limit == COPY ? 8.0 : 4.0) * (double)l->n;
}

void m3_bench_run_limit(struct limit_run *l, const struct bench *m)
{
    if (l->limit == SGEMM) m3_bench_sgemm(l->y, l->x, l->w, 512, l->n, m->threads);
    else if (l->limit == COPY) m3_bench_copy(l->y, l->x, l->n, m->threads);
    else l->sum += m3_bench_read(l->x, l->n, m->threads);
}
