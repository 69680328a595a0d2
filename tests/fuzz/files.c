#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* memfd_create */
#endif
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

enum { MOST_FILES = 32 };

static struct {
    char *name;
    int fd;
} files[MOST_FILES];
static int file_count;
static char folder[256];
static pid_t owner;

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)kind, (void)place;
    return remove(path);
}

/* A child that the tests fork leaves the folder to its parent. */
static void remove_folder(void)
{
    if (getpid() == owner) nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void make_folder(void)
{
    const char *temporary = getenv("TMPDIR");
    if (!temporary) temporary = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/m3ref-fuzz-XXXXXX", temporary);
    if (!mkdtemp(folder)) fuzz_broken("the folder cannot be made");
    owner = getpid();
    atexit(remove_folder);
}

const char *fuzz_path(const char *name)
{
    static char paths[8][512];
    static int next;
    if (!*folder) make_folder();
    char *path = paths[next = (next + 1) % 8];
    snprintf(path, sizeof paths[0], "%s%s%s", folder, *name ? "/" : "", name);
    return path;
}

/* The descriptor of the file of that name; a new one is put into the folder. */
static int descriptor(const char *name)
{
    char memory[64], parent[512];
    for (int i = 0; i < file_count; i++)
        if (strcmp(files[i].name, name) == 0) return files[i].fd;
    if (file_count == MOST_FILES) fuzz_broken("too many files");
    files[file_count].name = strdup(name);
    files[file_count].fd = memfd_create("m3ref-fuzz", 0);
    snprintf(parent, sizeof parent, "%s", fuzz_path(name));
    *strrchr(parent, '/') = '\0';
    mkdir(parent, 0700);
    snprintf(memory, sizeof memory, "/proc/self/fd/%d", files[file_count].fd);
    if (files[file_count].fd < 0 || symlink(memory, fuzz_path(name))) fuzz_broken("a file cannot be made");
    return files[file_count++].fd;
}

const char *fuzz_file(const char *name, struct fuzz_bytes contents)
{
    const int fd = descriptor(name);
    if (ftruncate(fd, 0) || pwrite(fd, contents.bytes, contents.size, 0) != (ssize_t)contents.size)
        fuzz_broken("a file cannot be filled");
    return fuzz_path(name);
}

const char *fuzz_output(const char *name) { return fuzz_file(name, (struct fuzz_bytes){ 0 }); }
