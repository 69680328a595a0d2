#include "base/sha256.h"

#include <openssl/evp.h>
#include <stdlib.h>

#include "base/status.h"

struct m3_sha256 {
    EVP_MD_CTX *digest;
    int failed;
};

struct m3_sha256 *m3_sha256_new(void)
{
    struct m3_sha256 *hash = calloc(1, sizeof *hash);
    if (!hash) return NULL;
    hash->digest = EVP_MD_CTX_new();
    if (!hash->digest) {
        free(hash);
        return NULL;
    }
    hash->failed = EVP_DigestInit_ex(hash->digest, EVP_sha256(), NULL) != 1;
    return hash;
}

void m3_sha256_add(struct m3_sha256 *hash, const void *bytes, size_t count)
{
    if (!hash->failed && count > 0) hash->failed = EVP_DigestUpdate(hash->digest, bytes, count) != 1;
}

int m3_sha256_end(struct m3_sha256 *hash, char hex[65])
{
    unsigned char digest[EVP_MAX_MD_SIZE] = { 0 };
    unsigned int length = 0;
    int failed = hash->failed || EVP_DigestFinal_ex(hash->digest, digest, &length) != 1 || length != 32;
    EVP_MD_CTX_free(hash->digest);
    free(hash);

    for (int i = 0; i < 32; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[64] = 0;
    if (failed) hex[0] = 0;
    return failed ? M3_INTERNAL : M3_OK;
}
