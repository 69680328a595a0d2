#include "world.h"

#include <stdio.h>

#include "model/weights/synth.h"

static void must(int status, struct m3_error *error, const char *what)
{
    if (status) m3_error_print(error, stderr);
    if (status) fuzz_broken(what);
    m3_error_free(error);
}

void fuzz_config_of(struct m3_config *config, const char *path)
{
    struct m3_error error = { 0 }, notes = { 0 };
    must(m3_config_read(config, path, &notes, &error), &error, "a config cannot be read");
    m3_error_free(&notes);
}

static void make(struct fuzz_world *w)
{
    enum { T = 6 };
    static const int64_t ids[T] = { 1, 2, 3, 4, 5, 6 };
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_synth_totals totals;
    struct m3_pictures none = { 0 };
    const char *folder = fuzz_path("little");
    must(m3_synth_write("tests/fuzz/little.json", folder, 1, M3_SYNTH_F32, 0, &totals, NULL, &notes, &error), &error,
         "the model cannot be made");
    must(m3_model_open(&w->model, folder, &notes, &error), &error, "the model cannot be opened");
    must(m3_case_from_ids(&w->the_case, ids, T, &none, &w->model->config, &error), &error, "the case cannot be made");
    must(m3_profile_open(&w->profile, "bf16", &error), &error, "the profile cannot be opened");
    must(m3_ctx_init(&w->ctx, 1, M3_LINEAR_BLAS), &error, "no context");
    w->semantics = w->model->config.semantics;
    w->setting = (struct m3_setting){
        .model = w->model, .semantics = &w->semantics, .the_case = &w->the_case, .profile = w->profile, .ctx = &w->ctx
    };
    m3_error_free(&notes);
}

const struct fuzz_world *fuzz_world(void)
{
    static struct fuzz_world world;
    if (!world.model) make(&world);
    return &world;
}

void fuzz_command(int (*command)(int argc, char **argv), const char *const *words)
{
    char *argv[32];
    int argc = 0;
    while (words[argc]) argv[argc] = (char *)(uintptr_t)words[argc], argc++;
    argv[argc] = NULL;
    static FILE *nowhere;
    FILE *const messages = stderr;
    if (!nowhere && !(nowhere = fopen("/dev/null", "w"))) fuzz_broken("no stream");
    stderr = nowhere;           /* not the descriptor: sanitizers write to that */
    const int status = command(argc, argv);
    stderr = messages;
    fflush(stdout);
    struct m3_error error = { .count = status > M3_SUSPECT };
    fuzz_check(status, &error);
}
