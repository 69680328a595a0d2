#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "io/fingerprint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/sha256.h"
#include "io/json.h"
#include "io/open.h"
#include "io/fingerprint/remembered.h"
#include "io/processors.h"

/* Files below SMALL are hashed every time: that takes milliseconds. Of each tensor of a sampled model, and of a remembered
 * file, BLOCK bytes are read every STRIDE bytes, and the last BLOCK. */
enum { SMALL = 16 << 20, BLOCK = 64 << 10, STRIDE = 16 << 20, PIECE = 1 << 20 };

struct hashing {
    const struct m3_checkpoint *checkpoint;
    int sampled;
    int64_t files;
    char (*hashes)[65];     /* [files] */
    char **keys;            /* [files] of those to be remembered; NULL: not */
    int *failures;          /* [files] errno */
};

/* ---- one file */

static int hash_whole(struct m3_sha256 *hash, int file)
{
    char *piece = malloc(PIECE);
    ssize_t got = 0;
    if (!piece) return ENOMEM;
    do {
        got = read(file, piece, PIECE);
        if (got > 0) m3_sha256_add(hash, piece, (size_t)got);
    } while (got > 0 || (got < 0 && errno == EINTR));
    const int failure = got < 0 ? errno : 0;
    free(piece);
    return failure;
}

/* Name and blocks of each tensor of the file. */
static void hash_samples(struct m3_sha256 *hash, const struct m3_checkpoint *checkpoint, const char *file)
{
    for (int64_t i = 0; i < m3_checkpoint_count(checkpoint); i++) {
        const char *path;
        const struct m3_tensor *t = m3_checkpoint_at(checkpoint, i, &path);
        if (path != file) continue;
        const uint64_t last = t->bytes > BLOCK ? t->bytes - BLOCK : 0;
        m3_sha256_add(hash, t->name, strlen(t->name) + 1);
        for (uint64_t at = 0; at < last; at += STRIDE) m3_sha256_add(hash, (const char *)t->data + at, BLOCK);
        m3_sha256_add(hash, t->bytes ? (const char *)t->data + last : "", t->bytes - last);
    }
}

/* hex := the hash of the samples. Returns 0 or an errno. */
static int hash_of_samples(char hex[65], const struct m3_checkpoint *checkpoint, const char *file)
{
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return ENOMEM;
    hash_samples(hash, checkpoint, file);
    return m3_sha256_end(hash, hex) == 0 ? 0 : EIO;
}

/* By what a large file is found among remembered ones, at this moment. NULL: it cannot be remembered. */
static char *key_of(const struct m3_checkpoint *checkpoint, const char *path, const struct stat *state)
{
    char samples[65];
    if (state->st_size < SMALL || hash_of_samples(samples, checkpoint, path) != 0) return NULL;
    return m3_remembered_key(path, state, samples);
}

/* May a file of these times be remembered? One that has just been written could be written again without another
 * time. */
static int is_settled(const struct stat *state)
{
    const time_t now = time(NULL);
    return state->st_mtim.tv_sec < now - 2 && state->st_ctim.tv_sec < now - 2;
}

static int is_unchanged(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
           a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Returns 0 or an errno. The hash is known to `lines`, or it is made, and keys[index] set if it is to be remembered. */
static int hash_file(struct hashing *h, int64_t index, const char *lines, int remembers)
{
    const char *path = m3_checkpoint_path(h->checkpoint, index);
    struct stat before, after;
    int file, failure = 0;
    if (m3_open_file(&file, path, NULL) != M3_OK) return errno ? errno : EIO;
    char *key = NULL;
    if (fstat(file, &before) != 0) failure = errno;
    else if (h->sampled) failure = hash_of_samples(h->hashes[index], h->checkpoint, path);
    else if (remembers) key = key_of(h->checkpoint, path, &before);
    if (!failure && !h->sampled && !(key && m3_remembered_find(h->hashes[index], lines, key))) {
        struct m3_sha256 *hash = m3_sha256_new();
        if (!hash) failure = ENOMEM;
        else failure = hash_whole(hash, file);
        if (hash && m3_sha256_end(hash, h->hashes[index]) != 0 && !failure) failure = EIO;
        if (!failure && key && is_settled(&before) && fstat(file, &after) == 0 && is_unchanged(&before, &after)) {
            h->keys[index] = key;
            key = NULL;
        }
    }
    free(key);
    close(file);
    return failure;
}

/* ---- all files */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int write_text(char **text, const struct hashing *h)
{
    json_t *object = json_object();
    for (int64_t i = 0; i < h->files; i++)
        m3_json_set(object, base_name(m3_checkpoint_path(h->checkpoint, i)), json_string(h->hashes[i]));
    if (h->sampled) m3_json_set(object, "sampled", json_true());
    *text = object ? m3_json_dump(object, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(object);
    return *text && !m3_json_failed() ? M3_OK : M3_INTERNAL;
}

static void hash_files(struct hashing *h, const char *memory)
{
    char *lines = m3_remembered_read(memory);
    const uint64_t bytes = m3_checkpoint_bytes(h->checkpoint);
    const int team = bytes < SMALL ? 1 : (int)m3_min(h->files, m3_processors());
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t i = 0; i < h->files; i++) h->failures[i] = hash_file(h, i, lines, memory != NULL);
    int any = 0;
    for (int64_t i = 0; i < h->files; i++) any |= h->keys[i] != NULL;
    if (any) {
        free(lines);
        lines = m3_remembered_read(memory);     /* another program may have written it meanwhile */
        m3_remembered_write(memory, lines, h->keys, h->hashes, (long)h->files);
    }
    free(lines);
}

int m3_fingerprint(char **text, const struct m3_checkpoint *checkpoint, const struct m3_fingerprint_how *how,
                   struct m3_error *error)
{
    struct hashing h = { .checkpoint = checkpoint, .files = m3_checkpoint_files(checkpoint) };
    const size_t files = (size_t)h.files + 1;
    int status = M3_OK;
    *text = NULL;
    h.sampled = m3_checkpoint_bytes(checkpoint) > how->whole;
    h.hashes = calloc(files, sizeof *h.hashes);
    h.keys = calloc(files, sizeof *h.keys);
    h.failures = calloc(files, sizeof *h.failures);
    if (!h.hashes || !h.keys || !h.failures) status = m3_fail_memory(error, "hashes of the weights", files * 80);
    if (!status) hash_files(&h, how->memory);
    for (int64_t i = 0; i < h.files && !status; i++)
        if (h.failures[i])
            status = m3_fail(error, h.failures[i] == ENOMEM ? M3_INTERNAL : M3_IO, "%s: cannot read: %s",
                             m3_checkpoint_path(checkpoint, i), strerror(h.failures[i]));
    if (!status && write_text(text, &h)) status = m3_fail_memory(error, "hashes of the weights", files * 80);
    for (int64_t i = 0; i < h.files && h.keys; i++) free(h.keys[i]);
    free(h.hashes);
    free(h.keys);
    free(h.failures);
    return status;
}

int m3_fingerprint_left(uint64_t *left, const struct m3_checkpoint *checkpoint, const struct m3_fingerprint_how *how,
                        struct m3_error *error)
{
    char hex[65], *lines = m3_remembered_read(how->memory);
    const int64_t files = m3_checkpoint_bytes(checkpoint) <= how->whole ? m3_checkpoint_files(checkpoint) : 0;
    int status = M3_OK;
    *left = 0;
    for (int64_t i = 0; i < files && !status; i++) {
        struct stat state;
        const char *path = m3_checkpoint_path(checkpoint, i);
        if (stat(path, &state) != 0) {
            status =
                m3_fail(error, errno == ENOMEM ? M3_INTERNAL : M3_IO, "%s: cannot read: %s", path, strerror(errno));
            continue;
        }
        char *key = key_of(checkpoint, path, &state);
        if (!key || !m3_remembered_find(hex, lines, key)) *left += (uint64_t)state.st_size;
        free(key);
    }
    free(lines);
    return status;
}

char *m3_fingerprint_memory(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int length = -1;
    if (cache && *cache == '/') length = asprintf(&path, "%s/m3ref/weights", cache);
    else if (home && *home == '/') length = asprintf(&path, "%s/.cache/m3ref/weights", home);
    return length < 0 ? NULL : path;
}

/* ---- comparing */

static int differ(char **difference, const json_t *got, const json_t *expected)
{
    const char *name;
    json_t *value;
    int files = 0, off = 0;
    char first[600] = "";
    if (json_is_true(json_object_get(got, "sampled")) != json_is_true(json_object_get(expected, "sampled"))) return 0;
    json_object_foreach((json_t *)got, name, value)
    {
        const char *is = json_string_value(value), *want = json_string_value(json_object_get(expected, name));
        if (!is || !want) continue;
        files++;
        if (strcmp(is, want) != 0 && off++ == 0)
            snprintf(first, sizeof first, "%.255s: got %.80s, expected %.80s", name, is, want);
    }
    if (off == 0) return 0;
    if (files == 1) return asprintf(difference, "%s", first);
    return asprintf(difference, "%s; %d of %d files differ", first, off, files);
}

int m3_fingerprint_compare(char **difference, const char *got, const char *expected, struct m3_error *error)
{
    json_t *is = m3_json_of_text(got), *want = m3_json_of_text(expected);
    int length;
    *difference = NULL;
    if (m3_json_failed()) length = -1;
    else if (!json_is_object(is) || !json_is_object(want))
        length = strcmp(got, expected) == 0 ? 0 : asprintf(difference, "got %.80s, expected %.80s", got, expected);
    else length = differ(difference, is, want);
    json_decref(is);
    json_decref(want);
    return length < 0 ? m3_fail_memory(error, "hashes of the weights", strlen(got)) : M3_OK;
}
