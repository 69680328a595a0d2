/* An envelope, a reference, a candidate that is ranked in the envelope. The seal of an envelope that states one is put
 * right, so that what it would have refused is read. */
#include <string.h>

#include "oracle/judge/rows/envelope.h"

#include "compare.h"
#include "world.h"

const int fuzz_parts = 3;
void fuzz_begin(void) { fuzz_world(); }

static int seal(const char *path, const struct m3_safetensors *input, struct m3_error *error)
{
    struct m3_writer *writer;
    int status = m3_writer_new(&writer, path, error);
    if (status) fuzz_broken("no writer");
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(input, key));)
        if (strcmp(key, "seal_sha256") != 0)
            status = m3_writer_metadata(writer, key, m3_safetensors_metadata(input, key), error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(input); i++) {
        const struct m3_tensor *t = m3_safetensors_at(input, i);
        status = m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, error);
    }
    if (!status) status = m3_writer_seal(writer, error);
    if (!status) status = m3_writer_begin(writer, error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(input); i++)
        status = m3_writer_write(writer, m3_safetensors_at(input, i)->data, m3_safetensors_at(input, i)->bytes, error);
    if (!status) return m3_writer_commit(writer, error);
    m3_writer_abandon(writer);
    return status;
}

/* The path of the envelope, sealed if it can be. */
static const char *sealed(struct fuzz_bytes contents)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *input = NULL;
    const char *given = fuzz_file("envelope.safetensors", contents), *path = fuzz_path("sealed.safetensors");
    int status = m3_safetensors_open(&input, given, &error);
    if (!status && m3_safetensors_seal(input)) status = seal(path, input, &error);
    else path = given;
    m3_safetensors_close(input);
    m3_error_free(&error);
    return status ? given : path;
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *files[2];
    struct m3_envelope *envelope = NULL;
    struct m3_judgement result;
    const char *path = sealed(parts[0]);
    int status = m3_envelope_open(&envelope, path, NULL, fuzz_world()->profile, &error);
    fuzz_check(status, &error);
    if (status) return;
    const struct m3_compare_options options = { .profile = fuzz_world()->profile, .envelope = envelope, .force = 1 };
    status = open_two(files, parts + 1, &error);
    if (!status) {
        status = m3_compare(&result, files[0], files[1], &options, &error);
        if (!status) check_comparison(&result);
        m3_judgement_free(&result);
    }
    close_two(files);
    m3_envelope_close(envelope);
    fuzz_check(status, &error);
}
