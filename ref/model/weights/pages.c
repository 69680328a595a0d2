#include "model/weights/pages.h"

static void pages(const struct m3_weight *const *all, size_t count, void (*give)(const void *, uint64_t))
{
    for (size_t i = 0; i < count; i++)
        if (all[i]->data) give(all[i]->data, m3_weight_bytes(all[i]));
}

static void layer_pages(const struct m3_layer *w, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &w->q_proj,       &w->k_proj, &w->v_proj, &w->o_proj, &w->index_q_proj,
                                      &w->index_k_proj, &w->gate,   &w->up,     &w->down,   &w->router };
    pages(all, sizeof all / sizeof all[0], give);
}

static void expert_pages(const struct m3_expert *e, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &e->w1, &e->w3, &e->w2 };
    pages(all, sizeof all / sizeof all[0], give);
}

void m3_pass_tower_pages(const struct m3_pass *f, const struct m3_vision_layer *w, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &w->q_proj, &w->k_proj, &w->v_proj, &w->out_proj, &w->fc1, &w->fc2 };
    if (!f->request->recorder) pages(all, sizeof all / sizeof all[0], give);
}

void m3_pass_projector_pages(const struct m3_pass *f, const struct m3_vision *w, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &w->linear_1, &w->linear_2, &w->merge_linear_1, &w->merge_linear_2 };
    if (!f->request->recorder) pages(all, sizeof all / sizeof all[0], give);
}

static int leaves_pages(const struct m3_pass *f) { return f->status || f->request->recorder || m3_pass_is_step(f); }

void m3_pass_ask_layer(const struct m3_pass *f, const struct m3_layer *w)
{
    if (!leaves_pages(f) && f->rows > 0) layer_pages(w, m3_pages_ask);
}

static int is_chosen(const int32_t *ids, int64_t count, int64_t expert)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] == expert) return 1;
    return 0;
}

void m3_pass_ask_experts(const struct m3_pass *f, const struct m3_expert *experts, const int32_t *ids, int64_t count)
{
    for (int64_t e = 0; !leaves_pages(f) && e < f->config->E; e++)
        if (is_chosen(ids, count, e)) expert_pages(&experts[e], m3_pages_ask);
}

void m3_pass_release_layer(const struct m3_pass *f, const struct m3_layer *w)
{
    if (leaves_pages(f)) return;
    layer_pages(w, m3_pages_release);
    for (int64_t e = 0; w->experts && e < f->config->E; e++) expert_pages(&w->experts[e], m3_pages_release);
}
