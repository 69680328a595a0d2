/* A user of the installed library, in C: runs a model on a case and prints the most likely next token. */
#include <m3ref.h>
#include <stdlib.h>

static int run(const char *folder, const char *path, struct m3_error *notes, struct m3_error *error)
{
    struct m3_model *model = NULL;
    struct m3_case c = { 0 };
    int status = m3_model_open(&model, folder, notes, error);
    if (!status) status = m3_case_read(&c, path, &model->config, error);
    double *logits = status ? NULL : malloc((size_t)model->config.V * sizeof *logits);
    const struct m3_request request = { .ids = c.ids,
                                        .positions = c.positions,
                                        .T = c.T,
                                        .pictures = c.pictures.P > 0 ? &c.pictures : NULL,
                                        .end_layer = status ? 0 : model->config.layers,
                                        .threads = 2,
                                        .semantics = status ? NULL : &model->config.semantics,
                                        .logits = logits,
                                        .logit_rows = 1 };
    if (logits) status = m3_engine_f32()->forward(model, &request, error);
    int64_t best = 0;
    for (int64_t i = 0; logits && i < model->config.V; i++) best = logits[i] > logits[best] ? i : best;
    if (!status) printf("%ld\n", (long)best);
    free(logits);
    m3_case_free(&c);
    m3_model_close(model);
    return status;
}

int main(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    const int status = argc >= 3 ? run(argv[1], argv[2], &notes, &error) : M3_USAGE;
    m3_error_print(&error, stderr);
    m3_error_free(&error);
    m3_error_free(&notes);
    return status;
}
