#include <ctype.h>
#include <math.h>
#include <string.h>

#include "estimate/documents/documents.h"
#include "estimate/private/parts.h"

static int is_layers(const char *name, size_t length)
{
    static const char *const names[] = { "layers", "full", "sparse", "dense", "moe", "cached", "indexed" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) return 1;
    return 0;
}

/* "kv_bytes.index", "flops_decode.moe / moe": the key, if `summary` has a number there. */
static int sole_key(char key[64], const char *formula, const json_t *summary)
{
    size_t length = m3_name_length(formula);
    if (length == 0 || length >= 64 || is_layers(formula, length)) return 0;
    memcpy(key, formula, length);
    key[length] = '\0';
    const json_t *value = m3_estimate_value(summary, key), *quotient = json_object_get(value, "value");
    if (!json_is_number(quotient ? quotient : value)) return 0;
    for (const char *at = formula + length; *at;) {
        at += strspn(at, " ");
        if (*at++ != '/') return 0;
        at += strspn(at, " ");
        length = m3_name_length(at);
        if (length == 0 || !(isdigit((unsigned char)*at) || is_layers(at, length))) return 0;
        at += length;
    }
    return 1;
}

/* All that the setting names was asked. */
static int agrees(const struct m3_document_setting *s, const struct m3_estimate_request *asked)
{
    const struct m3_estimate_request *r = &s->request;
    const struct {
        unsigned bit;
        int same;
    } parts[] = {
        { M3_NAMES_CONTEXT, r->context == asked->context },
        { M3_NAMES_BATCH, r->batch == asked->batch },
        { M3_NAMES_WEIGHTS, r->weights == asked->weights },
        { M3_NAMES_KV, r->kv == asked->kv },
        { M3_NAMES_INDEX_KV, r->index_kv == asked->index_kv },
        { M3_NAMES_GPU, r->gpu == asked->gpu },
        { M3_NAMES_GPUS, r->gpus == asked->gpus },
        { M3_NAMES_CARD, r->card_bytes == asked->card_bytes },
        { M3_NAMES_ACTIVATIONS, r->activation_bytes == asked->activation_bytes },
        { M3_NAMES_MTP, r->mtp_modules == asked->mtp_modules },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (s->named & parts[i].bit && !parts[i].same) return 0;
    return 1;
}

/* The caches of one sequence are those of a batch of one. */
static void name_batch(char key[64], int64_t batch)
{
    static const char one[] = "kv_bytes_per_sequence.", all[] = "kv_bytes.";
    size_t length = strlen(one);
    if (batch > 1 || strncmp(key, one, length) != 0) return;
    memmove(key + strlen(all), key + length, strlen(key + length) + 1);
    memcpy(key, all, strlen(all));
}

/* *fits: the row is about a figure of this estimate. What its setting does not name may still matter, so the figure is
 * compared too. */
static int fit(struct m3_mark *mark, int *fits, const struct m3_printed *row, const struct m3_subject *subject,
               const struct m3_estimate *e, const json_t *summary, struct m3_error *error)
{
    struct m3_document_setting setting;
    double here;

    mark->row = row;
    *fits = row->erratum && row->formula && sole_key(mark->key, row->formula, summary);
    if (!*fits) return M3_OK;
    int status = m3_document_setting_parse(&setting, row->setting, error);
    *fits = !status && strcmp(setting.model, m3_document_model(e)) == 0 && agrees(&setting, &e->request);
    if (!*fits) return status;
    status = m3_figure_value(&here, row->formula, e, error);
    if (!status) status = m3_printed_judge(&mark->judgement, row, subject, error);
    name_batch(mark->key, e->request.batch);
    *fits = !status && fabs(here - mark->judgement.ours) <= 1e-12 * fabs(here);
    return status;
}

/* The same figure, printed the same, by the same document. */
static int repeats(const struct m3_mark *a, const struct m3_mark *b)
{
    return strcmp(a->row->erratum, b->row->erratum) == 0 && strcmp(a->key, b->key) == 0 &&
           a->judgement.printed.value == b->judgement.printed.value;
}

int m3_estimate_marks(struct m3_mark marks[M3_MOST_MARKS], int *count, const struct m3_estimate *e,
                      const json_t *summary, struct m3_error *error)
{
    struct m3_census room;
    const struct m3_subject subject = m3_subject_of(e, &room);
    const int documents = m3_document_model(e) ? M3_DOCUMENTS : 0;
    int status = M3_OK;
    *count = 0;
    for (int d = 0; d < documents; d++)
        for (int i = 0; !status && *count < M3_MOST_MARKS && i < m3_documents[d].count; i++) {
            int fits;
            marks[*count].document = m3_documents[d].name;
            status = fit(&marks[*count], &fits, &m3_documents[d].rows[i], &subject, e, summary, error);
            for (int j = 0; fits && j < *count; j++) fits = !repeats(&marks[j], &marks[*count]);
            *count += fits;
        }
    return status;
}
