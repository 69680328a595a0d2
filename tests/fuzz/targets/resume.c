/* What `run --resume` has kept: a state and its outputs. Of a state with a layer, what would refuse a change at once is
 * put right: the labels of the run, the hash of the outputs and the seal. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "cli/cli.h"
#include "world.h"

const int fuzz_parts = 2;
static struct m3_safetensors *own; /* a state of the run itself */
static char folder[512], state[600], outputs[600];
static char *words[] = { "run",    NULL,       "--ids",       "1,2,3,4,5,6", "--threads",
                         "1",      "--resume", folder,        "--taps",      "logits,layers.*.out",
                         "--dump", NULL,       "--cache-out", NULL,          NULL };

static void put(const char *path, struct fuzz_bytes contents)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(contents.bytes, 1, contents.size, file) != contents.size || fclose(file) != 0)
        fuzz_broken("a file cannot be filled");
}

/* Leaves a state, if the run stops after it: where a file would have more bytes. */
static void stop_at(rlim_t bytes)
{
    const struct rlimit less = { bytes, RLIM_INFINITY }, all = { RLIM_INFINITY, RLIM_INFINITY };
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &less) != 0) fuzz_broken("no limit");
    FILE *const messages = stderr, *nowhere = fopen("/dev/null", "w");
    if (!nowhere) fuzz_broken("no stream");
    stderr = nowhere;
    m3_cli_run(sizeof words / sizeof *words - 1, words);
    stderr = messages;
    fclose(nowhere);
    if (setrlimit(RLIMIT_FSIZE, &all) != 0) fuzz_broken("no limit");
}

void fuzz_begin(void)
{
    static char paths[3][512];
    struct m3_error error = { 0 };
    fuzz_world();
    snprintf(paths[0], sizeof paths[0], "%s", fuzz_path("little"));
    snprintf(paths[1], sizeof paths[1], "%s", fuzz_path("dump"));
    snprintf(paths[2], sizeof paths[2], "%s", fuzz_path("cache"));
    words[1] = paths[0], words[11] = paths[1], words[13] = paths[2];
    snprintf(folder, sizeof folder, "%s", fuzz_path("state"));
    snprintf(state, sizeof state, "%s/0.state.safetensors", folder);
    snprintf(outputs, sizeof outputs, "%s/0.outputs", folder);
    mkdir(folder, 0700);
    for (rlim_t bytes = 1000; bytes < 4000 && !own; bytes += 100) {
        stop_at(bytes);
        if (rename(state, fuzz_path("own")) == 0 && m3_safetensors_open(&own, fuzz_path("own"), &error))
            fuzz_broken("a state cannot be read");
    }
    if (!own) fuzz_broken("no state");
    unlink(outputs);
}

static int is_of_the_input(const char *key)
{
    static const char *const keys[] = { "layer", "outputs_bytes", "command", "outputs" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return 1;
    return 0;
}

static int put_hash(struct m3_writer *writer, const char *bytes, struct fuzz_bytes contents, struct m3_error *error)
{
    char hex[65];
    struct m3_sha256 *hash = m3_sha256_new();
    const unsigned long long count = bytes ? strtoull(bytes, NULL, 10) : 0;
    if (!hash) fuzz_broken("no memory");
    m3_sha256_add(hash, contents.bytes, count < contents.size ? (size_t)count : contents.size);
    if (m3_sha256_end(hash, hex)) fuzz_broken("no hash");
    return m3_writer_metadata(writer, "outputs_sha256", hex, error);
}

/* Replaces the state by one of this run, with the numbers and tensors of the input. */
static void put_right(const struct m3_safetensors *input, struct fuzz_bytes contents)
{
    struct m3_error error = { 0 };
    struct m3_writer *writer;
    int status = m3_writer_new(&writer, state, &error);
    if (status) fuzz_broken("no writer");
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(own, key));)
        if (!is_of_the_input(key) && strcmp(key, "seal_sha256") != 0)
            status = m3_writer_metadata(writer, key, m3_safetensors_metadata(own, key), &error);
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(input, key));)
        if (is_of_the_input(key)) status = m3_writer_metadata(writer, key, m3_safetensors_metadata(input, key), &error);
    if (!status) status = put_hash(writer, m3_safetensors_metadata(input, "outputs_bytes"), contents, &error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(input); i++) {
        const struct m3_tensor *t = m3_safetensors_at(input, i);
        status = m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, &error);
    }
    if (!status) status = m3_writer_seal(writer, &error);
    if (!status) status = m3_writer_begin(writer, &error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(input); i++)
        status = m3_writer_write(writer, m3_safetensors_at(input, i)->data, m3_safetensors_at(input, i)->bytes, &error);
    if (!status) status = m3_writer_commit(writer, &error);
    else m3_writer_abandon(writer);
    m3_error_free(&error);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *input = NULL;
    mkdir(folder, 0700);
    put(state, parts[0]);
    put(outputs, parts[1]);
    if (m3_safetensors_open(&input, state, &error) == M3_OK && m3_safetensors_metadata(input, "layer"))
        put_right(input, parts[1]);
    m3_safetensors_close(input);
    m3_error_free(&error);
    fuzz_command(m3_cli_run, (const char *const *)words);
}
