/* Whatever opens is read in whole, and a copy that the writer makes of it opens again with the same tensors. */
#include <string.h>

#include "fuzz.h"
#include "io/safetensors.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

static void read_tensors(const struct m3_safetensors *file)
{
    uint64_t bytes;
    const unsigned char *header = m3_safetensors_header(file, &bytes);
    fuzz_see(header[bytes - 1]);
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        if (m3_safetensors_find(file, t->name) != t) fuzz_broken("a tensor is not found by its name");
        if ((t->count == 0) != (t->data == NULL)) fuzz_broken("data of a tensor without elements, or none of another");
        if (t->count > 0) fuzz_see(m3_decode(t->dtype, t->data, 0) + m3_decode(t->dtype, t->data, t->count - 1));
        m3_pages_ask(t->data, t->bytes);
        m3_pages_release(t->data, t->bytes);
    }
}

static int copy_to(const char *path, const struct m3_safetensors *file, struct m3_error *error)
{
    struct m3_writer *writer;
    int status = m3_writer_new(&writer, path, error);
    if (status) return status;
    for (int64_t i = 0; !status && i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        status = m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, error);
    }
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(file, key));)
        status = m3_writer_metadata(writer, key, m3_safetensors_metadata(file, key), error);
    if (!status) status = m3_writer_begin(writer, error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        status = m3_writer_append(writer, i, t->data, t->bytes, error);
    }
    if (!status) return m3_writer_commit(writer, error);
    m3_writer_abandon(writer);
    return status;
}

static void check_same(const struct m3_safetensors *a, const struct m3_safetensors *b)
{
    if (m3_safetensors_count(a) != m3_safetensors_count(b)) fuzz_broken("the copy has another number of tensors");
    for (int64_t i = 0; i < m3_safetensors_count(a); i++) {
        const struct m3_tensor *t = m3_safetensors_at(a, i), *copy = m3_safetensors_find(b, t->name);
        if (!copy || copy->dtype != t->dtype || copy->rank != t->rank || copy->bytes != t->bytes ||
            memcmp(copy->shape, t->shape, sizeof t->shape) != 0 || (t->bytes && memcmp(copy->data, t->data, t->bytes)))
            fuzz_broken("a tensor of the copy differs");
    }
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *file, *again;
    int status = m3_safetensors_open(&file, fuzz_file("in.safetensors", parts[0]), &error);
    if ((file == NULL) != (status != M3_OK)) fuzz_broken("a file and a failure");
    fuzz_check(status, &error);
    if (status) return;
    read_tensors(file);
    const char *path = fuzz_output("out.safetensors");
    status = copy_to(path, file, &error);
    if (!status) status = m3_safetensors_open(&again, path, &error);
    if (status) fprintf(stderr, "%s", error.text);
    if (status) fuzz_broken("a file that was read cannot be copied");
    check_same(file, again);
    m3_safetensors_close(again);
    m3_safetensors_close(file);
}
