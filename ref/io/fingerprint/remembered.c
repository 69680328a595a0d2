#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "io/fingerprint/remembered.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "io/new_file.h"
#include "io/open.h"
#include "io/reading.h"

enum { HEX = 64, MOST = 1 << 20 };

char *m3_remembered_read(const char *memory)
{
    FILE *file = NULL;
    if (memory) m3_open_stream(&file, memory, NULL);
    char *lines = file ? malloc(MOST + 1) : NULL;
    size_t got = lines ? fread(lines, 1, MOST + 1, file) : 0;
    if (file) fclose(file);
    if (!lines) return NULL;
    if (got > MOST) got = 0;            /* too long: begun again */
    lines[got] = '\0';
    return lines;
}

char *m3_remembered_key(const char *path, const struct stat *state, const char *samples)
{
    char *whole = realpath(path, NULL), *key = NULL;
    if (!whole || strchr(whole, '\n') ||
        asprintf(&key, " %s %" PRIdMAX " %" PRIdMAX ".%09ld %" PRIdMAX ".%09ld %" PRIuMAX " %s", samples,
                 (intmax_t)state->st_size, (intmax_t)state->st_mtim.tv_sec, state->st_mtim.tv_nsec,
                 (intmax_t)state->st_ctim.tv_sec, state->st_ctim.tv_nsec, (uintmax_t)state->st_ino, whole) < 0)
        key = NULL;
    free(whole);
    return key;
}

static const char *line_after(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

int m3_remembered_find(char hex[65], const char *lines, const char *key)
{
    const size_t length = strlen(key);
    for (const char *line = lines; line && *line; line = line_after(line)) {
        if (strspn(line, "0123456789abcdef") != HEX) continue;
        if (strncmp(line + HEX, key, length) != 0 || line[HEX + length] != '\n') continue;
        memcpy(hex, line, HEX);
        hex[HEX] = '\0';
        return 1;
    }
    return 0;
}

/* The path is the sixth word and all that follows. */
static const char *path_of(const char *key)
{
    for (int spaces = 0; *key; key++)
        if (*key == ' ' && ++spaces == 6) return key + 1;
    return key;
}

/* Is the line about one of these files? */
static int is_replaced(const char *line, char *const *keys, long count)
{
    const size_t length = (size_t)(line_after(line) - line);
    for (long i = 0; i < count; i++) {
        const char *path = keys[i] ? path_of(keys[i]) : "";
        const size_t ending = strlen(path);
        if (*path && length > ending + 1 && line[length - ending - 2] == ' ' &&
            strncmp(line + length - ending - 1, path, ending) == 0)
            return 1;
    }
    return 0;
}

/* Makes the last folder of a path, and the one before it. */
static void make_folders(const char *path)
{
    char *folder = strdup(path), *end = folder ? strrchr(folder, '/') : NULL;
    if (end) *end = '\0';
    char *above = end ? strrchr(folder, '/') : NULL;
    if (above && above > folder) {
        *above = '\0';
        mkdir(folder, 0700);
        *above = '/';
    }
    if (end) mkdir(folder, 0700);
    free(folder);
}

void m3_remembered_write(const char *memory, const char *lines, char *const *keys, char (*hashes)[65], long count)
{
    struct m3_memory_stream written;
    FILE *stream = m3_memory_open(&written);
    for (const char *line = lines; stream && line && *line; line = line_after(line)) /* the last may lack its end */
        if (!is_replaced(line, keys, count)) fprintf(stream, "%.*s\n", (int)strcspn(line, "\n"), line);
    for (long i = 0; stream && i < count; i++)
        if (keys[i]) fprintf(stream, "%s%s\n", hashes[i], keys[i]);
    char *text = m3_memory_close(&written);
    if (text) {
        make_folders(memory);
        if (m3_reading_forget(memory, NULL) == M3_OK) m3_new_file_write(memory, text, written.length, NULL);
    }
    free(text);
}
