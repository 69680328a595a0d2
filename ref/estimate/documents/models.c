#include <string.h>

#include "estimate/documents/documents.h"
#include "estimate/documents/private/models.h"
#include "estimate/foreign.h"

static const char letters[] = M3_DOCUMENT_LETTERS;

/* The size of a row that has this letter. */
static int64_t size_of(const struct m3_documented_model *row, char letter)
{
    return row->sizes[strchr(letters, letter) - letters];
}

/* With another size a model would have figures of its own. */
static int is_config(const struct m3_config *c, int64_t parameters, const struct m3_documented_model *row)
{
    int same = !row->published && parameters == row->parameters && c->max_positions == row->positions &&
               c->layers == row->layers && c->block == row->block && c->R == row->R && c->rope_theta == row->theta &&
               row->mxfp8 == (c->matrix_scaling == M3_SCALE_MX32);
    for (int j = 0; letters[j]; j++) same = same && m3_config_size(c, letters[j]) == row->sizes[j];
    for (int64_t l = 0; same && l < c->layers; l++)
        same = m3_config_sparse(c, l) == (l >= row->full) && m3_config_moe(c, l) == (l >= row->dense);
    return same;
}

static int is_few(const struct m3_foreign *m, const struct m3_documented_model *row)
{
    const struct m3_config *c = &m->config;
    return row->published && strcmp(m->name, row->published) == 0 && m->parameters == row->parameters &&
           m->active == row->active && c->max_positions == row->positions && c->layers == row->layers &&
           c->Q == size_of(row, 'Q') && c->G == size_of(row, 'G') && c->D == size_of(row, 'D') &&
           m->cached_numbers == row->cached;
}

const char *m3_document_model(const struct m3_estimate *e)
{
    const struct m3_foreign *foreign = e->request.foreign;
    const int64_t modules = e->census.of[M3_COMPONENT_MTP_MODULES].parameters;
    const int64_t parameters = m3_whole(e, "params_total") - modules;
    for (int i = 0; i < m3_documented_model_count; i++) {
        const struct m3_documented_model *row = &m3_documented_models[i];
        if (foreign && foreign->few ? is_few(foreign, row) : is_config(e->config, parameters, row)) return row->name;
    }
    return NULL;
}
