/* A pass of the little model with the decisions of a dump. */
#include "oracle/judge/choices/decisions.h"

#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_world(); }

static int run(const struct fuzz_world *w, const struct m3_decisions *decisions, struct m3_error *error)
{
    enum { V = 17 };
    double logits[V];
    const struct m3_case *c = &w->the_case;
    const struct m3_request request = { .ids = c->ids,
                                        .positions = c->positions,
                                        .T = c->T,
                                        .end_layer = w->model->config.layers,
                                        .semantics = &w->semantics,
                                        .threads = 1,
                                        .force = m3_decisions_force(decisions),
                                        .logits = logits,
                                        .logit_rows = 1 };
    return m3_engine_f32()->forward(w->model, &request, error);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    const struct fuzz_world *w = fuzz_world();
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_decisions *decisions;
    const char *path = fuzz_file("dump.safetensors", parts[0]);
    int status = m3_decisions_open(&decisions, path, w->model, &w->the_case, m3_engine_f32(), &notes, &error);
    if (!status) {
        status = run(w, decisions, &error);
        m3_decisions_close(decisions);
    }
    m3_error_free(&notes);
    fuzz_check(status, &error);
}
