/* mistaken_dumps MODEL CASE PROFILE FOLDER [HONEST [IDS [READING]]]: a dump for every known mistake
 * (ref/oracle/variants/mistakes.h) that can show in this model and case and matches the patterns IDS,
 * FOLDER/ID.safetensors, and one without a mistake, FOLDER/right.safetensors. FOLDER/first.tsv has the id of each
 * mistake and the patterns of the tap where it is put. READING: "local_blocks=2".
 * Each tap is stored as the profile says. And of implementations drawn with a seed that no envelope uses:
 * FOLDER/honest.N.safetensors, N < HONEST, and FOLDER/whole.N.safetensors of those that skip no rounding, so that a
 * full dump can be judged; IDS "alone": only those. For scripts/judging_from_little.py, scripts/power.py and
 * scripts/parameters.py. */
#include <string.h>

#include "mistaken.h"
#include "model/semantics.h"

static int list_first(const char *folder, struct m3_error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/first.tsv", folder);
    FILE *file = fopen(path, "w");
    if (!file) return m3_fail(error, M3_IO, "%s: cannot be written", path);
    for (int i = 0; i < m3_mistake_count(); i++)
        fprintf(file, "%s\t%s\n", m3_mistake_at(i)->id, m3_mistake_at(i)->first);
    return fclose(file) ? m3_fail(error, M3_IO, "%s: cannot be written", path) : M3_OK;
}

static int dump(const struct m3_mistake *mistake, const struct m3_model *model, const struct m3_case *c,
                const struct m3_profile *profile, const char *folder, struct m3_error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, mistake ? mistake->id : "right");
    return mistaken_dump(path, NULL, mistake, model, c, profile, error);
}

static int honest_dumps(int count, const struct m3_model *model, const struct m3_case *c,
                        const struct m3_profile *profile, const char *folder, struct m3_error *error)
{
    struct m3_honest *honest = NULL;
    char path[4096];
    if (count == 0) return M3_OK;
    int status = m3_honest_new(&honest, model, &model->config.semantics, profile, NULL, c->T, error);
    for (int i = 0; i < 2 * count && !status; i++) {
        const char *kind = i < count ? "honest" : "whole";
        if (i == count) m3_honest_skip_nothing(honest);
        snprintf(path, sizeof path, "%s/%s.%d.safetensors", folder, kind, i % count);
        status = honest_dump(path, NULL, honest, i % count, model, c, error);
        printf("%s.%d\n", kind, i % count);
    }
    m3_honest_free(honest);
    return status;
}

int main(int argc, char **argv)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_model *model = NULL;
    struct m3_profile *profile = NULL;
    struct m3_case c = { 0 };
    if (argc < 5 || argc > 8) return M3_USAGE;
    int status = m3_model_open(&model, argv[1], &notes, &error);
    if (!status) status = m3_case_read(&c, argv[2], &model->config, &error);
    if (!status && argc > 7) status = m3_semantics_set(&model->config.semantics, argv[7], &error);
    if (!status) status = m3_profile_open(&profile, argv[3], &error);
    const int alone = argc > 6 && strcmp(argv[6], "alone") == 0;
    if (!status && !alone) status = list_first(argv[4], &error);
    for (int i = -1; !status && !alone && i < m3_mistake_count(); i++) {
        const struct m3_mistake *mistake = i < 0 ? NULL : m3_mistake_at(i);
        struct m3_error why = { 0 };
        if (mistake && argc > 6 && !m3_tap_matches(argv[6], mistake->id)) continue;
        if (mistake && m3_mistake_missing(mistake, model, &model->config.semantics, &c)) continue;
        const int failed = dump(mistake, model, &c, profile, argv[4], &why);
        if (!mistake) status = failed;
        if (!failed) printf("%s\n", mistake ? mistake->id : "right");
        else fprintf(stderr, "%s: %s\n", mistake ? mistake->id : "right", why.text ? why.text : "");
        m3_error_free(&why);
    }
    if (!status) status = honest_dumps(argc > 5 ? atoi(argv[5]) : 0, model, &c, profile, argv[4], &error);
    if (status) fprintf(stderr, "%s\n", error.text ? error.text : "");
    m3_case_free(&c);
    m3_model_close(model);
    m3_profile_close(profile);
    m3_error_free(&error);
    m3_error_free(&notes);
    return status;
}
