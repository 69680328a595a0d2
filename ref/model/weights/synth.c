#include "model/weights/synth.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "io/config.h"
#include "io/json.h"
#include "io/new_file.h"
#include "io/new_folder.h"
#include "io/open.h"
#include "io/safetensors.h"
#include "base/generator.h"
#include "model/files/synth_config.h"
#include "model/files/synth_tensor.h"
#include "model/weights/tensors.h"

enum { PIECE = 1 << 20 };   /* numbers made and written at a time */
static const uint64_t shard_bytes = 5000000000u;    /* a file is closed when it holds this much */

struct synth {
    const char *config_path, *folder;
    uint64_t seed;
    enum m3_synth_dtype dtype;
    int plain_norms;
    struct m3_synth_tensor *items;
    int64_t count, capacity, shards;
    uint64_t total, in_shard, done;
    const struct m3_progress *progress;
    struct m3_error *error;
    void *piece;
};

static uint64_t item_bytes(const struct m3_synth_tensor *item)
{
    return (uint64_t)item->count * m3_dtype_bytes(item->dtype);
}

static int add_item(struct synth *s, const struct m3_synth_tensor *made)
{
    if (s->count == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 256;
        struct m3_synth_tensor *more = realloc(s->items, (size_t)capacity * sizeof *more);
        if (!more) return m3_fail_memory(s->error, "the list of tensors", (size_t)capacity * sizeof *more);
        s->items = more;
        s->capacity = capacity;
    }
    struct m3_synth_tensor *item = &s->items[s->count++];
    *item = *made;
    item->count = 1;
    for (int i = 0; i < item->rank; i++) item->count *= item->shape[i];

    if (s->in_shard > 0 && s->in_shard + item_bytes(item) > shard_bytes) {
        s->shards++;
        s->in_shard = 0;
    }
    item->shard = s->shards;
    s->in_shard += item_bytes(item);
    s->total += item_bytes(item);
    return M3_OK;
}

/* A tensor of a matrix in codes. Its shape follows from that of the matrix: rows / tall, columns / wide, rounded up; 0
 * stands for a tensor of one dimension. */
struct part {
    const char *suffix;
    enum m3_synth_kind kind;
    enum m3_dtype dtype;
    int tall, wide;
};

enum { MOST_PARTS = 3 };

/* How matrices are stored: F32 and BF16 have no parts. The columns must be a multiple of `multiple`. */
static const struct form {
    const char *name;
    int multiple;
    struct part parts[MOST_PARTS];
} forms[M3_SYNTH_DTYPES] = {
    [M3_SYNTH_BF16] = { "bf16", 1, { { 0 } } },
    [M3_SYNTH_F32] = { "f32", 1, { { 0 } } },
    [M3_SYNTH_F8_BLOCK] = { "f8_block",
                            1,
                            { { "", M3_SYNTH_EIGHTHS, M3_F8_E4M3, 1, 1 },
                              { "_scale_inv", M3_SYNTH_BLOCKS, M3_F32, 128, 128 } } },
    [M3_SYNTH_MXFP8] = { "mxfp8",
                         1,
                         { { "", M3_SYNTH_EIGHTHS, M3_F8_E4M3, 1, 1 },
                           { "_scale_inv", M3_SYNTH_POWERS, M3_U8, 1, 32 } } },
    [M3_SYNTH_NVFP4] = { "nvfp4",
                         16,
                         { { "_packed", M3_SYNTH_PAIRS, M3_U8, 1, 2 },
                           { "_scale", M3_SYNTH_GROUPS, M3_F8_E4M3, 1, 16 },
                           { "_global_scale", M3_SYNTH_GLOBAL, M3_F32, 0, 1 } } },
    [M3_SYNTH_MXFP4] = { "mxfp4",
                         32,
                         { { "_packed", M3_SYNTH_PAIRS, M3_U8, 1, 2 },
                           { "_scale", M3_SYNTH_SMALL_POWERS, M3_U8, 1, 32 } } },
    [M3_SYNTH_W4A16] = { "w4a16",
                         32,
                         { { "_packed", M3_SYNTH_WORDS, M3_I32, 1, 8 },
                           { "_scale", M3_SYNTH_GROUP_SCALES, M3_BF16, 1, 32 },
                           { "_shape", M3_SYNTH_SIZES, M3_I64, 0, 2 } } },
};

/* A matrix in codes, with its scales. */
static int plan_parts(struct synth *s, const struct m3_tensor_spec *spec, int exponent)
{
    const struct form *form = &forms[s->dtype];
    const int64_t rows = spec->shape[0], cols = spec->shape[1];
    int status = M3_OK;
    if (cols % form->multiple != 0)
        return m3_fail(s->error, M3_BAD_INPUT, "%s: %s: got %" PRId64 " columns, expected a multiple of %d for %s",
                       s->config_path, spec->name, cols, form->multiple, form->name);
    for (int i = 0; i < MOST_PARTS && form->parts[i].suffix && !status; i++) {
        const struct part *p = &form->parts[i];
        struct m3_synth_tensor item = {
            .dtype = p->dtype, .kind = p->kind, .exponent = exponent, .sizes = { rows, cols }
        };
        snprintf(item.name, sizeof item.name, "%s%s", spec->name, p->suffix);
        item.rank = p->tall ? 2 : 1;
        item.shape[0] = p->tall ? (rows + p->tall - 1) / p->tall : p->wide;
        item.shape[1] = p->tall ? (cols + p->wide - 1) / p->wide : 0;
        status = add_item(s, &item);
    }
    return status;
}

/* The stored dtype of one tensor of the model, and its scales. */
static int plan(void *self, const struct m3_tensor_spec *spec)
{
    struct synth *s = self;
    int wide = spec->row->dtype == M3_TENSOR_FLOAT || s->dtype == M3_SYNTH_F32;
    int64_t columns = 1;
    for (int i = spec->rank > 1 ? 1 : 0; i < spec->rank; i++) columns *= spec->shape[i];
    int exponent = m3_draw_exponent(spec->name, columns);
    if (spec->row->dtype == M3_TENSOR_MATRIX && forms[s->dtype].parts[0].suffix) return plan_parts(s, spec, exponent);

    struct m3_synth_tensor item = { .dtype = wide ? M3_F32 : M3_BF16, .rank = spec->rank, .exponent = exponent };
    snprintf(item.name, sizeof item.name, "%s", spec->name);
    item.one_more = s->plain_norms && m3_draw_is_norm(spec->name);
    memcpy(item.shape, spec->shape, sizeof item.shape);
    return add_item(s, &item);
}

static int write_item(struct synth *s, struct m3_writer *writer, const struct m3_synth_tensor *item)
{
    for (int64_t first = 0; first < item->count; first += PIECE) {
        int64_t n = m3_min(PIECE, item->count - first);
        m3_synth_fill(s->piece, item, s->seed, first, n);
        int status = m3_writer_write(writer, s->piece, (uint64_t)n * m3_dtype_bytes(item->dtype), s->error);
        if (status) return status;
        s->done += (uint64_t)n * m3_dtype_bytes(item->dtype);
        m3_tell(s->progress, "bytes written", (int64_t)s->done, (int64_t)s->total);
    }
    return M3_OK;
}

static void shard_name(char *name, size_t size, int64_t shard, int64_t shards)
{
    if (shards == 1) snprintf(name, size, "model.safetensors");
    else snprintf(name, size, "model-%05" PRId64 "-of-%05" PRId64 ".safetensors", shard + 1, shards);
}

static int write_shard(struct synth *s, int64_t shard)
{
    char name[64], path[4096];
    struct m3_writer *writer;
    shard_name(name, sizeof name, shard, s->shards);
    snprintf(path, sizeof path, "%s/%s", s->folder, name);

    int status = m3_writer_new(&writer, path, s->error);
    if (status) return status;
    status = m3_writer_metadata(writer, "format", "pt", s->error);
    for (int64_t i = 0; !status && i < s->count; i++)
        if (s->items[i].shard == shard)
            status = m3_writer_tensor(writer, s->items[i].name, s->items[i].dtype, s->items[i].rank, s->items[i].shape,
                                      s->error);
    if (!status) status = m3_writer_begin(writer, s->error);
    for (int64_t i = 0; !status && i < s->count; i++)
        if (s->items[i].shard == shard) status = write_item(s, writer, &s->items[i]);
    if (!status) return m3_writer_commit(writer, s->error);
    m3_writer_abandon(writer);
    return status;
}

static int write_file(const char *folder, const char *name, const char *text, size_t size, struct m3_error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return m3_new_file_write(path, text, size, error);
}

static int write_index(struct synth *s)
{
    json_t *map = json_object(),
           *index = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)s->total, "weight_map", map);
    char name[64], *text = NULL;
    int bad = !map || !index;
    for (int64_t i = 0; !bad && i < s->count; i++) {
        shard_name(name, sizeof name, s->items[i].shard, s->shards);
        bad = json_object_set_new(map, s->items[i].name, json_string(name));
    }
    if (!bad) text = m3_json_dump(index, JSON_INDENT(1));
    int status = text ? write_file(s->folder, "model.safetensors.index.json", text, strlen(text), s->error)
                      : m3_fail_memory(s->error, "the index", 0);
    free(text);
    json_decref(map);
    json_decref(index);
    return status;
}

/* A copy; of matrices in codes it says so, unless the original does. */
static int write_config(const struct synth *s, enum m3_scaling stated)
{
    char *text;
    size_t size;
    int status = m3_read_file(&text, &size, s->config_path, M3_JSON_MOST_BYTES, s->error);
    if (!status && !m3_synth_states(s->dtype, stated)) {
        char *changed;
        status = m3_synth_config(&changed, text, size, s->dtype, s->config_path, s->error);
        free(text);
        text = changed;
        size = text ? strlen(text) : 0;
    }
    if (!status) status = write_file(s->folder, "config.json", text, size, s->error);
    free(text);
    return status;
}

static int write_files(struct synth *s, enum m3_scaling stated)
{
    int status = M3_OK;
    for (int64_t i = 0; !status && i < s->shards; i++) status = write_shard(s, i);
    if (!status && s->shards > 1) status = write_index(s);
    /* The config is last: without it the folder is no model. */
    return status ? status : write_config(s, stated);
}

int m3_synth_write(const char *config_path, const char *folder, uint64_t seed, enum m3_synth_dtype dtype,
                   int64_t modules, struct m3_synth_totals *totals, const struct m3_progress *progress,
                   struct m3_error *notes, struct m3_error *error)
{
    struct synth s = { .config_path = config_path, .seed = seed, .dtype = dtype, .progress = progress, .error = error };
    struct m3_config config = { 0 };
    struct m3_new_folder out = { 0 };

    int status = m3_config_read(&config, config_path, notes, error);
    if (!status && !(s.piece = malloc(PIECE * sizeof(float))))
        status = m3_fail_memory(error, "a piece", PIECE * sizeof(float));
    s.plain_norms = !config.gemma_norm;
    if (!status) status = m3_tensors_each(&config, modules, m3_tensors_prefix(&config), plan, &s);
    s.shards++;
    if (!status && strlen(folder) > 3000)
        status = m3_fail(error, M3_USAGE, "%s: got a name of more than 3000 bytes", folder);
    if (!status) status = m3_new_folder_open(&out, folder, error);
    s.folder = out.name;
    if (!status) status = write_files(&s, config.matrix_scaling);
    if (!status) status = m3_new_folder_commit(&out, error);
    m3_new_folder_abandon(&out);

    *totals = (struct m3_synth_totals){ s.count, s.shards, s.total };
    free(s.piece);
    free(s.items);
    m3_config_free(&config);
    return status;
}
