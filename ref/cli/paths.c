#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include "cli/paths.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/open.h"
#include "oracle/error/profile.h"

static int same(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

struct m3_cli_paths m3_cli_paths(struct m3_error *error)
{
    struct m3_cli_paths paths = { .error = error };
    struct m3_cli_output *out = &paths.outputs[0];
    *out = (struct m3_cli_output){ .option = "standard output", .name = "" };
    if (fstat(STDOUT_FILENO, &out->file) != 0)
        paths.status = m3_fail(error, M3_IO, "standard output: %s", strerror(errno));
    out->has_file = !paths.status && S_ISREG(out->file.st_mode);
    paths.count = out->has_file;
    return paths;
}

void m3_cli_writes(struct m3_cli_paths *paths, const char *option, const char *path)
{
    if (!path || paths->status) return;
    const char *slash = strrchr(path, '/');
    struct m3_cli_output out = { .option = option, .path = path, .name = slash ? slash + 1 : path };
    char *folder = strdup(path);
    if (!folder) {
        paths->status = m3_fail_memory(paths->error, path, strlen(path));
        return;
    }
    paths->status = m3_look(&out.file, path, paths->error);
    if (!paths->status) paths->status = m3_look(&out.folder, dirname(folder), paths->error);
    free(folder);
    out.has_file = out.file.st_mode != 0;
    out.has_folder = out.folder.st_mode != 0;
    for (int i = 0; !paths->status && i < paths->count; i++) {
        const struct m3_cli_output *other = &paths->outputs[i];
        if ((out.has_file && other->has_file && same(&out.file, &other->file)) ||
            (out.has_folder && other->has_folder && same(&out.folder, &other->folder) &&
             strcmp(out.name, other->name) == 0))
            paths->status = m3_fail(paths->error, M3_USAGE, "%s and %s: got %s for both, expected two files", option,
                                    other->option, path);
    }
    paths->outputs[paths->count++] = out;
}

static void refuse(struct m3_cli_paths *paths, const struct m3_cli_output *out, const char *option, const char *path)
{
    paths->status = m3_fail(paths->error, M3_USAGE, "%s: got %s, which this command reads as %s, expected another file",
                            out->option, out->path ? out->path : path, option);
}

void m3_cli_reads(struct m3_cli_paths *paths, const char *option, const char *path)
{
    struct stat info;
    if (!path || paths->status) return;
    paths->status = m3_look(&info, path, paths->error);
    if (info.st_mode == 0) return;
    for (int i = 0; !paths->status && i < paths->count; i++)
        if (paths->outputs[i].has_file && same(&info, &paths->outputs[i].file))
            refuse(paths, &paths->outputs[i], option, path);
}

void m3_cli_reads_named(struct m3_cli_paths *paths, const char *option, const char *name)
{
    if (name && m3_is_json_path(name)) m3_cli_reads(paths, option, name);
}

void m3_cli_reads_profile(struct m3_cli_paths *paths, const char *profile)
{
    char *name = profile ? strdup(profile) : NULL;
    if (profile && !name) paths->status = m3_fail_memory(paths->error, profile, 0);
    if (!name) return;
    name[m3_profile_base_length(name)] = '\0';
    m3_cli_reads_named(paths, "--profile", name);
    free(name);
}

static void refuse_entries(struct m3_cli_paths *paths, const char *option, const char *folder, DIR *dir,
                           const char *pattern)
{
    struct stat info;
    struct dirent *entry;
    while (!paths->status && !(paths->status = m3_next_entry(&entry, dir, folder, paths->error)) && entry) {
        if (fnmatch(pattern, entry->d_name, 0) != 0) continue;
        if (fstatat(dirfd(dir), entry->d_name, &info, 0) != 0) {
            if (!m3_is_absent(errno))
                paths->status = m3_fail(paths->error, M3_IO, "%s/%s: cannot be looked at: %s", folder, entry->d_name,
                                        strerror(errno));
            continue;
        }
        for (int i = 0; !paths->status && i < paths->count; i++)
            if (paths->outputs[i].path && paths->outputs[i].has_file && same(&info, &paths->outputs[i].file))
                refuse(paths, &paths->outputs[i], option, folder);
    }
}

/* The files of the folder whose names match, and the outputs that would be read the next time because their names
 * match. The file to which the shell has redirected output is not among them. */
static void reads_folder(struct m3_cli_paths *paths, const char *option, const char *folder, const char *pattern)
{
    struct stat info;
    if (paths->status) return;
    DIR *dir = opendir(folder);
    if (!dir && m3_is_absent(errno)) return;
    if (!dir || fstat(dirfd(dir), &info) != 0) {
        paths->status = m3_fail(paths->error, m3_status_of(errno), "%s: cannot be read: %s", folder, strerror(errno));
        if (dir) closedir(dir);
        return;
    }
    for (int i = 0; !paths->status && i < paths->count; i++) {
        const struct m3_cli_output *out = &paths->outputs[i];
        if (out->has_folder && same(&info, &out->folder) && fnmatch(pattern, out->name, 0) == 0)
            refuse(paths, out, option, folder);
    }
    refuse_entries(paths, option, folder, dir, pattern);
    closedir(dir);
}

/* A weight file that is not opened is a file of the model all the same. */
static void reads_skipped(struct m3_cli_paths *paths, const char *folder, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        if (!paths->status) paths->status = m3_fail_memory(paths->error, name, 0);
        return;
    }
    m3_cli_reads(paths, "MODEL", path);
    free(path);
}

void m3_cli_reads_model(struct m3_cli_paths *paths, const char *folder, const struct m3_checkpoint *files)
{
    static const char *const beside[] = {
        "*.json", "model.safetensors", "model-*-of-*.safetensors", "*.txt", "*.jinja", "*.model", "*.py", "*.md"
    };
    if (files) m3_cli_reads(paths, "MODEL", m3_checkpoint_config_path(files));
    for (int64_t i = 0; files && i < m3_checkpoint_files(files); i++)
        m3_cli_reads(paths, "MODEL", m3_checkpoint_path(files, i));
    for (int64_t i = 0; files && i < m3_checkpoint_skipped(files); i++)
        reads_skipped(paths, folder, m3_checkpoint_skipped_name(files, i));
    m3_cli_reads(paths, "MODEL", folder);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) reads_folder(paths, "MODEL", folder, beside[i]);
}

void m3_cli_reads_input(struct m3_cli_paths *paths, const struct m3_cli_input *in)
{
    m3_cli_reads(paths, "--case", in->case_path);
    m3_cli_reads(paths, "--ids", in->ids_path);
    m3_cli_reads(paths, "--chat", in->chat);
    m3_cli_reads(paths, "--ops", in->ops.path);
    for (int64_t i = 0; i < in->image_count; i++) m3_cli_reads(paths, "--image", in->images[i]);
    for (int64_t i = 0; i < in->video_count; i++) reads_folder(paths, "--video", in->videos[i], "*.png");
}
