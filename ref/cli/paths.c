#include "cli/paths.h"

#include <dirent.h>
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
#include "oracle/error/profile.h"

static int same(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

struct m3_cli_paths m3_cli_paths(struct m3_error *error)
{
    struct m3_cli_paths paths = { .error = error };
    struct m3_cli_output *out = &paths.outputs[0];
    *out = (struct m3_cli_output){ .option = "standard output", .name = "" };
    out->has_file = fstat(STDOUT_FILENO, &out->file) == 0 && S_ISREG(out->file.st_mode);
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
    out.has_file = stat(path, &out.file) == 0;
    out.has_folder = stat(dirname(folder), &out.folder) == 0;
    free(folder);
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
    if (!path || paths->status || stat(path, &info) != 0) return;
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

/* The files of the folder whose names match, and the outputs that would be read the next time because their names
 * match. The file to which the shell has redirected output is not among them. */
static void reads_folder(struct m3_cli_paths *paths, const char *option, const char *folder, const char *pattern)
{
    struct stat info;
    DIR *dir = opendir(folder);
    const int known = dir && fstat(dirfd(dir), &info) == 0;
    for (int i = 0; !paths->status && i < paths->count; i++) {
        const struct m3_cli_output *out = &paths->outputs[i];
        if (known && out->has_folder && same(&info, &out->folder) && fnmatch(pattern, out->name, 0) == 0)
            refuse(paths, out, option, folder);
    }
    for (struct dirent *entry; dir && !paths->status && (entry = readdir(dir));) {
        if (fnmatch(pattern, entry->d_name, 0) != 0 || fstatat(dirfd(dir), entry->d_name, &info, 0) != 0) continue;
        for (int i = 0; !paths->status && i < paths->count; i++)
            if (paths->outputs[i].path && paths->outputs[i].has_file && same(&info, &paths->outputs[i].file))
                refuse(paths, &paths->outputs[i], option, folder);
    }
    if (dir) closedir(dir);
}

void m3_cli_reads_model(struct m3_cli_paths *paths, const char *folder, const struct m3_checkpoint *files)
{
    static const char *const beside[] = {
        "*.json", "model.safetensors", "model-*-of-*.safetensors", "*.txt", "*.jinja", "*.model", "*.py", "*.md"
    };
    if (files) m3_cli_reads(paths, "MODEL", m3_checkpoint_config_path(files));
    for (int64_t i = 0; files && i < m3_checkpoint_files(files); i++)
        m3_cli_reads(paths, "MODEL", m3_checkpoint_path(files, i));
    m3_cli_reads(paths, "MODEL", folder);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) reads_folder(paths, "MODEL", folder, beside[i]);
}

void m3_cli_reads_input(struct m3_cli_paths *paths, const struct m3_cli_input *in)
{
    m3_cli_reads(paths, "--case", in->case_path);
    m3_cli_reads(paths, "--ops", in->ops.path);
    for (int64_t i = 0; i < in->image_count; i++) m3_cli_reads(paths, "--image", in->images[i]);
    for (int64_t i = 0; i < in->video_count; i++) reads_folder(paths, "--video", in->videos[i], "*.png");
}
