#ifndef _GNU_SOURCE
#define _GNU_SOURCE     /* memfd_create */
#endif
#include "io/gzip.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "io/memory.h"
#include "io/open.h"

enum { PIECE = 1 << 16, GZIP_WRAPPER = 16, LEVEL = 6 };
/* Dumps shrink to no less than a fifth; gzip could hide a thousand times the file. */
enum { MOST_RATIO = 64, ALWAYS = 16 << 20 };

struct pieces {
    z_stream z;
    unsigned char in[PIECE], out[PIECE];
};

int m3_is_gzip_name(const char *path)
{
    size_t length = strlen(path);
    return length >= 3 && strcmp(path + length - 3, ".gz") == 0;
}

int m3_write_all(int fd, const void *bytes, size_t count, const char *path, struct m3_error *error)
{
    const char *from = bytes;
    while (count > 0) {
        ssize_t written = write(fd, from, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return m3_fail(error, M3_IO, "%s: cannot write: %s", path, strerror(errno));
        from += written;
        count -= (size_t)written;
    }
    return M3_OK;
}

/* Refills the input when it is used up. At the end of the file avail_in stays 0. */
static int refill(struct pieces *p, int fd, const char *path, struct m3_error *error)
{
    if (p->z.avail_in > 0) return M3_OK;
    ssize_t got;
    do got = read(fd, p->in, PIECE);
    while (got < 0 && errno == EINTR);
    if (got < 0) return m3_fail(error, M3_IO, "%s: cannot read: %s", path, strerror(errno));
    p->z.next_in = p->in;
    p->z.avail_in = (uInt)got;
    return M3_OK;
}

/* A gzip file consists of one or more consecutive members. */
static int inflate_members(struct pieces *p, int fd, int packed, uint64_t most, const char *path,
                           struct m3_error *error)
{
    const uint64_t room = m3_memory_room();
    uint64_t bytes = 0;
    int ended = 0;      /* at the end of a member */
    for (;;) {
        int status = refill(p, packed, path, error);
        if (status) return status;
        if (p->z.avail_in == 0) break;
        if (ended && inflateReset(&p->z) != Z_OK) return m3_fail(error, M3_INTERNAL, "%s: zlib failed", path);

        p->z.next_out = p->out;
        p->z.avail_out = PIECE;
        int code = inflate(&p->z, Z_NO_FLUSH);
        if (code == Z_MEM_ERROR) return m3_fail_memory(error, path, PIECE);
        if (code != Z_OK && code != Z_STREAM_END)
            return m3_fail(error, M3_BAD_INPUT, "%s: not a gzip file, or damaged: %s", path,
                           p->z.msg ? p->z.msg : "bad data");
        ended = code == Z_STREAM_END;
        bytes += PIECE - p->z.avail_out;
        if (bytes > most)
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: inflates to more than %" PRIu64 " bytes, expected at most %d times the file: gunzip it "
                           "first, if that is right",
                           path, most, MOST_RATIO);
        status = bytes > room ? m3_fail_room(bytes, path, error) : M3_OK;
        if (!status) status = m3_write_all(fd, p->out, PIECE - p->z.avail_out, path, error);
        if (status) return status;
    }
    return ended ? M3_OK : m3_fail(error, M3_BAD_INPUT, "%s: gzip data is cut short", path);
}

int m3_gunzip(int *fd, int packed, const char *path, struct m3_error *error)
{
    struct stat info;
    *fd = -1;
    if (fstat(packed, &info) != 0) return m3_fail(error, M3_IO, "%s: %s", path, strerror(errno));
    const uint64_t most = (uint64_t)info.st_size * MOST_RATIO + ALWAYS;
    *fd = memfd_create("m3ref", MFD_CLOEXEC);
    if (*fd < 0)
        return m3_fail(error, m3_status_of(errno), "%s: cannot create a memory file: %s", path, strerror(errno));

    struct pieces p = { .z.next_in = NULL };
    int status;
    if (inflateInit2(&p.z, MAX_WBITS + GZIP_WRAPPER) != Z_OK) {
        status = m3_fail_memory(error, path, sizeof p);
    } else {
        status = inflate_members(&p, *fd, packed, most, path, error);
        inflateEnd(&p.z);
    }
    if (status) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static int deflate_all(struct pieces *p, int packed, int plain, const char *path, struct m3_error *error)
{
    int code = Z_OK;
    while (code != Z_STREAM_END) {
        int status = refill(p, plain, path, error);
        if (status) return status;
        p->z.next_out = p->out;
        p->z.avail_out = PIECE;
        code = deflate(&p->z, p->z.avail_in == 0 ? Z_FINISH : Z_NO_FLUSH);
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return m3_fail(error, M3_INTERNAL, "%s: zlib failed", path);
        status = m3_write_all(packed, p->out, PIECE - p->z.avail_out, path, error);
        if (status) return status;
    }
    return M3_OK;
}

int m3_gzip(int packed, int plain, const char *path, struct m3_error *error)
{
    if (lseek(plain, 0, SEEK_SET) < 0) return m3_fail(error, M3_IO, "%s: %s", path, strerror(errno));
    struct pieces p = { .z.next_in = NULL };
    if (deflateInit2(&p.z, LEVEL, Z_DEFLATED, MAX_WBITS + GZIP_WRAPPER, MAX_MEM_LEVEL - 1, Z_DEFAULT_STRATEGY) != Z_OK)
        return m3_fail_memory(error, path, sizeof p);
    int status = deflate_all(&p, packed, plain, path, error);
    deflateEnd(&p.z);
    return status;
}
