#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/documents/documents.h"
#include "estimate/documents/private/models.h"

/* A whole number >= 0, K and M allowed; -1 if it is none. */
static int64_t whole(const char *text)
{
    char *end;
    errno = 0;
    long long value = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : -1;
    if (value < 0 || errno) return -1;
    int64_t unit = *end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : 1;
    if (unit > 1) end++;
    return *end || value > INT64_MAX / unit ? -1 : value * unit;
}

static int set_number(int64_t *to, const char *text, int64_t low, int64_t high)
{
    *to = whole(text);
    return *to >= low && *to <= high;
}

/* One "name=value"; the card is looked up when the GPU is known. 0 if it is not understood. */
static int set_word(struct m3_document_setting *s, const char *name, const char *value, const char **card)
{
    static const char *const names[] = { "T", "B", "w", "kv", "ikv", "gpu", "gpus", "card", "act", "mtp" };
    struct m3_estimate_request *r = &s->request;
    int i = 0, count = sizeof names / sizeof names[0];
    while (i < count && strcmp(name, names[i]) != 0) i++;
    if (i == count || s->named & 1u << i) return 0;
    s->named |= 1u << i;
    switch (1 << i) {
    case M3_NAMES_CONTEXT: return set_number(&r->context, value, 1, M3_MOST_CONTEXT);
    case M3_NAMES_BATCH: return set_number(&r->batch, value, 1, M3_MOST_BATCH);
    case M3_NAMES_WEIGHTS: r->weights_asked = 1; return (r->weights = m3_format_named(value)) != NULL;
    case M3_NAMES_KV: return (r->kv = m3_format_named(value)) != NULL;
    case M3_NAMES_INDEX_KV: return (r->index_kv = m3_format_named(value)) != NULL;
    case M3_NAMES_GPU: return (r->gpu = m3_gpu_named(value)) != NULL;
    case M3_NAMES_GPUS: return set_number(&r->gpus, value, 1, 65536);
    case M3_NAMES_CARD: *card = value; return 1;
    case M3_NAMES_ACTIVATIONS: return set_number(&r->activation_bytes, value, 0, INT64_C(1) << 50);
    default: return set_number(&r->mtp_modules, value, 0, 16);
    }
}

static int set_card(struct m3_document_setting *s, const char *card)
{
    struct m3_estimate_request *r = &s->request;
    if (!r->gpu) return !card && !(s->named & M3_NAMES_GPUS);
    r->card_bytes = r->gpu->vendor_bytes;
    if (!card || strcmp(card, "vendor") == 0) return 1;
    if (strcmp(card, "reported") != 0) return set_number(&r->card_bytes, card, 1, INT64_C(1) << 50);
    r->card_bytes = r->gpu->reported_bytes;
    return r->card_bytes > 0;
}

static int known_model(const char *name)
{
    for (int i = 0; i < m3_documented_model_count; i++)
        if (strcmp(m3_documented_models[i].name, name) == 0) return 1;
    return 0;
}

int m3_document_setting_parse(struct m3_document_setting *setting, const char *text, struct m3_error *error)
{
    char copy[256], *rest = copy;
    const char *card = NULL;
    int good = strlen(text) < sizeof copy;
    *setting = (struct m3_document_setting){ .request = { .batch = 1,
                                                          .weights = m3_format_named("bf16"),
                                                          .kv = m3_format_named("bf16"),
                                                          .gpus = 1,
                                                          .activation_bytes = M3_ACTIVATION_BYTES } };
    strcpy(copy, good ? text : "");
    char *word = strsep(&rest, " ");
    good = good && known_model(word);
    snprintf(setting->model, sizeof setting->model, "%s", word);
    while (good && (word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');
        if (value) *value++ = '\0';
        good = value && set_word(setting, word, value, &card);
    }
    if (!setting->request.index_kv) setting->request.index_kv = setting->request.kv;
    if (good && set_card(setting, card)) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT,
                   "setting: got %s, expected a model and T= B= w= kv= ikv= gpu= gpus= card= act= "
                   "mtp=, each at most once, cards with a GPU",
                   text);
}
