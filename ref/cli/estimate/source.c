#include "cli/estimate/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/open.h"

/* Opens the weight files of a folder, if present; with --from-tensors they must be. */
static int open_files(struct m3_cli_source *s, const struct m3_cli_source_request *a, struct m3_error *notes,
                      struct m3_error *error)
{
    struct m3_error opening = { 0 };
    int status = m3_checkpoint_open(&s->files, a->path, a->from_tensors ? error : &opening);
    if (status == M3_ABSENT && !a->from_tensors) {
        m3_fail(notes, M3_OK, "%s: weight files are missing: the stored size is not known", a->path);
        status = M3_OK;
    } else if (status && !a->from_tensors) {
        m3_error_free(error);
        *error = opening;
        return status;
    }
    m3_error_free(&opening);
    return status;
}

static int read_config(struct m3_cli_source *s, const char *path, int is_folder, struct m3_error *notes,
                       struct m3_error *error)
{
    size_t size = strlen(path) + sizeof "/config.json";
    char *name = malloc(size);
    if (!name) return m3_fail_memory(error, path, size);
    snprintf(name, size, "%s%s", path, is_folder ? "/config.json" : "");
    int status = m3_foreign_read(&s->foreign, &s->is_foreign, name, notes, error);
    if (!status && !s->is_foreign) status = m3_config_read(&s->own, name, notes, error);
    s->config = s->is_foreign ? &s->foreign.config : &s->own;
    free(name);
    return status;
}

/* Takes a model of another family; its weight files, if any, are not read. */
static int take_foreign(struct m3_cli_source *s, const struct m3_cli_source_request *a, struct m3_error *error)
{
    a->request->foreign = &s->foreign;
    a->request->config = &s->foreign.census;
    const char *option = a->from_tensors           ? "--from-tensors"
                         : a->request->mtp_modules ? "--mtp"
                         : a->request->layout.tp   ? "a layout"
                                                   : NULL;
    if (!option) return M3_OK;
    return m3_fail(error, M3_USAGE, "estimate: %s: got %s of another family, for which %s is not known", a->path,
                   s->foreign.few ? "a few numbers of a model" : "a model", option);
}

/* Files hold a module in the form for concat, [H,2H] and three norms; additive uses half of that matrix, and one
 * norm. */
static int compare_files(struct m3_cli_source *s, const struct m3_cli_source_request *a, struct m3_error *notes,
                         struct m3_error *error)
{
    const struct m3_census_row *read = &s->of_config.of[M3_COMPONENT_MTP_MODULES];
    struct m3_census_row *held = &s->of_files.of[M3_COMPONENT_MTP_MODULES];
    struct m3_census stored = s->of_config;
    const int less = a->request->mtp_join == M3_MTP_ADDITIVE && a->request->mtp_modules > 0;
    if (less) m3_census_of_config(&stored, s->config, a->request->mtp_modules, M3_MTP_CONCAT);
    int status = m3_census_agree(&s->of_files, &stored, a->path, error);
    if (status || !less) return status;
    m3_fail(notes, M3_OK,
            "%s: mtp_join=additive: %" PRId64 " of %" PRId64 " parameters of MTP modules are counted: "
            "half of eh_proj and two norms are not read; the stored size is that of the files",
            a->path, read->parameters, held->parameters);
    held->parameters = read->parameters;
    held->tensors = read->tensors;
    return M3_OK;
}

/* The files are counted and compared with the config; the counts go into `request`. */
static int count_files(struct m3_cli_source *s, const struct m3_cli_source_request *a, struct m3_error *notes,
                       struct m3_error *error)
{
    const int64_t modules = a->request->mtp_modules;
    int status = m3_census_of_files(&s->of_files, s->files, s->config, modules, error);
    if (status) return status;
    if (modules && s->of_files.of[M3_COMPONENT_MTP_MODULES].tensors == 0 && !a->from_tensors) {
        m3_fail(notes, M3_OK, "%s: the files hold no MTP modules: the stored size is not known", a->path);
        return M3_OK;
    }
    if (s->of_files.other_modules)
        m3_fail(notes, M3_OK, "%s: %" PRId64 " tensors of MTP modules are not counted: --mtp counts them", a->path,
                s->of_files.other_modules);
    a->request->files = &s->of_files;
    return compare_files(s, a, notes, error);
}

int m3_cli_source_open(struct m3_cli_source *s, const struct m3_cli_source_request *a, struct m3_error *notes,
                       struct m3_error *error)
{
    int is_folder, status = m3_look_for_folder(&is_folder, a->path, error);
    if (status) return status;
    if (a->from_tensors && !is_folder)
        return m3_fail(error, M3_USAGE, "--from-tensors: got %s, expected a model directory", a->path);
    status = read_config(s, a->path, is_folder, notes, error);
    if (!status && s->is_foreign) return take_foreign(s, a, error);
    if (!status && is_folder) status = open_files(s, a, notes, error);
    if (status) return status;
    m3_census_of_config(&s->of_config, s->config, a->request->mtp_modules, a->request->mtp_join);
    a->request->config = &s->of_config;
    if (s->files) status = count_files(s, a, notes, error);
    if (!status && a->request->layout.tp) status = m3_layout_check(&a->request->layout, s->config, error);
    return status;
}

void m3_cli_source_close(struct m3_cli_source *s)
{
    m3_checkpoint_close(s->files);
    m3_config_free(&s->own);
    m3_foreign_free(&s->foreign);
}
