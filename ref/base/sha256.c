/* The plain functions are deprecated in favour of EVP, but only they allocate nothing: EVP crashes where memory is short
 * when it loads its providers. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/sha256.h"

#include <openssl/sha.h>
#include <stdlib.h>

#include "base/status.h"

struct m3_sha256 {
    SHA256_CTX state;
    int failed;
};

struct m3_sha256 *m3_sha256_new(void)
{
    struct m3_sha256 *hash = malloc(sizeof *hash);
    if (hash) hash->failed = SHA256_Init(&hash->state) != 1;
    return hash;
}

void m3_sha256_add(struct m3_sha256 *hash, const void *bytes, size_t count)
{
    if (!hash->failed && count > 0) hash->failed = SHA256_Update(&hash->state, bytes, count) != 1;
}

int m3_sha256_so_far(const struct m3_sha256 *hash, char hex[65])
{
    unsigned char digest[SHA256_DIGEST_LENGTH] = { 0 };
    SHA256_CTX state = hash->state;
    const int failed = hash->failed || SHA256_Final(digest, &state) != 1;
    for (size_t i = 0; i < 32; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[64] = 0;
    if (failed) hex[0] = 0;
    return failed ? M3_INTERNAL : M3_OK;
}

int m3_sha256_end(struct m3_sha256 *hash, char hex[65])
{
    const int status = m3_sha256_so_far(hash, hex);
    free(hash);
    return status;
}
