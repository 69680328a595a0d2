#include "cli/paths.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/json.h"
#include "io/open.h"
#include "io/reading.h"
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

void m3_cli_reads(struct m3_cli_paths *paths, const char *option, const char *path)
{
    if (path && !paths->status) paths->status = m3_reading_note_path(path, option, paths->error);
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

void m3_cli_reads_input(struct m3_cli_paths *paths, const struct m3_cli_input *in)
{
    m3_cli_reads(paths, "--case", in->case_path);
    m3_cli_reads(paths, "--ids", in->ids_path);
    m3_cli_reads(paths, "--chat", in->chat);
    m3_cli_reads(paths, "--ops", in->ops.path);
    for (int64_t i = 0; i < in->image_count; i++) m3_cli_reads(paths, "--image", in->images[i]);
    for (int64_t i = 0; i < in->video_count; i++)
        if (!paths->status) paths->status = m3_reading_note_folder(in->videos[i], "*.png", "--video", paths->error);
}

void m3_cli_keeps(struct m3_cli_paths *paths, const char *folder)
{
    struct stat info;
    if (!folder || paths->status) return;
    paths->status = m3_look(&info, folder, paths->error);
    for (int i = 0; i < paths->count && !paths->status; i++) {
        const struct m3_cli_output *out = &paths->outputs[i];
        if (!out->has_folder || out->folder.st_dev != info.st_dev || out->folder.st_ino != info.st_ino) continue;
        paths->status =
            m3_fail(paths->error, M3_USAGE, "%s: got %s, in the folder of --resume, expected another folder",
                    out->option, out->path);
    }
}

int m3_cli_paths_end(struct m3_cli_paths *paths)
{
    for (int i = 0; !paths->status && i < paths->count; i++) {
        const struct m3_cli_output *out = &paths->outputs[i];
        paths->status = out->path ? m3_reading_refuse(out->option, out->path, paths->error)
                                  : m3_reading_refuse_file(out->option, &out->file, paths->error);
    }
    return paths->status;
}
