#include "oracle/error/profiles/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/graph/graph.h"

/* Words that only name another hypothesis, or that an emulation proves, come before words that allow more. */
static const char *const words[] = {
    "fused_norm",
    "norm_weight_bf16",
    "norm_unit_bf16",
    "rope_exp2",
    "rope_ratio",
    "expert_weight_first",
    "router_bf16",
    "index_bf16",
    "kv_f16",
    "kv_bf16",
    "kv_e4m3",
    "kv_e5m2",
    "partials_bf16",
    "split_kv",
    "tp2",
    "tp4",
    "tp8",
    "tp16",
    "tp32",
    "tp64",
    "act_block",
    "act_token",
    "act_tensor",
    "act_mx",
    "act_f16",
    "act_bf16",
    "act_q8_0",
    "act_q8_k",
    "act_nvfp4",
    "act_mxfp4",
};

static int is_word_of(const char *text, const char *word)
{
    const char *at = text + m3_profile_base_length(text);
    const size_t length = strlen(word);
    for (; *at == '+'; at += strcspn(at, "+"))
        if (strcspn(++at, "+") == length && memcmp(at, word, length) == 0) return 1;
    return 0;
}

/* Is it worth a try? */
static int may_explain(const struct m3_profile *profile, const struct m3_profile *other, const char *word,
                       const struct m3_graph *every_tap, int tap, int64_t layer)
{
    char name[96] = "";
    static const char *const scales[] = { "act_block", "act_token", "act_tensor", "act_mx" };
    int is_scale = 0;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) is_scale |= strcmp(word, scales[i]) == 0;
    if (is_scale) {
        m3_tap_name(name, sizeof name, M3_TAP_Q_PROJ, 0);
        if (m3_profile_input(profile, name).dtype != M3_F8_E4M3) return 0;
    }
    return tap < 0 || m3_profiles_differ(profile, other, every_tap, (enum m3_tap)tap, layer);
}

int m3_explain(char *explained, const char *text, const struct m3_profile *profile, int tap, int64_t layer,
               m3_explain_try try, void *self, struct m3_error *error)
{
    explained[0] = '\0';
    if (!text || !profile) return M3_OK;
    const size_t room = strlen(text) + M3_EXPLAINED + 1;
    struct m3_graph every_tap;
    char *name = malloc(room);
    if (!name) return m3_fail_memory(error, "the name of a profile", room);
    int status = m3_graph_record_every_tap(&every_tap, error), passes = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words && !status && !passes; i++) {
        struct m3_profile *other = NULL;
        struct m3_error ignored = { 0 };
        if (is_word_of(text, words[i])) continue;
        snprintf(name, room, "%s+%s", text, words[i]);
        const int is_open = m3_profile_open(&other, name, &ignored) == M3_OK;   /* a base without such fields: not */
        if (is_open && may_explain(profile, other, words[i], &every_tap, tap, layer))
            status = try(self, other, &passes);
        if (passes) snprintf(explained, M3_EXPLAINED, "%s", words[i]);
        m3_profile_close(other);
        m3_error_free(&ignored);
    }
    m3_graph_free(&every_tap);
    free(name);
    return status;
}
