#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* memmem */
#endif
#include "io/safetensors/seal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io/safetensors.h"

static const char key[] = "\"" M3_SEAL_KEY "\":\"";
static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";

/* Quotes inside a string are escaped, so nothing else looks like the key. */
const char *m3_seal_find(const char *text, size_t length)
{
    const char *at = memmem(text, length, key, sizeof key - 1), *seal = at ? at + sizeof key - 1 : NULL;
    return seal && (size_t)(text + length - seal) > M3_SEAL_LENGTH ? seal : NULL;
}

struct m3_sha256 *m3_seal_begin(const unsigned char *prefix, const char *text, size_t length, const char *seal)
{
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return NULL;
    m3_sha256_add(hash, prefix, 8);
    m3_sha256_add(hash, text, (size_t)(seal - text));
    m3_sha256_add(hash, zeros, M3_SEAL_LENGTH);
    m3_sha256_add(hash, seal + M3_SEAL_LENGTH, (size_t)(text + length - seal) - M3_SEAL_LENGTH);
    return hash;
}

void m3_seal_add(struct m3_sha256 *seal, uint64_t begin, const char hex[65])
{
    char line[96];
    const int length = snprintf(line, sizeof line, "%" PRIu64 " %s\n", begin, hex);
    m3_sha256_add(seal, line, (size_t)length);
}

static int add_tensor(struct m3_sha256 *seal, const struct m3_safetensors *file, const struct m3_tensor *t,
                      const char *data, struct m3_error *error)
{
    char hex[65];
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, m3_safetensors_path(file), 0);
    m3_sha256_add(hash, t->data, t->bytes);
    m3_pages_release(t->data, t->bytes);
    if (m3_sha256_end(hash, hex)) return m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", m3_safetensors_path(file));
    m3_seal_add(seal, (uint64_t)((const char *)t->data - data), hex);
    return M3_OK;
}

const char *m3_safetensors_seal(const struct m3_safetensors *file)
{
    return m3_safetensors_metadata(file, M3_SEAL_KEY);
}

int m3_safetensors_check_seal(const struct m3_safetensors *file, struct m3_error *error)
{
    uint64_t bytes;
    char hex[65] = "";
    int status = M3_OK;
    const unsigned char *header = m3_safetensors_header(file, &bytes);
    const char *text = (const char *)header + 8, *path = m3_safetensors_path(file);
    const char *stated = m3_seal_find(text, bytes - 8);
    if (!stated) return m3_fail(error, M3_BAD_INPUT, "%s: " M3_SEAL_KEY ": got none, expected one", path);
    struct m3_sha256 *seal = m3_seal_begin(header, text, bytes - 8, stated);
    if (!seal) return m3_fail_memory(error, path, 0);
    for (int64_t i = 0; !status && i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        if (t->bytes) status = add_tensor(seal, file, t, text + (bytes - 8), error);
    }
    if (m3_sha256_end(seal, hex) && !status) status = m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", path);
    if (!status && memcmp(stated, hex, M3_SEAL_LENGTH) != 0)
        status = m3_fail(error, M3_BAD_INPUT, "%s: " M3_SEAL_KEY ": got %.64s, expected %s: the file has changed", path,
                         stated, hex);
    return status;
}
