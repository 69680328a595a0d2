/* A fingerprint of the bytes of a model's weight files. The hash of a model covers its config and the headers of its
 * files only, so models that differ in nothing but their weights have the same. SPEC 3.5
 *
 * As text: a JSON object of base names and SHA-256, and "sampled": true if only parts of the files were read. */
#ifndef M3_IO_FINGERPRINT_H
#define M3_IO_FINGERPRINT_H

#include <stdint.h>

#include "io/checkpoint.h"

struct m3_fingerprint_how {
    uint64_t whole;     /* files of more bytes than this, all together, are sampled */
    const char *memory; /* a file in which hashes of large files are remembered; NULL: none */
};

/* The usual: 64 GB. */
#define M3_FINGERPRINT_WHOLE UINT64_C(64000000000)

/* Hashes the weight files, several at a time. *text is to be freed. A memory that cannot be read or written is as good
 * as none. M3_IO, M3_INTERNAL. */
int m3_fingerprint(char **text, const struct m3_checkpoint *checkpoint, const struct m3_fingerprint_how *how,
                   struct m3_error *error);

/* The bytes of the files that m3_fingerprint would read: those whose hashes are not remembered. M3_IO, M3_INTERNAL. */
int m3_fingerprint_left(uint64_t *left, const struct m3_checkpoint *checkpoint, const struct m3_fingerprint_how *how,
                        struct m3_error *error);

/* Where hashes are remembered: $XDG_CACHE_HOME/m3ref/weights, or else ~/.cache/m3ref/weights. To be freed; NULL: nowhere. */
char *m3_fingerprint_memory(void);

/* *difference := NULL if the hashes of all files that both texts name agree, or one text is sampled and the other is
 * not; otherwise "FILE: got HASH, expected HASH", to be freed. M3_INTERNAL. */
int m3_fingerprint_compare(char **difference, const char *got, const char *expected, struct m3_error *error);

#endif
