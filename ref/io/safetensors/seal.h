/* The seal of a safetensors file: SHA-256 of the header, in which the seal itself is zeros, and of a line "BEGIN HASH" for
 * each tensor that has bytes, in the order of the data. */
#ifndef M3_IO_SAFETENSORS_SEAL_H
#define M3_IO_SAFETENSORS_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

#define M3_SEAL_KEY "seal_sha256"
enum { M3_SEAL_LENGTH = 64 };

/* Where the seal's digits are in the text of a header [length]; NULL: it has none. */
const char *m3_seal_find(const char *text, size_t length);

/* The hash begins with the header as stored: 8 bytes of length, and the text [length] with padding. NULL: no memory. */
struct m3_sha256 *m3_seal_begin(const unsigned char *prefix, const char *text, size_t length, const char *seal);
void m3_seal_add(struct m3_sha256 *seal, uint64_t begin, const char hex[65]);

#endif
