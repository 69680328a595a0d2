/* What the letters and fields of a map stand for: by the config, or by a dump. */
#include <ctype.h>
#include <string.h>

#include "oracle/map/map.h"
#include "oracle/map/private/map.h"

static void learn(struct m3_map_sizes *sizes, char letter, int64_t size)
{
    if (sizes->of[(int)letter] == 0) sizes->of[(int)letter] = size;
}

/* Sizes are read from dumps too, so that letters stand for them; these are of the config alone. */
const struct m3_map_field m3_map_fields[M3_MAP_FIELDS] = {
    { "routed_scaling_factor", 0 },
    { "swiglu_alpha", 0 },
    { "swiglu_limit", 0 },
    { "rms_norm_eps", 0 },
    { "rope_theta", 0 },
    { "hidden_size", 'H' },
    { "num_attention_heads", 'Q' },
    { "num_key_value_heads", 'G' },
    { "head_dim", 'D' },
    { "rotary_dim", 'R' },
    { "sparse_index_dim", 'X' },
    { "sparse_topk_blocks", 'N' },
    { "intermediate_size", 'F' },
    { "dense_intermediate_size", 'I' },
    { "num_local_experts", 'E' },
    { "num_experts_per_tok", 'K' },
    { "vocab_size", 'V' },
};

int m3_map_field(const char *name)
{
    for (int i = 0; i < M3_MAP_FIELDS; i++)
        if (strcmp(name, m3_map_fields[i].name) == 0) return i;
    return -1;
}

static void set_fields(struct m3_map_sizes *sizes, const struct m3_config *config)
{
    const double numbers[] = { config->routed_scaling, config->swiglu_alpha, config->swiglu_limit, config->eps,
                               config->rope_theta };
    memcpy(sizes->fields, numbers, sizeof numbers);
}

struct m3_map_sizes m3_map_sizes_of_dump(const struct m3_safetensors *dump)
{
    struct m3_map_sizes sizes = { .tokens = 0 };
    const int has_some_rows = m3_safetensors_find(dump, "rows") != NULL;
    for (int64_t i = 0; i < m3_safetensors_count(dump); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(dump, i);
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(tensor->name, &tap, &layer) != 0) continue;
        const char *shape = m3_tap_table[tap].shape;
        if (shape[0] == 'T' && tensor->rank > 0 && !has_some_rows) learn(&sizes, 'T', tensor->shape[0]);
        for (int d = 1; d < tensor->rank && (size_t)d < strlen(shape); d++)
            if (isupper((unsigned char)shape[d]) && shape[d] != 'B') learn(&sizes, shape[d], tensor->shape[d]);
    }
    const char *text = m3_safetensors_metadata(dump, "config");
    struct m3_config config;
    if (text && m3_config_parse(&config, text, "config", NULL, NULL) == M3_OK) {
        set_fields(&sizes, &config);
        m3_config_free(&config);
    }
    return sizes;
}

struct m3_map_sizes m3_map_sizes_of_config(const struct m3_config *config)
{
    struct m3_map_sizes sizes = { .tokens = 0 };
    for (int letter = 'A'; letter <= 'Z'; letter++) sizes.of[letter] = m3_config_size(config, (char)letter);
    set_fields(&sizes, config);
    return sizes;
}
