/* A file to which records are added, and which a later process reads again up to a place of which it knows the hash.
 * What lies after that place does not count, and is written over. */
#ifndef M3_MODEL_RESUME_JOURNAL_H
#define M3_MODEL_RESUME_JOURNAL_H

#include <stdint.h>

#include "base/sha256.h"
#include "base/status.h"

struct m3_journal {
    int fd;                     /* -1: closed */
    const char *path;           /* the owner's */
    struct m3_sha256 *hash;     /* of all bytes */
    uint64_t bytes;
};

/* The head of a record, as it is stored; `count` bytes follow. */
struct m3_record {
    uint64_t to, index, count;
};

/* Takes bytes [at, at + n) of a record. */
typedef int m3_journal_take(void *self, const struct m3_record *record, uint64_t at, const void *bytes, uint64_t n,
                            struct m3_error *error);

/* Opens the file, and makes it if it does not exist. M3_IO, M3_INTERNAL. */
int m3_journal_open(struct m3_journal *journal, const char *path, struct m3_error *error);
/* Reads the first `bytes` bytes and hands on their records; more are added after them. M3_BAD_INPUT if the file is shorter or
 * their hash is not `sha256`; what was handed on is then not to be used. */
int m3_journal_read(struct m3_journal *journal, uint64_t bytes, const char *sha256, m3_journal_take *take, void *self,
                    struct m3_error *error);
int m3_journal_add(struct m3_journal *journal, const struct m3_record *record, const void *bytes,
                   struct m3_error *error);
/* Syncs the file. sha256: of all bytes. */
int m3_journal_sync(struct m3_journal *journal, char sha256[65], struct m3_error *error);
void m3_journal_close(struct m3_journal *journal);

#endif
