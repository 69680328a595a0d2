/* A model directory: config.json, model.safetensors. */
#include "fuzz.h"
#include "model/model.h"

const int fuzz_parts = 2;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_model *model;
    fuzz_file("config.json", parts[0]);
    fuzz_file("model.safetensors", parts[1]);
    int status = m3_model_open(&model, fuzz_path(""), &notes, &error);
    m3_model_close(model);
    fuzz_check(status, &error);
    status = m3_model_open_layers(&model, fuzz_path(""), 0, 1, &notes, &error);
    m3_model_close(model);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}
