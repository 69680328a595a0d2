#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/temporary.h"
#include "oracle/blame/private/blame.h"

/* Is it needed to compute what is inherited? Slots of experts are aligned by the ids. */
static int is_kept(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    if (item->blamed) return m3_tap_table[item->tap].kind != M3_KIND_COUNTS;
    if (item->tap != M3_TAP_EXPERTS) return 0;
    const struct m3_blame_item *p = m3_blame_find(b, M3_TAP_EXPERT_WEIGHTS, item->layer);
    const struct m3_blame_item *each = m3_blame_find(b, M3_TAP_EXPERT_OUT, item->layer);
    return p->blamed || each->blamed;
}

static size_t size_of(const struct m3_blame_item *item)
{
    return m3_tap_table[item->tap].kind == M3_KIND_REALS ? sizeof(double) : sizeof(int32_t);
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    const struct m3_blame_item *item = m3_blame_find(self, tap, layer);
    return item && item->at >= 0;
}

static int write_rows(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                      struct m3_error *error)
{
    const struct m3_blaming *b = self;
    const struct m3_blame_item *item = m3_blame_find(b, tap, layer);
    const int64_t step = item->width * (int64_t)size_of(item);
    const char *from = data;
    if (row < 0 || rows < 0 || row + rows > item->rows)
        return m3_fail(error, M3_INTERNAL, "%s: got rows that are not in the call", item->name);
    for (int64_t done = 0, all = rows * step; done < all;) {
        ssize_t count = pwrite(b->fd, from + done, (size_t)(all - done), item->at + row * step + done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0)
            return m3_fail(error, M3_IO, "a temporary file for the run in double: %s",
                           count < 0 ? strerror(errno) : "nothing was written");
        done += count;
    }
    return M3_OK;
}

/* Opens a file without a name, in the folder for temporary files. */
static int open_file(struct m3_blaming *b)
{
    struct m3_nameless file;
    const int status = m3_temporary_nameless(&file, NULL, b->error);
    b->fd = file.fd;
    return status;
}

static int run(struct m3_blaming *b)
{
    const struct m3_setting *s = b->setting;
    struct m3_sink sink = { .self = b, .wants = wants, .write = write_rows };
    struct m3_request request = m3_case_request(s->the_case);
    request.first_layer = s->part.first;
    request.hidden = s->part.hidden;
    request.end_layer = m3_setting_end(s);
    request.semantics = s->semantics;
    request.linear = s->ctx->linear;
    request.threads = s->ctx->threads;
    request.sink = &sink;
    request.progress = b->options->progress;
    return m3_engine_f64()->forward(s->model, &request, b->error);
}

int m3_blame_reference(struct m3_blaming *b)
{
    b->fd = -1;
    for (int64_t i = 0; i < b->count; i++) {
        struct m3_blame_item *item = &b->items[i];
        item->at = -1;
        if (!is_kept(b, item)) continue;
        item->at = b->reference_bytes;
        b->reference_bytes += (item->rows * item->width * (int64_t)size_of(item) + 7) / 8 * 8;
    }
    if (b->reference_bytes == 0) return M3_OK;
    int status = open_file(b);
    if (!status && ftruncate(b->fd, b->reference_bytes))
        status = m3_fail(b->error, M3_IO, "a temporary file for the run in double: %s", strerror(errno));
    if (!status) status = run(b);
    if (status) return status;
    void *mapping = mmap(NULL, (size_t)b->reference_bytes, PROT_READ, MAP_PRIVATE, b->fd, 0);
    if (mapping == MAP_FAILED)
        return m3_fail(b->error, M3_IO, "a temporary file for the run in double: %s", strerror(errno));
    b->reference = mapping;
    return M3_OK;
}

void m3_blame_reference_free(struct m3_blaming *b)
{
    if (b->reference) munmap((void *)(uintptr_t)b->reference, (size_t)b->reference_bytes);
    if (b->fd >= 0) close(b->fd);
    b->reference = NULL;
    b->fd = -1;
}

const double *m3_blame_reference_row(const struct m3_blaming *b, const struct m3_blame_item *item, int64_t number)
{
    if (!item || item->at < 0 || !b->reference) return NULL;
    return (const double *)(const void *)(b->reference + item->at) + number * item->width;
}

const int32_t *m3_blame_reference_ids(const struct m3_blaming *b, const struct m3_blame_item *item, int64_t number)
{
    if (!item || item->at < 0 || !b->reference) return NULL;
    return (const int32_t *)(const void *)(b->reference + item->at) + number * item->width;
}
