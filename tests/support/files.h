/* A separate folder for each test, and small files in it. Include in one test file. */
#ifndef M3_TESTS_FILES_H
#define M3_TESTS_FILES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <check.h>
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static inline void make_folder(void)
{
    const char *where = getenv("TMPDIR");
    const int length = snprintf(folder, sizeof folder, "%s/m3ref-XXXXXX", where ? where : "/tmp");
    ck_assert_msg(length < (int)sizeof folder, "TMPDIR: got %s, expected a shorter path", where);
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static inline void remove_folder(void) { nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS); }

/* The path of a file in the folder. Valid until eight more calls. */
static inline const char *in_folder(const char *name)
{
    static char paths[8][512];
    static int next;
    next = (next + 1) % 8;
    snprintf(paths[next], sizeof paths[next], "%s/%s", folder, name);
    return paths[next];
}

/* `words` with the folder for each @, in text [room for it]. */
static inline const char *with_folder(char *text, const char *words)
{
    char *to = text;
    for (; *words; words++) to += *words == '@' ? sprintf(to, "%s", folder) : (*to = *words, 1);
    *to = '\0';
    return text;
}

static inline void write_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text) { write_bytes(path, text, strlen(text)); }

/* The whole file, NUL-terminated, to be freed by the caller. */
static inline unsigned char *read_bytes(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*count + 1);
    ck_assert_uint_eq(fread(bytes, 1, *count, file), *count);
    bytes[*count] = 0;
    fclose(file);
    return bytes;
}

/* The number of files in the folder. */
static inline int file_count(void)
{
    int count = 0;
    DIR *entries = opendir(folder);
    ck_assert_ptr_nonnull(entries);
    for (struct dirent *entry; (entry = readdir(entries));) count += entry->d_name[0] != '.' || entry->d_name[1] > '.';
    closedir(entries);
    return count;
}

/* Writes a safetensors file as bytes: length, header as given, data 0, 1, 2, ... */
static inline void write_safetensors(const char *path, const char *json, size_t data_bytes)
{
    size_t length = strlen(json), size = 8 + length + data_bytes;
    unsigned char *bytes = calloc(size, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((unsigned long long)length >> 8 * i);
    memcpy(bytes + 8, json, length);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (unsigned char)i;
    write_bytes(path, bytes, size);
    free(bytes);
}

#endif
