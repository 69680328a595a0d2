/* The models that documents print figures of, read from golden/documents/models.tsv. Include in one test file. */
#ifndef M3_TESTS_DOCUMENTED_H
#define M3_TESTS_DOCUMENTED_H

#include "estimates.h"

#include "estimate/documents/documents.h"
#include "estimate/foreign.h"

enum { MOST_MODELS = 32 };

static struct {
    char name[32], path[96];
    struct m3_config own;
    struct m3_census census;
    struct m3_foreign foreign;
    struct m3_subject subject;
} loaded[MOST_MODELS];

static int model_count;

static void load_model(int i)
{
    struct m3_error notes = { 0 }, error = { 0 };
    int is_foreign, status = m3_foreign_read(&loaded[i].foreign, &is_foreign, loaded[i].path, &notes, &error);
    if (is_foreign) {
        loaded[i].subject =
            (struct m3_subject){ &loaded[i].foreign.config, &loaded[i].foreign.census, &loaded[i].foreign };
    } else {
        status = m3_config_read(&loaded[i].own, loaded[i].path, &notes, &error);
        m3_census_of_config(&loaded[i].census, &loaded[i].own, 0, M3_MTP_CONCAT);
        loaded[i].subject = (struct m3_subject){ &loaded[i].own, &loaded[i].census, NULL };
    }
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
    m3_error_free(&notes);
}

/* M3 is the first model of the file. */
static inline void load(void)
{
    FILE *file = fopen("golden/documents/models.tsv", "r");
    char line[1024];
    ck_assert(file && fgets(line, sizeof line, file));
    for (model_count = 0; model_count < MOST_MODELS && fgets(line, sizeof line, file); model_count++) {
        ck_assert_int_eq(sscanf(line, "%31s\t%95s", loaded[model_count].name, loaded[model_count].path), 2);
        load_model(model_count);
    }
    fclose(file);
    ck_assert(model_count > 0 && model_count < MOST_MODELS && strcmp(loaded[0].name, "m3") == 0);
}

static inline void unload(void)
{
    for (int i = 0; i < model_count; i++) {
        m3_config_free(&loaded[i].own);
        m3_foreign_free(&loaded[i].foreign);
    }
}

#endif
