/* m3ref estimate as its users run it: keys, lists, formats, explanations, files against config, every kind of error.
 *
 * Seen to fail with: K and M decimal; the limit looked at before the suffix; contexts and batches in another order;
 * files never compared with the config; tensors compared, not parameters; a tensor of no component let through; scales
 * counted as parameters; a module too many; index keys in another dtype by default; no note of absent files; commas of
 * CSV; a key missing; GiB that is GB; a legend that repeats itself; files of MTP modules compared with what the
 * additive reading takes of them. */
#include "program.h"

#include <jansson.h>

FIXTURE(make_folder, remove_folder);

#define M3 "golden/configs/minimax-m3.json"

/* The JSON objects that the last run printed, one a line. */
static int lines_of_json(json_t **objects, int most)
{
    FILE *out = fopen(in_folder("out"), "r");
    ck_assert_ptr_nonnull(out);
    int count = 0;
    for (; count < most; count++) {
        json_error_t bad;
        objects[count] = json_loadf(out, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &bad);
        if (!objects[count]) break;
    }
    fclose(out);
    return count;
}

/* "kv_bytes.main" of an object. */
static const json_t *value(const json_t *object, const char *key)
{
    char step[64];
    for (const char *dot; (dot = strchr(key, '.')); key = dot + 1) {
        snprintf(step, sizeof step, "%.*s", (int)(dot - key), key);
        object = json_object_get(object, step);
    }
    return json_object_get(object, key);
}

static void check_integer(const json_t *object, const char *key, long long expected)
{
    const json_t *got = value(object, key);
    ck_assert_msg(json_is_integer(got) && json_integer_value(got) == expected, "%s: got %lld, expected %lld", key,
                  (long long)json_integer_value(got), expected);
}

/* All keys that SPEC 14.8 promises, and no value of another kind. */
TEST(keys)
{
    /* clang-format off */
    static const char *const whole[] = {
        "context", "batch", "tensors", "tensors_unquantised", "params_total", "params_by_component.embedding",
        "params_by_component.lm_head", "params_by_component.attention", "params_by_component.indexer",
        "params_by_component.dense_mlp", "params_by_component.moe_routed", "params_by_component.moe_shared",
        "params_by_component.moe_router", "params_by_component.moe_router_bias", "params_by_component.norms",
        "params_by_component.vision_tower", "params_by_component.projector", "params_active_text",
        "params_active_by_convention.layers", "params_active_by_convention.layers_head",
        "params_active_by_convention.layers_head_embedding", "params_active_by_convention.layers_head_embedding_vision",
        "flops_decode.full_attention", "flops_decode.msa_index", "flops_decode.msa_main", "flops_decode.projections",
        "flops_decode.index_projections", "flops_decode.dense_mlp", "flops_decode.moe", "flops_decode.lm_head",
        "flops_decode.total", "flops_decode_moe.shared", "flops_decode_moe.routed", "flops_decode_moe.router",
        "flops_decode_step", "flops_decode_all_full_attention", "keys_main", "flops_prefill.full_attention",
        "flops_prefill.msa_index", "flops_prefill.msa_main", "flops_prefill.projections",
        "flops_prefill.index_projections", "flops_prefill.dense_mlp", "flops_prefill.moe", "flops_prefill.lm_head",
        "flops_prefill.total", "kv_bytes.main", "kv_bytes.index", "kv_bytes.total", "kv_bytes_per_sequence.main",
        "kv_bytes_per_sequence.index", "kv_bytes_per_sequence.total", "weight_bytes", "activation_bytes_per_sequence",
        "memory_bytes_without_activations", "memory_bytes", "decode_read_bytes.kv_full",
        "decode_read_bytes.kv_selected", "decode_read_bytes.index_keys", "gpus", "card_bytes", "peak_flops",
        "bandwidth", "min_cards_weights", "min_cards", "max_batch", "flops_decode_linear",
        "other_work.block_max_comparisons", "other_work.block_max_comparisons_per_layer",
        "other_work.selection_candidates", "other_work.selection_candidates_per_layer", "flops_vision.patch_embed",
        "flops_vision.linears", "flops_vision.attention", "flops_vision.projector", "flops_vision.total",
        "flops_vision.patches", "flops_vision.tokens", "decode_read_bytes_stored.weights",
        "expert_parallel.weight_bytes_per_card", "expert_parallel.weight_bytes_per_card_stored",
        "expert_parallel.free_bytes_per_card",
    };
    static const char *const numbers[] = {
        "decode_read_bytes.weights", "decode_read_bytes.total", "experts_read_per_layer", "arithmetic_intensity",
        "bandwidth_bound_seconds", "compute_bound_seconds", "expert_spread.expected_fullest",
        "expert_spread.expected_cards_hit", "ratios.main_branch.value", "ratios.layer_qk_with_index.value",
        "ratios.layer_attention.value", "ratios.model_attention.value", "ratios.model_without_lm_head.value",
        "ratios.model_with_lm_head.value", "ratios.layer_attention_prefill_causal.value",
        "decode_read_bytes_stored.total", "critical_path.expert_bytes", "critical_path.other_bytes",
        "critical_path.replicated_seconds", "critical_path.sharded_seconds", "critical_path.cache_seconds",
        "critical_path.replicated_seconds_with_caches", "critical_path.sharded_seconds_with_caches",
    };
    static const char *const words[][2] = {
        { "type", "summary" }, { "model_type", "minimax_m3_vl" }, { "weights", "fp8" }, { "kv", "bf16" },
        { "index_kv", "bf16" }, { "mtp_join", "concat" }, { "vision_boundary", "segment" }, { "gpu", "h200" },
        { "bound", "memory" }, { "ratios.layer_attention.fraction", "512/17" },
    };
    /* clang-format on */
    json_t *o[2];
    ck_assert_int_eq(m3ref("estimate " M3 " --weights fp8 --gpu h200 --gpus 8 --image 4x4 --json"), 0);
    ck_assert_int_eq(lines_of_json(o, 2), 1);
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        ck_assert_msg(json_is_integer(value(o[0], whole[i])), "%s", whole[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        ck_assert_msg(json_is_number(value(o[0], numbers[i])), "%s", numbers[i]);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        ck_assert_str_eq(json_string_value(value(o[0], words[i][0])), words[i][1]);
    ck_assert(json_is_null(json_object_get(o[0], "weight_bytes_stored")));
    ck_assert_uint_eq(json_array_size(value(o[0], "expert_spread.p_fullest")), 4);
    check_integer(o[0], "context", 1048576);        /* the model's limit is the default */
    check_integer(o[0], "batch", 1);
    check_integer(o[0], "peak_flops", 1979000000000000);
    json_decref(o[0]);

    ck_assert_int_eq(m3ref("estimate " M3 " --weights fp8 --gpu a100 --json"), 0);      /* has no FP8 */
    ck_assert_int_eq(lines_of_json(o, 2), 1);
    check_integer(o[0], "peak_flops", 312000000000000);
    check_integer(o[0], "gpus", 1);
    json_decref(o[0]);
    ck_assert_int_eq(m3ref("estimate " M3 " --json"), 0);
    ck_assert_int_eq(lines_of_json(o, 2), 1);
    ck_assert(json_is_null(json_object_get(o[0], "gpu")));
    ck_assert(json_is_null(json_object_get(o[0], "max_batch")));
    json_decref(o[0]);
}

/* Every context with every batch, in that order; K and M are powers of two; CSV says the same as JSON. */
TEST(lists)
{
    static const long long expected[][3] = {
        { 4096, 1, 563085312 },     { 4096, 4, 2252341248 },      { 131072, 1, 18018729984 },
        { 131072, 4, 72074919936 }, { 1048576, 1, 144149839872 }, { 1048576, 4, 576599359488 },
    };
    json_t *o[8];
    ck_assert_int_eq(m3ref("estimate " M3 " --context 4096,128K,1M --batch 1,4 --json"), 0);
    ck_assert_int_eq(lines_of_json(o, 8), 6);
    for (int i = 0; i < 6; i++) {
        check_integer(o[i], "context", expected[i][0]);
        check_integer(o[i], "batch", expected[i][1]);
        check_integer(o[i], "kv_bytes.total", expected[i][2]);
    }

    ck_assert_int_eq(m3ref("estimate " M3 " --context 4096,128K,1M --batch 1,4 --format csv"), 0);
    FILE *out = fopen(in_folder("out"), "r");
    char head[8192], row[8192], *head_at, *row_at;
    ck_assert_ptr_nonnull(fgets(head, sizeof head, out));
    for (int i = 0; i < 6; i++) {
        char names[8192];
        strcpy(names, head);
        ck_assert_ptr_nonnull(fgets(row, sizeof row, out));
        names[strcspn(names, "\n")] = row[strcspn(row, "\n")] = '\0';
        head_at = names;
        row_at = row;
        int columns = 0;
        for (char *name; (name = strsep(&head_at, ",")); columns++) {
            char *cell = strsep(&row_at, ",");
            ck_assert_ptr_nonnull(cell);
            const json_t *want = value(o[i], name);
            if (json_is_integer(want)) ck_assert_int_eq(strtoll(cell, NULL, 10), json_integer_value(want));
            else if (json_is_real(want)) ck_assert(strtod(cell, NULL) == json_real_value(want));
            else if (json_is_boolean(want)) ck_assert_str_eq(cell, json_is_true(want) ? "true" : "false");
            else if (json_is_string(want)) ck_assert_str_eq(cell, json_string_value(want));
            else ck_assert(json_is_null(want) && cell[0] == '\0');
        }
        ck_assert_ptr_null(row_at);
        ck_assert_int_gt(columns, 80);
    }
    ck_assert_ptr_null(fgets(row, sizeof row, out));
    fclose(out);
    for (int i = 0; i < 6; i++) json_decref(o[i]);

    ck_assert_int_eq(m3ref("estimate " M3 " --context 4096,128K,1M --batch 1,4"), 0);
    ck_assert(has("out", "427,040,140,160"));
    ck_assert(has("out", "\n  131072      4        73.826       7989.225      72.075 "));
}

/* Every printed size has its unit. */
TEST(table)
{
    ck_assert_int_eq(m3ref("estimate " M3 " --gpu h200 --gpus 8"), 0);
    ck_assert(has("out", "context 1,048,576, batch 1\n"));
    ck_assert(has("out", "144,149,839,872 B        144.150 GB        134.250 GiB"));
    ck_assert(has("out", "512/17"));
    ck_assert(has("out", "217,572,704,256                               139,304,415,382,732,800"));
    ck_assert(has("out", "1.860649 ms"));
    ck_assert(has("out", "ridge 206.04 FLOP/B"));
    ck_assert(has("out", "  attention                                       6,417,285,120    1.5027 %"
                         "            106,954,752"));
    ck_assert(has("out", "  routed experts                                 25,820,135,424            452,984,832"));
    ck_assert(has("out", "  a step, those shared out                             2.794013 ms"));
    ck_assert(has("out", "  comparisons for block maxima                      239,075,328              4,194,304\n"));
    ck_assert_int_eq(error_lines(), 0);
    ck_assert_int_eq(m3ref("estimate " M3 " --gpu h200 --gpus 8 --card-memory reported"), 0);
    ck_assert(has("out", "150,754,820,096 B (150.755 GB) each"));
    ck_assert_int_eq(m3ref("estimate " M3 " --activations 0 --context 1"), 0);
    ck_assert(has("out", "total                                         854,080,417,792 B"));
}

TEST(explain)
{
    ck_assert_int_eq(m3ref("estimate " M3 " --context 128K --explain flops_decode.full_attention"), 0);
    ck_assert(has("out", "flops_decode.full_attention\n  = full * 4 * Q * D * T\n  = 3 * 4 * 64 * 128 * 131072\n"
                         "  = 12884901888 FLOP\n    full: layers of full attention; Q: query heads;"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain flops_prefill.full_attention"), 0);
    ck_assert(has("out", "\n    full: layers of full attention; Q: query heads; D: channels of a head; T: context\n"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain kv_bytes_per_sequence"), 0);
    ck_assert(has("out", "  = 128849018880 + 15300820992\n  = 144149839872 bytes\n"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain ratios.layer_attention --context 4K,1M"), 0);
    ck_assert(has("out", "context 1048576, batch 1\nratios.layer_attention\n"));
    ck_assert(has("out", "  = 512/17 = 30.117647058823529\n"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain bound"), 64);
    ck_assert_int_eq(m3ref("estimate " M3 " --explain flops"), 64);
    ck_assert(has("err", "--explain: got flops, expected the key"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain ridge"), 64);
    ck_assert(has("err", "--gpu"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain ridge --gpu h200"), 0);
    ck_assert(has("out", "  = 989000000000000 / 4800000000000\n"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain ridge --gpu h200 --json"), 64);
    ck_assert_int_eq(m3ref("estimate " M3 " --explain kv.total"), 0);
    ck_assert(has("out", "kv_bytes.total\n  = batch * kv_bytes_per_sequence.total\n  = 1 * 144149839872\n"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain kv"), 64);
    ck_assert_int_eq(m3ref("estimate " M3 " --explain ratios.main_branch.value"), 0);
    ck_assert(has("out", "ratios.main_branch\n  = T / keys_main\n  = 1048576 / 2048\n  = 512/1 = 512\n"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain expert_spread.p_fullest.3 --gpu h200 --gpus 8"), 0);
    ck_assert(has("out", "  = (ways(8, 128 / 8, 4, 4) - ways(8, 128 / 8, 3, 4)) / choose(128, 4)\n  = 0.00136"));
    ck_assert(has("out", "    ways(n, m, j, K): choices of K experts on n cards of m, at most j on a card; gpus: "));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain expert_spread.expected_fullest --gpu h200 --gpus 8"), 0);
    ck_assert(has("out", "  = 1 * expert_spread.p_fullest.0 + 2 * expert_spread.p_fullest.1 + 3 * "));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain expert_spread.p_fullest.4 --gpu h200 --gpus 8"), 64);
    ck_assert(has("err", "has no value for this model"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain expert_spread.p_fullest.128 --gpu h200"), 64);
    ck_assert(has("err", "expected the key of a number"));
    ck_assert_int_eq(m3ref("estimate " M3 " --explain bandwidth --gpu h200"), 0);
    ck_assert(has("out", "  = 4800000000000 bytes/s\n"));
}

/* Parameters that the files hold, their bytes, and what the config makes of them. The bytes are those of the files'
 * data: size less header. */
LOOP_TEST(from_tensors, 5)
{
    static const struct {
        const char *model;
        int tensors, unquantised;
        long long parameters, bytes;
    } models[] = {
        { "tiny", 218, 218, 827497, 1760180 },  { "mtp", 73, 73, 33378, 81198 },
        { "mxfp8", 104, 73, 1876213, 2116236 }, { "f8block", 104, 73, 1548705, 1721928 },
        { "block128", 74, 74, 274569, 578676 },
    };
    json_t *files[2], *config[2], *member;
    const char *key;
    ck_assert_int_eq(m3ref("estimate golden/%s/model --from-tensors --json", models[_i].model), 0);
    ck_assert_int_eq(lines_of_json(files, 2), 1);
    check_integer(files[0], "tensors", models[_i].tensors);
    check_integer(files[0], "tensors_unquantised", models[_i].unquantised);
    check_integer(files[0], "params_total", models[_i].parameters);
    check_integer(files[0], "weight_bytes_stored", models[_i].bytes);
    check_integer(files[0], "weight_bytes_in_memory", models[_i].bytes);
    ck_assert_int_eq(m3ref("estimate golden/%s/model/config.json --json", models[_i].model), 0);
    ck_assert_int_eq(lines_of_json(config, 2), 1);
    json_object_foreach(files[0], key, member)
    {
        if (strncmp(key, "weight_bytes_", 13) == 0 || strncmp(key, "memory_bytes", 12) == 0) continue;
        ck_assert_msg(json_equal(member, json_object_get(config[0], key)), "%s", key);
    }
    json_decref(files[0]);
    json_decref(config[0]);
}

TEST(modules_of_the_files)
{
    json_t *o[2];
    ck_assert_int_eq(m3ref("estimate golden/mtp/model --from-tensors --json"), 0);
    ck_assert(has("err", "72 tensors of MTP modules are not counted"));
    ck_assert_int_eq(m3ref("estimate golden/mtp/model --from-tensors --mtp 1 --json"), 0);
    ck_assert(has("err", "36 tensors of MTP modules are not counted"));
    ck_assert_int_eq(m3ref("estimate golden/mtp/model --from-tensors --mtp 2 --json"), 0);
    ck_assert_int_eq(error_lines(), 0);
    ck_assert_int_eq(lines_of_json(o, 2), 1);
    check_integer(o[0], "tensors", 145);
    check_integer(o[0], "params_by_component.mtp", 27282);
    check_integer(o[0], "params_total", 60660);
    json_decref(o[0]);
    ck_assert_int_eq(m3ref("estimate golden/mtp/model/config.json --mtp 2 --set mtp_join=additive --json"), 0);
    ck_assert(has("out", "\"mtp_join\":\"additive\""));
    ck_assert_int_eq(m3ref("estimate golden/mtp/model --from-tensors --mtp 3"), 65);
    ck_assert(has("err", "mtp: got 27282 parameters in 72 tensors, expected 40923 in 108"));
    ck_assert_int_eq(m3ref("estimate golden/tiny/model --mtp 1 --json"), 0);
    ck_assert(has("err", "hold no MTP modules"));
    ck_assert_int_eq(m3ref("estimate golden/tiny/model --mtp 1 --from-tensors"), 65);
}

/* Files hold modules in the form of concat. The additive reading leaves out H^2 + 2 H numbers of each, H 32 and 20. */
TEST(additive_modules_of_the_files)
{
    static const struct {
        const char *model;
        long long mtp, total, tensors, bytes;
    } models[] = {
        { "golden/mtp/model", 27282 - 2 * (32 * 32 + 64), 60660 - 2 * (32 * 32 + 64), 145 - 4, 136422 },
        { "golden/m2/mtp_model", 11542 - 2 * (20 * 20 + 40), 17953 - 2 * (20 * 20 + 40), 104 - 4, 35906 },
    };
    static const char *const flags[] = { "", " --from-tensors" };
    json_t *o[2];
    for (int i = 0; i < 4; i++) {
        const char *model = models[i / 2].model;
        ck_assert_int_eq(m3ref("estimate %s --mtp 2 --set mtp_join=additive --json%s", model, flags[i % 2]), 0);
        ck_assert(has("err", "mtp_join=additive: "));
        ck_assert(has("err", "parameters of MTP modules are counted: half of eh_proj and two norms are not read"));
        ck_assert_int_eq(error_lines(), 1);
        ck_assert_int_eq(lines_of_json(o, 2), 1);
        check_integer(o[0], "params_by_component.mtp", models[i / 2].mtp);
        check_integer(o[0], "params_total", models[i / 2].total);
        check_integer(o[0], "tensors", models[i / 2].tensors);
        check_integer(o[0], "weight_bytes_stored", models[i / 2].bytes);
        json_decref(o[0]);
    }
    ck_assert_int_eq(m3ref("estimate golden/mtp/model --mtp 3 --set mtp_join=additive"), 65);
    ck_assert(has("err", "mtp: got 27282 parameters in 72 tensors, expected 40923 in 108"));
    ck_assert_int_eq(m3ref("estimate golden/mtp/model --set mtp_join=additive"), 0);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", "72 tensors of MTP modules are not counted"));
    ck_assert_int_eq(m3ref("estimate golden/mtp/model --set mtp_join=additive,pool=lse"), 64);
}

/* All of `from` in a file become `to`, of the same length. */
static void replace_all(const char *path, const char *from, const char *to)
{
    size_t count, length = strlen(from);
    int found = 0;
    unsigned char *bytes = read_bytes(path, &count);
    for (size_t i = 0; i + length <= count; i++)
        if (memcmp(bytes + i, from, length) == 0) {
            memcpy(bytes + i, to, length);
            found = 1;
        }
    ck_assert_msg(found, "%s lacks %s", path, from);
    write_bytes(path, bytes, count);
    free(bytes);
}

/* Files and config that differ: the line names the component, or the tensor. */
TEST(files_against_config)
{
    copy_tiny();
    replace_all(in_folder("model/config.json"), "\"shared_intermediate_size\": 56", "\"shared_intermediate_size\": 55");
    ck_assert_int_eq(m3ref("estimate %s --from-tensors", in_folder("model")), 65);
    ck_assert(has("err", "moe_shared: got 48384 parameters in 9 tensors, expected 47520 in 9 by config.json"));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert_int_eq(m3ref("estimate %s", in_folder("model")), 65);
    ck_assert_int_eq(m3ref("estimate %s", in_folder("model/config.json")), 0);

    copy("golden/tiny/model/config.json", in_folder("model/config.json"));
    replace_all(in_folder("model/model.safetensors"), "lm_head.weight", "lm_heap.weight");
    ck_assert_int_eq(m3ref("estimate %s --from-tensors", in_folder("model")), 65);
    ck_assert(has("err", "language_model.lm_heap.weight: got a tensor of no component"));

    ck_assert_int_eq(unlink(in_folder("model/model.safetensors")), 0);
    ck_assert_int_eq(m3ref("estimate %s --from-tensors", in_folder("model")), 66);
    ck_assert_int_eq(m3ref("estimate %s", in_folder("model")), 0);
    ck_assert(has("err", "weight files are missing: the stored size is not known"));
}

/* A size asked for by name counts for memory; else that of the files. */
TEST(which_size_counts)
{
    json_t *o[2];
    ck_assert_int_eq(m3ref("estimate golden/tiny/model --weights fp8 --json"), 0);
    ck_assert_int_eq(lines_of_json(o, 2), 1);
    check_integer(o[0], "weight_bytes", 827497);
    check_integer(o[0], "weight_bytes_stored", 1760180);
    check_integer(o[0], "weight_bytes_in_memory", 827497);
    json_decref(o[0]);
    ck_assert_int_eq(m3ref("estimate golden/tiny/model/config.json --weights int4 --json"), 0);
    ck_assert_int_eq(lines_of_json(o, 2), 1);
    check_integer(o[0], "weight_bytes", 413749);        /* half a byte more than 413748 */
    json_decref(o[0]);
}

static const struct {
    const char *arguments;
    int status;
    const char *says;
} wrong[] = {
    { "", 64, "expected one config.json or model directory" },
    { M3 " " M3, 64, "got 2 names" },
    { M3 " --gpu h800x", 64, "--gpu: got h800x, expected one of a100, a800, h100," },
    { M3 " --chunk 4096", 64, "--chunk: expected a layout with it" },
    { M3 " --tp 8 --gpu h200 --gpus 4", 64, "--gpus: got 4, expected the 8 cards of the layout" },
    { M3 " --tp 5", 64, "--tp: got 5, expected a divisor of the number of query heads, 64" },
    { M3 " --tp 8 --mtp 1", 64, "--mtp cannot be combined with a layout" },
    { M3 " --tp 64 --dp 2048", 64, "got a layout of 131072 cards, expected at most 65536" },
    { M3 " --efficiency 0", 64, "--efficiency: got 0" },
    { "golden/configs/kimi-k2.5.json --tp 2", 64, "for which a layout is not known" },
    { M3 " --gpus 8", 64, "--gpus needs --gpu" },
    { M3 " --card-memory vendor", 64, "--card-memory needs --gpu" },
    { M3 " --gpu h200 --gpus 0", 64, "--gpus: got 0" },
    { M3 " --gpu b200 --card-memory reported", 64, "not known for b200" },
    { M3 " --gpu b200 --card-memory much", 64, "--card-memory: got much" },
    { M3 " --weights bf17", 64, "--weights: got bf17, expected bf16, f16, f32, fp8, int4 or fp4" },
    { M3 " --weights mxfp8", 64, "--weights: got mxfp8" },
    { M3 " --kv q8", 64, "--kv: got q8" },
    { M3 " --index-kv BF16", 64, "--index-kv: got BF16" },
    { M3 " --context 0", 64, "--context: got 0, expected up to 64 numbers from 1 to 1048576, max_position_embeddings" },
    { M3 " --context 1048577", 64, "--context: got 1048577" },
    { M3 " --context 2M", 64, "--context: got 2M" },
    { M3 " --context 1025K", 64, "--context: got 1025K" },
    { M3 " --context 4k", 64, "--context: got 4k" },
    { M3 " --context 4KK", 64, "--context: got 4KK" },
    { M3 " --context 4K,", 64, "--context: got 4K," },
    { M3 " --context ,4K", 64, "--context: got ,4K" },
    { M3 " --context -4", 64, "--context: got -4" },
    { M3 " --context ''", 64, "--context: got ," },
    { M3 " --context 99999999999999999999", 64, "--context: got 999" },
    { M3 " --batch 0", 64, "--batch: got 0" },
    { M3 " --batch 1,0", 64, "--batch: got 1,0" },
    { M3 " --batch 2147483649", 64, "--batch: got 2147483649" },
    { M3 " --batch 2048M", 64,
      "a figure beyond 2^63 with a context of 1048576 (max_position_embeddings) and a batch "
      "of 2147483648, expected smaller ones" },
    { M3 " --batch 2048M --context 1000K", 64, "with a context of 1024000 and a batch of 2147483648, expected" },
    { M3 " --mtp 17", 64, "--mtp: got 17" },
    { M3 " --activations -1", 64, "--activations: got -1" },
    { M3 " --format xml", 64, "--format: got xml, expected table, csv or json" },
    { M3 " --from-tensors", 64, "--from-tensors: got " M3 ", expected a model directory" },
    { M3 " --frobnicate", 64, "--frobnicate is not an option" },
    { M3 " --context", 64, "--context needs a value" },
    { "golden/no-such-config.json", 66, "golden/no-such-config.json: cannot open" },
    { "golden/tiny", 66, "config.json" },
    { "README.md", 65, "README.md" },
};

LOOP_TEST(errors, sizeof wrong / sizeof wrong[0])
{
    ck_assert_int_eq(m3ref("estimate %s", wrong[_i].arguments), wrong[_i].status);
    ck_assert(has("err", wrong[_i].says));
    ck_assert_int_eq(error_lines(), 1);
    size_t count;
    free(read_bytes(in_folder("out"), &count));
    ck_assert_uint_eq(count, 0);
}

/* Configs of other models, and lists of the wrong length. */
LOOP_TEST(errors_of_configs, 4)
{
    static const struct {
        const char *from, *to, *says;
    } changes[] = {
        { "\"model_type\": \"minimax_m3_vl\"", "\"model_type\": \"minimax_m2_vl\"", "model_type" },
        { "SparseForConditionalGeneration", "DenseXForConditionalGeneration", "architectures" },
        { "\"num_hidden_layers\": 60", "\"num_hidden_layers\": 61", "sparse_attention_freq" },
        { "\"num_hidden_layers\": 60", "\"num_hidden_layers\": 61", "moe_layer_freq" },
    };
    copy(M3, in_folder("config.json"));
    replace_all(in_folder("config.json"), changes[_i].from, changes[_i].to);
    ck_assert_int_eq(m3ref("estimate %s", in_folder("config.json")), 65);
    ck_assert(has("err", changes[_i].says));
}

TEST(help)
{
    ck_assert_int_eq(m3ref("estimate --help"), 0);
    ck_assert(has("out", "usage: m3ref estimate"));
    ck_assert_int_eq(m3ref("--help"), 0);
    ck_assert(has("out", "  estimate MODEL_OR_CONFIG"));
}
