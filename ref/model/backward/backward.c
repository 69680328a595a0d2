/* The order of a backward pass. ref/train/TRAINING.md. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/backward/gradient.h"
#include "model/backward/stages.h"
#include "model/forward/forward.h"

void m3_backward_take(struct m3_backward *b, int64_t i, int64_t rows)
{
    b->b = i;
    b->how = b->request->sequences[i];
    b->how.attends_fully = b->request->readings.kl_phase == M3_KL_WARMUP;
    b->f.layer = -1;
    b->f.row = 0;
    m3_pass_take_rows(&b->f, rows, rows);
    free(b->angles.cos);
    free(b->angles.sin);
    b->angles.R = b->f.config->R;
    b->angles.cos = m3_pass_need(&b->f, rows, b->angles.R / 2, sizeof(real));
    b->angles.sin = m3_pass_need(&b->f, rows, b->angles.R / 2, sizeof(real));
    rope_table(&b->f, prepares(M3_TAP_Q_ROPE), &b->angles, b->how.positions);
}

/* Does the main branch learn, or the index branch alone? */
static int is_main(const struct m3_backward *b)
{
    const struct m3_loss_weights *w = &b->request->weights;
    return w->lm != 0 || w->mtp != 0 || w->aux != 0;
}

/* Is there a module row with a label? */
static int has_label(const struct m3_gradient_request *r, int64_t m)
{
    for (int64_t i = 0; i < r->count; i++)
        for (int64_t t = m + 2; t < r->sequences[i].T; t++)
            if (r->labels[i][t] >= 0) return 1;
    return 0;
}

static void heads(struct m3_backward *b)
{
    const int64_t count = b->request->count;
    for (int64_t m = b->modules - 1; !b->f.status && m >= 0; m--) {
        for (int64_t i = 0; !b->f.status && i < count; i++) {
            m3_backward_take(b, i, b->request->sequences[i].T);
            m3_backward_module(b, m);
        }
        m3_gradient_give(b, M3_GIVE_LAYER);
    }
    for (int64_t i = 0; !b->f.status && i < count; i++) {
        m3_backward_take(b, i, b->request->sequences[i].T);
        m3_backward_head(b);
    }
    m3_gradient_give(b, M3_GIVE_HEAD);
}

static void layers(struct m3_backward *b)
{
    const struct m3_config *c = &b->model->config;
    for (int64_t l = c->layers - 1; !b->f.status && l >= 0; l--) {
        m3_tell(&b->request->progress, "backward layer", c->layers - 1 - l, c->layers);
        for (int64_t i = 0; !b->f.status && i < b->request->count; i++) {
            struct m3_trace *trace = &b->traces[i];
            m3_backward_take(b, i, b->request->sequences[i].T);
            m3_keep_layer(b, l, trace->hidden[l]);
            if (m3_config_sparse(c, l) && b->request->weights.kl != 0) m3_backward_index(b, &b->model->layers[l]);
            if (is_main(b)) m3_backward_layer(b, l, trace->hidden[l], trace->d);
            m3_keep_nothing(b);
            free(trace->hidden[l + 1]);
            trace->hidden[l + 1] = NULL;
        }
        m3_gradient_give(b, M3_GIVE_LAYER);
    }
}

static void inputs(struct m3_backward *b)
{
    for (int64_t i = 0; !b->f.status && is_main(b) && i < b->request->count; i++) {
        m3_backward_take(b, i, b->request->sequences[i].T);
        m3_backward_fused(b);
    }
    m3_gradient_give(b, M3_GIVE_ALL);
}

static void total(struct m3_backward *b)
{
    const struct m3_loss_weights *w = &b->request->weights;
    struct m3_losses *l = b->losses;
    for (int64_t m = 0; m < b->modules; m++) l->mtp += l->module[m] / (double)b->modules;
    l->modules = b->modules;
    l->total = w->lm * l->lm + w->mtp * l->mtp + w->aux * l->aux + w->kl * l->kl;
}

static void begin(struct m3_backward *b)
{
    const int64_t E = b->model->config.E, layers = b->model->config.layers, count = b->request->count;
    const int64_t held = b->model->mtp_modules < M3_MOST_MODULES ? b->model->mtp_modules : M3_MOST_MODULES;
    while (b->request->weights.mtp != 0 && b->modules < held && has_label(b->request, b->modules)) b->modules++;
    b->traces = m3_pass_need(&b->f, count, 1, sizeof *b->traces);
    if (b->traces) memset(b->traces, 0, (size_t)count * sizeof *b->traces);
    b->counts = m3_pass_need(&b->f, layers, 1, sizeof *b->counts);
    double *numbers = m3_pass_need(&b->f, layers, 2 * E, sizeof *numbers);
    if (numbers) memset(numbers, 0, (size_t)(layers * 2 * E) * sizeof *numbers);
    for (int64_t l = 0; b->counts && l < layers; l++) {
        double *of_layer = numbers ? numbers + l * 2 * E : NULL;
        b->counts[l] = (struct m3_router_counts){ of_layer, numbers ? of_layer + E : NULL, 0 };
    }
    if (!b->counts) free(numbers);
}

static void end(struct m3_backward *b)
{
    for (int64_t i = 0; b->traces && i < b->request->count; i++) {
        struct m3_trace *trace = &b->traces[i];
        for (int64_t l = 0; trace->hidden && l <= b->model->config.layers; l++) free(trace->hidden[l]);
        for (int64_t m = 0; trace->module && m < b->modules; m++) free(trace->module[m]);
        free(trace->hidden);
        free(trace->module);
        free(trace->d);
        free(trace->d_given);
    }
    m3_keep_nothing(b);
    m3_gradient_give(b, M3_GIVE_ALL);
    free(b->open);
    free(b->traces);
    if (b->counts) free(b->counts[0].chosen);
    free(b->counts);
    free(b->angles.cos);
    free(b->angles.sin);
}

int m3_gradient(const struct m3_model *model, const struct m3_gradient_request *request, struct m3_losses *losses,
                struct m3_error *error)
{
    struct m3_backward b = { .model = model, .request = request, .error = error, .losses = losses };
    int status = request->count < 1 || request->scored < 1
                     ? m3_fail(error, M3_USAGE,
                               "request: got %" PRId64 " sequences with %" PRId64 " labels, expected at least one",
                               request->count, request->scored)
                     : m3_gradient_check(request->sequences[0].semantics, error);
    *losses = (struct m3_losses){ 0 };
    if (status) return status;
    b.how = request->sequences[0];
    m3_pass_open(&b.f, model, &b.how, error);
    begin(&b);
    m3_backward_trace(&b);
    m3_backward_balance_loss(&b);
    if (is_main(&b)) heads(&b);
    layers(&b);
    inputs(&b);
    total(&b);
    end(&b);
    return m3_pass_close(&b.f);
}
