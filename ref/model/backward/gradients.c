/* The gradients of parameters: a buffer each, from the first operator that adds to it until it is complete. */
#include <stdlib.h>

#include "base/room.h"
#include "model/backward/backward.h"

static struct m3_gradient *find(struct m3_backward *b, const struct m3_weight *w)
{
    for (int64_t i = 0; i < b->opened; i++)
        if (b->open[i].of->id == w->id) return &b->open[i];
    return NULL;
}

static struct m3_gradient *another(struct m3_backward *b)
{
    if (b->opened == b->room) {
        const int64_t room = b->room ? 2 * b->room : 64;
        struct m3_gradient *more = realloc(b->open, (size_t)room * sizeof *more);
        if (!more) {
            b->f.status = m3_fail_memory(b->error, "gradients", (size_t)room * sizeof *more);
            return NULL;
        }
        b->open = more;
        b->room = room;
    }
    return &b->open[b->opened];
}

real *m3_gradient_of(struct m3_backward *b, const struct m3_weight *w)
{
    struct m3_gradient *g = b->f.status ? NULL : find(b, w);
    if (g) return g->values;
    if (b->f.status || !(g = another(b))) return NULL;
    *g = (struct m3_gradient){ w, m3_room((size_t)(w->rows * w->cols), sizeof(real)) };
    if (!g->values) {
        b->f.status = m3_fail_memory(b->error, "a gradient", (size_t)(w->rows * w->cols) * sizeof(real));
        return NULL;
    }
    b->opened++;
    return g->values;
}

/* A tied lm_head is the embedding. */
static int is_complete(const struct m3_backward *b, const struct m3_weight *w, enum m3_give which)
{
    if (which == M3_GIVE_ALL) return 1;
    if (w->id == b->model->embed.id) return 0;
    return which == M3_GIVE_HEAD || w->id != b->model->lm_head.id;
}

void m3_gradient_give(struct m3_backward *b, enum m3_give which)
{
    const struct m3_gradient_sink *sink = b->request->sink;
    int64_t kept = 0;
    for (int64_t i = 0; i < b->opened; i++) {
        const struct m3_gradient g = b->open[i];
        if (!is_complete(b, g.of, which)) {
            b->open[kept++] = g;
            continue;
        }
        if (!b->f.status && sink) b->f.status = sink->parameter(sink->self, g.of, g.values, b->error);
        free(g.values);
    }
    b->opened = kept;
}
