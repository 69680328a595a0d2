/* A file as the reader and the maker of files in memory hold it. */
#ifndef M3_IO_SAFETENSORS_PRIVATE_H
#define M3_IO_SAFETENSORS_PRIVATE_H

#include <jansson.h>

#include "io/mapped.h"
#include "io/safetensors.h"

struct m3_memory {
    struct m3_memory *next;
    void *data;
    size_t bytes;
};

struct m3_safetensors {
    char *path;
    const unsigned char *bytes;     /* the whole file: length, JSON, data */
    uint64_t size, json_bytes;
    char *opened;                   /* the path that opens it; `path` is for messages */
    struct m3_mapped mapped;        /* in the list, unless it was made in memory or unpacked */
    json_t *json;                   /* owns the names and metadata strings */
    struct m3_tensor *tensors;      /* in the order of their data */
    struct m3_tensor **by_name;
    int64_t count, room;
    struct m3_memory *memory;       /* of a file made in memory */
    struct m3_safetensors *kept;    /* closed with it; or NULL */
};

/* Orders pointers to tensors by name, for qsort. */
int m3_safetensors_by_name(const void *a, const void *b);
void m3_safetensors_free_memory(struct m3_safetensors *file);

#endif
