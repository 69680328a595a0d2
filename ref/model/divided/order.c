#include "model/divided/order.h"

#include <stdlib.h>
#include <string.h>

#include "model/engine.h"

int m3_order_send(struct m3_ranks *ranks, void *data, uint64_t bytes, struct m3_error *error)
{
    const int count = m3_ranks_count(ranks);
    const struct m3_parcel in = { 0, data, bytes };
    if (m3_ranks_rank(ranks) > 0) return m3_ranks_exchange(ranks, M3_SENT_ORDERS, NULL, 0, &in, 1, error);
    struct m3_parcel *out = malloc((size_t)count * sizeof *out);
    if (!out) return m3_fail_memory(error, "parcels", (size_t)count * sizeof *out);
    for (int to = 1; to < count; to++) out[to] = (struct m3_parcel){ to, data, bytes };
    const int status = m3_ranks_exchange(ranks, M3_SENT_ORDERS, out + 1, count - 1, NULL, 0, error);
    free(out);
    return status;
}

int m3_order_open(struct m3_ranks *ranks, struct m3_model *model, const char *path, int64_t first, int64_t end,
                  struct m3_error *error)
{
    struct m3_order order = {
        .kind = M3_ORDER_OPEN, .first_layer = first, .end_layer = end, .path_bytes = (int64_t)strlen(path) + 1
    };
    char sha256[65] = "";
    char *copy = strdup(path);
    int status = copy ? m3_checkpoint_sha256(model->checkpoint, sha256, error) : m3_fail_memory(error, path, 0);
    if (!status) status = m3_order_send(ranks, &order, sizeof order, error);
    if (!status) status = m3_order_send(ranks, copy, (uint64_t)order.path_bytes, error);
    if (!status) status = m3_order_send(ranks, sha256, sizeof sha256, error);
    if (!status) {
        model->ranks = ranks;
        m3_ranks_share(ranks, model);
    }
    free(copy);
    return status;
}

int m3_order_work(struct m3_ranks *ranks, struct m3_ranks_work *all, struct m3_error *error)
{
    const int count = m3_ranks_count(ranks);
    struct m3_order order = { .kind = M3_ORDER_WORK };
    struct m3_parcel *in = malloc((size_t)count * sizeof *in);
    int status = in ? m3_order_send(ranks, &order, sizeof order, error) : m3_fail_memory(error, "parcels", 0);
    for (int from = 1; in && from < count; from++) in[from] = (struct m3_parcel){ from, &all[from], sizeof *all };
    if (!status) status = m3_ranks_exchange(ranks, M3_SENT_ORDERS, NULL, 0, in + 1, count - 1, error);
    all[0] = *m3_ranks_work(ranks);
    free(in);
    return status;
}

/* Opens the model that rank 0 has opened: the same config and tensors. */
static int open_model(struct m3_model **model, struct m3_ranks *ranks, const struct m3_order *order,
                      struct m3_error *error)
{
    char expected[65] = "", sha256[65], *path = malloc((size_t)order->path_bytes);
    struct m3_error notes = { 0 };
    int status = path ? M3_OK : m3_fail_memory(error, "a path", (size_t)order->path_bytes);
    m3_model_close(*model);
    *model = NULL;
    if (!status) status = m3_order_send(ranks, path, (uint64_t)order->path_bytes, error);
    if (!status) status = m3_order_send(ranks, expected, sizeof expected, error);
    if (!status && order->end_layer < 0) status = m3_model_open(model, path, &notes, error);
    else if (!status) status = m3_model_open_layers(model, path, order->first_layer, order->end_layer, &notes, error);
    if (!status) status = m3_checkpoint_sha256((*model)->checkpoint, sha256, error);
    if (!status && strcmp(sha256, expected) != 0)
        status = m3_fail(error, M3_BAD_INPUT, "%s: got another model than rank 0, expected the same files", path);
    m3_error_free(&notes);
    free(path);
    return status;
}

static int obey(struct m3_model **model, struct m3_ranks *ranks, struct m3_error *error)
{
    struct m3_order order = { 0 };
    int status = m3_order_send(ranks, &order, sizeof order, error);
    if (status) return status;
    if (order.kind == M3_ORDER_OPEN) return open_model(model, ranks, &order, error);
    if (order.kind == M3_ORDER_WORK) {
        struct m3_ranks_work work = *m3_ranks_work(ranks);
        const struct m3_parcel out = { 0, &work, sizeof work };
        return m3_ranks_exchange(ranks, M3_SENT_ORDERS, &out, 1, NULL, 0, error);
    }
    const struct m3_engine *engine = order.real_bytes == sizeof(double) ? m3_engine_f64() : m3_engine_f32();
    return engine->obey(*model, ranks, &order, error);
}

void m3_obey(struct m3_ranks *ranks)
{
    struct m3_model *model = NULL;
    struct m3_error error = { 0 };
    while (obey(&model, ranks, &error) == M3_OK) continue;
    m3_ranks_fail(ranks, &error);
    m3_error_free(&error);
    m3_model_close(model);
}
