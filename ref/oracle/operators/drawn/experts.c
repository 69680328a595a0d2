#include "oracle/operators/drawn/experts.h"

#include <stdlib.h>

#include "base/minmax.h"

enum { MATRICES = 3, PIECE = 1 << 16 };

struct place {
    int64_t expert;             /* -1: none */
    void *memory[MATRICES];
};

struct m3_drawn_experts {
    struct m3_expert *experts;
    int64_t E, most;
    struct m3_drawing drawings[MATRICES];
    struct place places[];
};

static struct m3_weight *matrix_of(struct m3_expert *expert, int i)
{
    return i == 0 ? &expert->w1 : i == 1 ? &expert->w3 : &expert->w2;
}

int m3_drawn_experts_new(struct m3_drawn_experts **made, struct m3_expert *experts, int64_t E,
                         const struct m3_drawing drawings[3], int64_t most, struct m3_error *error)
{
    const size_t bytes = sizeof **made + (size_t)most * sizeof(struct place);
    struct m3_drawn_experts *d = *made = calloc(1, bytes);
    if (!d) return m3_fail_memory(error, "experts", bytes);
    d->experts = experts, d->E = E, d->most = most;
    for (int i = 0; i < MATRICES; i++) d->drawings[i] = drawings[i];
    for (int64_t k = 0; k < most; k++) d->places[k].expert = -1;
    return M3_OK;
}

void m3_drawn_experts_free(struct m3_drawn_experts *d)
{
    for (int64_t k = 0; d && k < d->most; k++)
        for (int i = 0; i < MATRICES; i++) free(d->places[k].memory[i]);
    free(d);
}

static int is_among(int64_t expert, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] == expert) return 1;
    return 0;
}

/* A place for an expert; NULL: it has one. A place of an expert that is not needed is emptied. */
static struct place *place_for(struct m3_drawn_experts *d, int64_t expert, const int32_t *ids, int64_t count)
{
    struct place *free_one = NULL;
    for (int64_t k = 0; k < d->most; k++) {
        if (d->places[k].expert == expert) return NULL;
        if (d->places[k].expert < 0 || !is_among(d->places[k].expert, ids, count)) free_one = &d->places[k];
    }
    for (int i = 0; free_one && free_one->expert >= 0 && i < MATRICES; i++)
        if (d->drawings[i].levels > 0) matrix_of(&d->experts[free_one->expert], i)->data = NULL;
    if (free_one) free_one->expert = -1;
    return free_one;
}

static int make(struct m3_drawn_experts *d, struct place *place, int64_t expert, int threads, struct m3_error *error)
{
    for (int i = 0; i < MATRICES; i++) {
        struct m3_weight *w = matrix_of(&d->experts[expert], i);
        const struct m3_drawing *drawing = &d->drawings[i];
        const int64_t n = w->rows * w->cols, size = (int64_t)m3_dtype_bytes(w->dtype);
        if (drawing->levels == 0) continue;
        if (!place->memory[i]) place->memory[i] = malloc((size_t)(n * size));
        char *to = place->memory[i];
        if (!to) return m3_fail_memory(error, "the weights of an expert", (size_t)(n * size));
#pragma omp parallel for num_threads(threads)
        for (int64_t at = 0; at < n; at += PIECE)
            m3_drawing_piece(to + at * size, drawing, expert * n + at, m3_min(PIECE, n - at));
        w->data = to;
    }
    place->expert = expert;
    return M3_OK;
}

int m3_drawn_experts_need(void *drawn, const int32_t *ids, int64_t count, int threads, struct m3_error *error)
{
    struct m3_drawn_experts *d = drawn;
    int status = M3_OK;
    for (int64_t i = 0; !status && i < count; i++) {
        if (ids[i] < 0 || ids[i] >= d->E) continue;
        struct place *place = place_for(d, ids[i], ids, count);
        if (place) status = make(d, place, ids[i], threads, error);
    }
    return status;
}
