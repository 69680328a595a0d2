#ifndef _GNU_SOURCE
#define _GNU_SOURCE     /* fopencookie */
#endif
#include "base/memory_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 256 };

static ssize_t write_text(void *cookie, const char *bytes, size_t count)
{
    struct m3_memory_stream *s = cookie;
    const size_t need = s->length + count + 1;
    if (need > s->room) {
        const size_t room = need > 2 * s->room ? need : 2 * s->room;
        char *text = realloc(s->text, room);
        if (!text) {
            s->failed = 1;
            errno = ENOMEM;
            return 0;
        }
        s->text = text;
        s->room = room;
    }
    memcpy(s->text + s->length, bytes, count);
    s->length += count;
    s->text[s->length] = '\0';
    return (ssize_t)count;
}

FILE *m3_memory_open(struct m3_memory_stream *stream)
{
    *stream = (struct m3_memory_stream){ .text = calloc(1, FIRST_ROOM), .room = FIRST_ROOM };
    if (stream->text) stream->out = fopencookie(stream, "w", (cookie_io_functions_t){ .write = write_text });
    if (stream->out) return stream->out;
    free(stream->text);
    stream->text = NULL;
    return NULL;
}

char *m3_memory_close(struct m3_memory_stream *stream)
{
    const int failed = !stream->out || ferror(stream->out);
    if (stream->out && fclose(stream->out) != 0) stream->failed = 1;
    stream->out = NULL;
    if (!failed && !stream->failed) return stream->text;
    free(stream->text);
    stream->text = NULL;
    return NULL;
}
