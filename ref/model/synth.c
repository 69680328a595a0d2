#include "model/synth.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/minmax.h"
#include "io/config.h"
#include "io/new_file.h"
#include "io/open.h"
#include "io/safetensors.h"
#include "base/generator.h"
#include "model/tensors.h"

enum { PIECE = 1 << 20 };                           /* numbers made and written at a time */
static const uint64_t shard_bytes = 5000000000u;    /* a file is closed when it holds this much */

/* One tensor to write: a weight, or its scales. */
struct item {
    char name[208];
    enum m3_dtype dtype;
    int rank, exponent;
    int one_more;                                   /* weights of plain norms are near 1 */
    int64_t shape[8], count;
    int64_t shard;
};

struct synth {
    const char *folder;
    uint64_t seed;
    enum m3_synth_dtype dtype;
    int plain_norms;
    struct item *items;
    int64_t count, capacity, shards;
    uint64_t total, in_shard, done;
    void (*progress)(uint64_t done, uint64_t all);
    struct m3_error *error;
    void *piece;
};

static uint64_t item_bytes(const struct item *item) { return (uint64_t)item->count * m3_dtype_bytes(item->dtype); }

static int add_item(struct synth *s, const char *name, const char *suffix, enum m3_dtype dtype, int rank,
                    const int64_t *shape, int exponent)
{
    if (s->count == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 256;
        struct item *more = realloc(s->items, (size_t)capacity * sizeof *more);
        if (!more) return m3_fail_memory(s->error, "the list of tensors", (size_t)capacity * sizeof *more);
        s->items = more;
        s->capacity = capacity;
    }
    struct item *item = &s->items[s->count++];
    snprintf(item->name, sizeof item->name, "%s%s", name, suffix);
    item->dtype = dtype;
    item->rank = rank;
    item->exponent = exponent;
    item->one_more = s->plain_norms && m3_draw_is_norm(name);
    item->count = 1;
    for (int i = 0; i < rank; i++) item->count *= item->shape[i] = shape[i];

    if (s->in_shard > 0 && s->in_shard + item_bytes(item) > shard_bytes) {
        s->shards++;
        s->in_shard = 0;
    }
    item->shard = s->shards;
    s->in_shard += item_bytes(item);
    s->total += item_bytes(item);
    return M3_OK;
}

/* The stored dtype of one tensor of the model, and its scales. */
static int plan(void *self, const struct m3_tensor_spec *spec)
{
    struct synth *s = self;
    int quantised =
        spec->row->dtype == M3_TENSOR_MATRIX && (s->dtype == M3_SYNTH_F8_BLOCK || s->dtype == M3_SYNTH_MXFP8);
    int wide = spec->row->dtype == M3_TENSOR_FLOAT || s->dtype == M3_SYNTH_F32;
    int64_t columns = 1;
    for (int i = spec->rank > 1 ? 1 : 0; i < spec->rank; i++) columns *= spec->shape[i];
    int exponent = m3_draw_exponent(spec->name, columns);

    /* clang-format off */
    int status = add_item(s, spec->name, "", quantised ? M3_F8_E4M3 : wide ? M3_F32 : M3_BF16, spec->rank, spec->shape,
                          exponent);
    /* clang-format on */
    if (status || !quantised) return status;
    if (s->dtype == M3_SYNTH_MXFP8) {
        const int64_t groups[2] = { spec->shape[0], (spec->shape[1] + 31) / 32 };
        return add_item(s, spec->name, "_scale_inv", M3_U8, 2, groups, exponent);
    }
    const int64_t blocks[2] = { (spec->shape[0] + 127) / 128, (spec->shape[1] + 127) / 128 };
    return add_item(s, spec->name, "_scale_inv", M3_F32, 2, blocks, exponent);
}

/* k/8 for |k| <= 15 as E4M3 bits: exact, because k has 4 significant bits. */
static unsigned char e4m3_of_eighths(int k)
{
    int magnitude = k < 0 ? -k : k, exponent = 0;
    if (k == 0) return 0;
    while (magnitude >> (exponent + 1)) exponent++;
    int mantissa = (magnitude << (3 - exponent)) & 7;
    return (unsigned char)((k < 0) << 7 | (exponent - 3 + 7) << 3 | mantissa);
}

/* Computes numbers [first, first + n) of an item into the piece. */
static void make_piece(struct synth *s, const struct item *item, uint64_t key, int64_t first, int64_t n)
{
    float unit = ldexpf(1, item->exponent - 7);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)(first + i);
        float value = (float)((int)m3_draw(key, at, 255) - 127) * unit + (item->one_more ? 1 : 0);
        switch (item->dtype) {
        case M3_BF16: ((uint16_t *)s->piece)[i] = m3_bf16_of(value); break;
        case M3_F8_E4M3: ((unsigned char *)s->piece)[i] = e4m3_of_eighths((int)m3_draw(key, at, 31) - 15); break;
        case M3_U8:
            ((unsigned char *)s->piece)[i] = (unsigned char)(127 + item->exponent + 2 - (int)m3_draw(key, at, 6));
            break;
        default: ((float *)s->piece)[i] = value;
        }
    }
}

/* Neighbours differ by 2^4 or more and use all 24 bits, so that a scale that is missing, or taken from the next block,
 * shows. */
static void make_block_scales(struct synth *s, const struct item *item, uint64_t key, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t block = (uint64_t)(first + i);
        float fraction = 1 + (float)m3_draw(key, 2 * block + 1, 1 << 23) / (1 << 23);
        int lower = 6 * (int)(block % 2) + (int)m3_draw(key, 2 * block, 2);
        ((float *)s->piece)[i] = ldexpf(fraction, item->exponent + 1 - lower);
    }
}

static int write_item(struct synth *s, struct m3_writer *writer, const struct item *item)
{
    uint64_t key = m3_draw_key(s->seed, item->name);
    size_t stem = strlen(item->name), tail = strlen("_scale_inv");
    int scales = item->dtype == M3_F32 && stem > tail && strcmp(item->name + stem - tail, "_scale_inv") == 0;

    for (int64_t first = 0; first < item->count; first += PIECE) {
        int64_t n = m3_min(PIECE, item->count - first);
        if (scales) make_block_scales(s, item, key, first, n);
        else make_piece(s, item, key, first, n);
        int status = m3_writer_write(writer, s->piece, (uint64_t)n * m3_dtype_bytes(item->dtype), s->error);
        if (status) return status;
        s->done += (uint64_t)n * m3_dtype_bytes(item->dtype);
        if (s->progress) s->progress(s->done, s->total);
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
    if (!bad) text = json_dumps(index, JSON_INDENT(1));
    int status = text ? write_file(s->folder, "model.safetensors.index.json", text, strlen(text), s->error)
                      : m3_fail_memory(s->error, "the index", 0);
    free(text);
    json_decref(map);
    json_decref(index);
    return status;
}

static int copy_config(const char *config_path, const char *folder, struct m3_error *error)
{
    FILE *file;
    int status = m3_open_stream(&file, config_path, error);
    if (status) return status;
    char *text = malloc(1 << 24);
    size_t size = text ? fread(text, 1, 1 << 24, file) : 0;
    status = text && !ferror(file) && feof(file) ? write_file(folder, "config.json", text, size, error)
                                                 : m3_fail(error, M3_IO, "%s: cannot be copied", config_path);
    fclose(file);
    free(text);
    return status;
}

static int make_folder(const char *folder, struct m3_error *error)
{
    if (strlen(folder) > 3000) return m3_fail(error, M3_USAGE, "%s: got a name of more than 3000 bytes", folder);
    if (mkdir(folder, 0777) == 0) return M3_OK;
    if (errno != EEXIST) return m3_fail(error, M3_IO, "%s: cannot be created: %s", folder, strerror(errno));

    DIR *dir = opendir(folder);
    if (!dir) return m3_fail(error, M3_IO, "%s: cannot be read: %s", folder, strerror(errno));
    int entries = 0;
    while (readdir(dir)) entries++;
    closedir(dir);
    return entries <= 2
               ? M3_OK
               : m3_fail(error, M3_USAGE, "%s: got a folder with files in it, expected a new or empty one", folder);
}

int m3_synth_write(const char *config_path, const char *folder, uint64_t seed, enum m3_synth_dtype dtype,
                   int64_t modules, struct m3_synth_totals *totals, void (*progress)(uint64_t done, uint64_t all),
                   struct m3_error *notes, struct m3_error *error)
{
    struct synth s = { .folder = folder, .seed = seed, .dtype = dtype, .progress = progress, .error = error };
    struct m3_config config = { 0 };

    int status = m3_config_read(&config, config_path, notes, error);
    if (!status && !(s.piece = malloc(PIECE * sizeof(float))))
        status = m3_fail_memory(error, "a piece", PIECE * sizeof(float));
    s.plain_norms = !config.gemma_norm;
    if (!status) status = m3_tensors_each(&config, modules, m3_tensors_prefix(&config), plan, &s);
    s.shards++;
    if (!status) status = make_folder(folder, error);
    for (int64_t i = 0; !status && i < s.shards; i++) status = write_shard(&s, i);
    if (!status && s.shards > 1) status = write_index(&s);
    if (!status) status = copy_config(config_path, folder, error);      /* last: without it the folder is no model */

    *totals = (struct m3_synth_totals){ s.count, s.shards, s.total };
    free(s.piece);
    free(s.items);
    m3_config_free(&config);
    return status;
}
