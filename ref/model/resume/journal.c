#include "model/resume/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/minmax.h"
#include "io/gzip.h"
#include "io/open.h"

enum { PIECE = 1 << 20 };

static int fail_system(const struct m3_journal *j, const char *what, struct m3_error *error)
{
    return m3_fail(error, m3_status_of(errno), "%s: %s: %s", j->path, what, strerror(errno));
}

int m3_journal_open(struct m3_journal *j, const char *path, struct m3_error *error)
{
    struct stat info;
    *j = (struct m3_journal){ .fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666),
                              .path = path,
                              .hash = m3_sha256_new() };
    int status = j->hash ? M3_OK : m3_fail_memory(error, path, 0);
    if (!status && (j->fd < 0 || fstat(j->fd, &info) != 0)) status = fail_system(j, "cannot open it", error);
    if (!status && !S_ISREG(info.st_mode)) status = m3_fail(error, M3_IO, "%s: not a regular file", path);
    if (status) m3_journal_close(j);
    return status;
}

/* Reads `count` bytes, adds them to the hash and counts them. */
static int read_exactly(struct m3_journal *j, void *bytes, size_t count, struct m3_error *error)
{
    for (size_t done = 0; done < count;) {
        const ssize_t got = read(j->fd, (char *)bytes + done, count - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_system(j, "cannot be read", error);
        if (got == 0)
            return m3_fail(error, M3_BAD_INPUT, "%s: got %" PRIu64 " bytes, expected more", j->path, j->bytes + done);
        done += (size_t)got;
    }
    m3_sha256_add(j->hash, bytes, count);
    j->bytes += count;
    return M3_OK;
}

static int read_records(struct m3_journal *j, uint64_t bytes, char *piece, m3_journal_take *take, void *self,
                        struct m3_error *error)
{
    struct m3_record record;
    int status = M3_OK;
    while (!status && j->bytes < bytes) {
        const uint64_t begin = j->bytes;
        if (bytes - j->bytes >= sizeof record) status = read_exactly(j, &record, sizeof record, error);
        else record.count = UINT64_MAX;
        if (!status && record.count > bytes - j->bytes)
            status = m3_fail(error, M3_BAD_INPUT, "%s: byte %" PRIu64 ": got a record past the end, expected it before",
                             j->path, begin);
        for (uint64_t at = 0, n; !status && at < record.count; at += n) {
            n = record.count - at < PIECE ? record.count - at : PIECE;
            status = read_exactly(j, piece, n, error);
            if (!status) status = take(self, &record, at, piece, n, error);
        }
    }
    return status;
}

int m3_journal_read(struct m3_journal *j, uint64_t bytes, const char *sha256, m3_journal_take *take, void *self,
                    struct m3_error *error)
{
    char got[65], *piece = malloc(PIECE);
    int status = piece ? read_records(j, bytes, piece, take, self, error) : m3_fail_memory(error, j->path, PIECE);
    free(piece);
    if (!status && m3_sha256_so_far(j->hash, got)) status = m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", j->path);
    if (!status && bytes > 0 && strcmp(got, sha256) != 0)
        status = m3_fail(error, M3_BAD_INPUT, "%s: SHA-256 of the first %" PRIu64 " bytes: got %s, expected %s",
                         j->path, bytes, got, sha256);
    return status;
}

int m3_journal_add(struct m3_journal *j, const struct m3_record *record, const void *bytes, struct m3_error *error)
{
    int status = m3_write_all(j->fd, record, sizeof *record, j->path, error);
    if (!status) status = m3_write_all(j->fd, bytes, record->count, j->path, error);
    m3_sha256_add(j->hash, record, sizeof *record);
    m3_sha256_add(j->hash, bytes, record->count);
    j->bytes += sizeof *record + record->count;
    return status;
}

int m3_journal_sync(struct m3_journal *j, char sha256[65], struct m3_error *error)
{
    int failed;
    do failed = fsync(j->fd);
    while (failed && errno == EINTR);
    if (failed) return fail_system(j, "cannot sync", error);
    return m3_sha256_so_far(j->hash, sha256) ? m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", j->path) : M3_OK;
}

void m3_journal_close(struct m3_journal *j)
{
    if (j->fd >= 0) close(j->fd);
    free(j->hash);
    *j = (struct m3_journal){ .fd = -1 };
}
