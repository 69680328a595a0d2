/* Writes a dump of a run in ordered sums, or of its gradients, and prints the SHA-256 and the name of each tensor. It
 * needs base, io, model, ops and train alone, and so is built quickly by every compiler (scripts/checks/bits.sh).
 *
 * usage: ordered_bits DUMP THREADS MODEL CASE [FIELD=VALUE ..]       every sequence of the case, by this reading
 *        ordered_bits DUMP THREADS MODEL CASE LOSSES f32|f64         gradients of these losses */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "model/files/batch.h"
#include "model/files/dump.h"
#include "model/files/gradient_file.h"
#include "model/files/labels.h"
#include "model/model.h"
#include "model/readings.h"
#include "model/semantics.h"

static struct m3_error error, notes;

static struct m3_semantics semantics;

static struct m3_request request_of(const struct m3_case *c, const struct m3_model *model, int threads)
{
    struct m3_request request = { .ids = c->ids, .positions = c->positions, .T = c->T, .seen = c->seen };
    request.end_layer = model->config.layers;
    request.semantics = &semantics;
    request.linear = M3_LINEAR_ORDERED;
    request.threads = threads;
    if (c->pictures.P > 0) request.pictures = &c->pictures;
    return request;
}

static int run(const char *path, struct m3_model *model, const struct m3_case *c, int threads)
{
    const struct m3_engine *engine = m3_engine_f32();
    struct m3_request request = request_of(c, model, threads);
    struct m3_sink sink = { 0 };
    struct m3_dump *dump;
    int status = m3_dump_open(&dump, &sink, path, NULL, model, engine, c, &request, "", &error);
    if (!status) status = m3_dump_begin(dump, &error);
    request.sink = &sink;
    if (!status) status = engine->forward(model, &request, &error);
    return status ? status : m3_dump_commit(dump, &error);
}

/* The weight of a loss in the sum, as of m3ref grad. */
static double weight(const char *losses, const char *name, double usual) { return strstr(losses, name) ? usual : 0; }

static int differentiate(const char *path, struct m3_model *model, const struct m3_batch *batch,
                         const struct m3_labels *labels, const char *losses, const struct m3_engine *engine,
                         int threads)
{
    struct m3_request one = request_of(&batch->cases[0], model, threads);
    struct m3_gradient_request request = { .sequences = &one, .labels = labels->of, .count = 1 };
    request.scored = labels->scored;
    request.weights.lm = weight(losses, "lm", 1);
    request.weights.mtp = weight(losses, "mtp", 0.1);
    request.weights.aux = weight(losses, "aux", 0.001);
    request.weights.kl = weight(losses, "kl", 1);
    m3_readings_default(&request.readings);
    const struct m3_gradient_run of = {
        .model = model, .engine = engine, .batch = batch, .labels = labels, .request = &request, .command = ""
    };
    struct m3_gradient_file *file;
    struct m3_gradient_sink sink;
    struct m3_losses result;
    int status = m3_gradient_file_open(&file, &sink, path, &of, &error);
    request.sink = &sink;
    if (!status) status = engine->gradient(model, &request, &result, &error);
    return status ? status : m3_gradient_file_commit(file, &error);
}

static int print_hashes(const char *path, const char *sequence)
{
    struct m3_safetensors *file;
    int status = m3_safetensors_open(&file, path, &error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        struct m3_sha256 *hash = m3_sha256_new();
        char hex[65];
        if (!hash) return M3_INTERNAL;
        m3_sha256_add(hash, t->data, t->bytes);
        status = m3_sha256_end(hash, hex);
        printf("%s  %s%s\n", hex, sequence, t->name);
    }
    return status;
}

int main(int argc, char **argv)
{
    struct m3_model *model;
    struct m3_batch batch;
    struct m3_labels labels = { 0 };
    if (argc < 5) return M3_USAGE;
    const char *path = argv[1], *losses = argc == 7 && !strchr(argv[5], '=') ? argv[5] : NULL;
    const struct m3_engine *engine = losses && strcmp(argv[6], "f64") == 0 ? m3_engine_f64() : m3_engine_f32();
    int status = m3_model_open(&model, argv[3], &notes, &error);
    if (!status) semantics = model->config.semantics;
    for (int i = 5; !status && !losses && i < argc; i++) status = m3_semantics_set(&semantics, argv[i], &error);
    if (!status) status = m3_batch_read(&batch, argv[4], &model->config, &error);
    if (!status) status = m3_batch_anchor(&batch, semantics.block_anchor, &error);
    if (!status && losses) status = m3_labels_read(&labels, argv[4], &batch, &model->config, &error);
    if (!status && losses) status = differentiate(path, model, &batch, &labels, losses, engine, atoi(argv[2]));
    if (!status && losses) status = print_hashes(path, "");
    for (int64_t b = 0; !status && !losses && b < batch.layout.count; b++) {
        char sequence[32] = "";
        if (batch.is_several) snprintf(sequence, sizeof sequence, "%" PRId64 ".", b);
        status = run(path, model, &batch.cases[b], atoi(argv[2]));
        if (!status) status = print_hashes(path, sequence);
    }
    if (status) m3_error_print(&error, stderr);
    return status;
}
