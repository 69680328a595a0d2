/* A stream that writes into memory, for texts whose length is not known. Not open_memstream: where memory is short,
 * glibc's loses a part of the text without an error. */
#ifndef M3_BASE_MEMORY_STREAM_H
#define M3_BASE_MEMORY_STREAM_H

#include <stddef.h>
#include <stdio.h>

struct m3_memory_stream {
    FILE *out;              /* NULL if memory was short */
    char *text;
    size_t length, room;
    int failed;
};

/* Returns stream->out. The struct must stay where it is until the end. */
FILE *m3_memory_open(struct m3_memory_stream *stream);
/* Closes the stream, also one that could not be opened. Returns the text, ended by a NUL, which the caller frees; NULL
 * if memory was short for a part of it. */
char *m3_memory_close(struct m3_memory_stream *stream);

#endif
