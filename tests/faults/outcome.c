#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "outcome.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/printable.h"
#include "base/status.h"

const char *const verdict_names[VERDICTS] = { "good",       "wrong successes", "crashes",       "leaks",
                                              "left-overs", "wrong statuses",  "wrong messages" };

const char *const outcome_states[OUTCOME_STATES] = { "0.state.safetensors", "0.outputs", "0.findings.safetensors" };

static char *read_file(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0) {
        perror(path);
        exit(M3_INTERNAL);
    }
    char *bytes = malloc((size_t)info.st_size + 1);
    *count = bytes ? fread(bytes, 1, (size_t)info.st_size, file) : 0;
    if (!bytes) exit(M3_INTERNAL);
    bytes[*count] = '\0';
    fclose(file);
    return bytes;
}

static void read_folder(struct outcome *o, const char *folder, const char *below)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, below);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat info;
        char name[600];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", entry->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (lstat(path, &info) != 0) continue;
        if (S_ISDIR(info.st_mode)) {
            read_folder(o, folder, name);
        } else if (o->count < OUTCOME_FILES) {
            struct outcome_file *f = &o->files[o->count++];
            snprintf(f->path, sizeof f->path, "%s", name);
            f->bytes = read_file(path, &f->count);
        }
    }
    if (dir) closedir(dir);
}

void outcome_read(struct outcome *outcome, const char *folder, const struct fault_record *record, int ended)
{
    char path[600];
    size_t count;
    *outcome = (struct outcome){ .finished = record->finished, .leaks = record->leaks, .ended = ended };
    snprintf(path, sizeof path, "%s/stdout", folder);
    outcome->out = read_file(path, &count);
    snprintf(path, sizeof path, "%s/stderr", folder);
    outcome->err = read_file(path, &count);
    snprintf(path, sizeof path, "%s/out", folder);
    read_folder(outcome, path, "");
}

void outcome_free(struct outcome *outcome)
{
    for (int i = 0; i < outcome->count; i++) free(outcome->files[i].bytes);
    free(outcome->out);
    free(outcome->err);
    outcome->count = 0;
}

/* ---- comparison: numbers of bytes and seconds differ from run to run */

static int is_measured(const char *after)
{
    static const char *const units[] = { " s", " ms", " MB", " GB", " MiB", " KB", " bytes of memory" };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t length = strlen(units[i]);
        if (strncmp(after, units[i], length) == 0 && !isalnum((unsigned char)after[length])) return 1;
    }
    return 0;
}

static int is_peak(const char *text, const char *at)
{
    static const char key[] = "\"peak_bytes\":";
    const size_t length = sizeof key - 1;
    return (size_t)(at - text) >= length && memcmp(at - length, key, length) == 0;
}

/* Copies the text with '#' for every measured number. */
static void mask(char *to, const char *text)
{
    for (const char *from = text; *from;) {
        size_t length = strspn(from, "0123456789.");
        const int measured = length > 0 && (is_measured(from + length) || is_peak(text, from));
        if (length == 0) length = 1;
        if (measured) *to++ = '#';
        else to = (char *)memcpy(to, from, length) + length;
        from += length;
    }
    *to = '\0';
}

static char *masked(const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    if (!copy) exit(M3_INTERNAL);
    mask(copy, text);
    return copy;
}

static int same_text(const char *a, const char *b)
{
    char *x = masked(a), *y = masked(b);
    const int same = strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}

/* Is `part` the whole text, but for one piece that could not be written, and for what comes after the failure? */
static int is_interrupted(const char *part, const char *whole)
{
    char *x = masked(part), *y = masked(whole);
    size_t first = 0;
    while (x[first] && x[first] == y[first]) first++;
    const int is_part = strstr(y + first, x + first) != NULL;
    free(x);
    free(y);
    return is_part;
}

static const struct outcome_file *find(const struct outcome *o, const char *path)
{
    for (int i = 0; i < o->count; i++)
        if (strcmp(o->files[i].path, path) == 0) return &o->files[i];
    return NULL;
}

static int same_file(const struct outcome_file *a, const struct outcome_file *b)
{
    if (a->count == b->count && memcmp(a->bytes, b->bytes, a->count) == 0) return 1;
    return strlen(a->bytes) == a->count && strlen(b->bytes) == b->count && same_text(a->bytes, b->bytes);
}

/* Of any sequence. */
static int is_state(const char *path)
{
    const int is_there = strncmp(path, "state/", 6) == 0 && isdigit((unsigned char)path[6]);
    int is = 0;
    for (int i = 0; i < OUTCOME_STATES && is_there; i++) is |= !strcmp(path + 7, outcome_states[i] + 1);
    return is;
}

/* The name of a file that is not as the good run leaves it; NULL: there is none. A failed run keeps its state. */
static const char *left_over(const struct outcome *run, const struct outcome *good, int has_failed)
{
    for (int i = 0; i < run->count; i++) {
        const struct outcome_file *f = find(good, run->files[i].path);
        if (has_failed && is_state(run->files[i].path)) continue;
        if (!f || !same_file(f, &run->files[i])) return run->files[i].path;
    }
    return NULL;
}

/* What the program only remembers in order to be quicker next time may be missing. */
static int is_optional(const char *path) { return strncmp(path, "remembered/", 11) == 0; }

static const char *missing(const struct outcome *run, const struct outcome *good)
{
    for (int i = 0; i < good->count; i++)
        if (!find(run, good->files[i].path) && !is_optional(good->files[i].path)) return good->files[i].path;
    return NULL;
}

/* The number of lines of `text` that are missing in `known`; all of them in `last`. OpenMP's runtime says a line of its own, before
 * that of the program that watches a plug-in. */
static int new_lines(const char *text, const char *known, char *last, size_t room)
{
    static const char runtime[] = "libgomp: ";
    int count = 0, of_runtime = 0;
    last[0] = '\0';
    while (*text) {
        const size_t length = strcspn(text, "\n");
        char line[1000];
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        if (*line && !strstr(known, line)) {
            snprintf(last + strlen(last), room - strlen(last), "%s%s", *last ? " | " : "", line);
            if (strncmp(line, runtime, sizeof runtime - 1) == 0) of_runtime = 1;
            else count++;
        }
        text += length + (text[length] == '\n');
    }
    return count ? count : of_runtime;
}

static int status_fits(int status, int call, int error, const char *said)
{
    /* dlopen does not tell a failed call from a file that is no library; its message, which is passed on, does. */
    if (call && status == M3_UNAVAILABLE && strstr(said, ": not a plug-in: ")) return 1;
    if (call == 0) return status == M3_INTERNAL;
    if (call == SYS_clone) return status == M3_INTERNAL;
    if (error == ENOMEM || call == SYS_mmap) return status == M3_IO || status == M3_INTERNAL;
    return status == M3_IO;
}

static enum verdict judge_failure(const struct outcome *run, const struct outcome *good, int status, int call,
                                  int error, char *why, size_t room)
{
    char lines[1000];
    const int count = new_lines(run->err, good->err, lines, sizeof lines);
    if (!status_fits(status, call, error, lines)) {
        snprintf(why, room, "status %d: %s", status, count ? lines : "without a message");
        return WRONG_STATUS;
    }
    if (!is_interrupted(run->out, good->out)) {
        snprintf(why, room, "standard output differs: %s", lines);
        return WRONG_SUCCESS;
    }
    const char *left = call == SYS_unlink ? NULL : left_over(run, good, 1);
    if (left) {
        snprintf(why, room, "%s is left: %s", left, lines);
        return LEFT_OVER;
    }
    if (count == 1) return GOOD;
    snprintf(why, room, "%d lines: %s", count, lines);
    return WRONG_MESSAGE;
}

/* Is it UTF-8 that steers no terminal? */
static int is_shown(const char *text)
{
    size_t bytes = 1;
    for (const char *at = text; *at && bytes > 0; at += bytes) {
        const uint32_t character = m3_utf8(at, strlen(at), &bytes);
        if (character != '\n' && character != '\t' && m3_steers_terminal(character)) return 0;
    }
    return bytes > 0;
}

enum verdict outcome_judge(const struct outcome *run, const struct outcome *good, int call, int error, char *why,
                           size_t room)
{
    char lines[1000];
    new_lines(run->err, good->err, lines, sizeof lines);
    const int status = WIFEXITED(run->ended) ? WEXITSTATUS(run->ended) : -1;
    if (status < 0 || status == 99) {
        snprintf(why, room, "ended by signal %d: %.300s", WIFSIGNALED(run->ended) ? WTERMSIG(run->ended) : 0, lines);
        return CRASH;
    }
    if (run->leaks) {
        snprintf(why, room, "leak; status %d: %s", status, lines);
        return LEAK;
    }
    if (!is_shown(run->out) || !is_shown(lines)) {
        snprintf(why, room, "status %d: what is printed steers a terminal, or is not UTF-8", status);
        return WRONG_MESSAGE;
    }
    /* A plug-in that is judged, and that OpenMP's runtime has ended, has failed its case. */
    const int ended_kernel = status == M3_WRONG && strstr(lines, "libgomp: ") && strstr(run->out, "ended the program");
    if (ended_kernel) return GOOD;
    if (status != WEXITSTATUS(good->ended)) return judge_failure(run, good, status, call, error, why, room);

    const char *file = left_over(run, good, 0);
    if (!file) file = missing(run, good);
    if (!same_text(run->out, good->out)) {
        snprintf(why, room, "status %d, but standard output differs; %s", status, lines);
        return WRONG_SUCCESS;
    }
    if (file) {
        snprintf(why, room, "status %d, but %s differs; %s", status, file, lines);
        return WRONG_SUCCESS;
    }
    if (same_text(run->err, good->err)) return GOOD;
    snprintf(why, room, "status %d, but standard error differs: %s", status, lines);
    return WRONG_MESSAGE;
}

enum verdict outcome_judge_next(const struct outcome *run, const struct outcome *good, char *why, size_t room)
{
    if (run->ended != good->ended) {
        snprintf(why, room, "the next run ended with %d: %.300s", run->ended, run->err);
        return WIFEXITED(run->ended) ? WRONG_STATUS : CRASH;
    }
    const char *file = left_over(run, good, 0);
    if (!file) file = missing(run, good);
    if (!file) return GOOD;
    snprintf(why, room, "the next run succeeds, but %s differs", file);
    return WRONG_SUCCESS;
}
