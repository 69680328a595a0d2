/* Mutations of safetensors files: of tensors as a list, from which header and data are written again. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mutate.h"

enum { MOST_TENSORS = 256, MOST_RANK = 9, MOST_NAME = 160, MOST_JSON = 1 << 16 };

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    { "F64", 8 }, { "F32", 4 }, { "F16", 2 },     { "BF16", 2 },    { "I64", 8 },  { "I32", 4 },
    { "U8", 1 },  { "I8", 1 },  { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "BOOL", 1 },
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

struct tensor {
    char name[MOST_NAME];
    int dtype, rank;
    int64_t shape[MOST_RANK];
    uint8_t *data;              /* owned */
    size_t size;
};

struct file {
    json_t *metadata;           /* NULL: none */
    struct tensor tensors[MOST_TENSORS];
    int count;
};

static int dtype_named(const char *name)
{
    for (int i = 0; name && i < DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return i;
    return 1;
}

static void *copied(const void *bytes, size_t size)
{
    void *copy = malloc(size + 1);
    if (!copy) abort();
    if (size) memcpy(copy, bytes, size);
    return copy;
}

static void free_file(struct file *file)
{
    json_decref(file->metadata);
    for (int i = 0; i < file->count; i++) free(file->tensors[i].data);
}

/* Returns 0, or -1 if the file is too damaged to be taken apart. */
static int take_apart(struct file *file, const uint8_t *bytes, size_t size)
{
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)bytes[i] << 8 * i;
    json_t *header = length <= size - 8 ? json_loadb((const char *)bytes + 8, length, 0, NULL) : NULL;
    const uint8_t *data = bytes + 8 + length;
    const char *name;
    json_t *entry;
    file->metadata = json_incref(json_object_get(header, "__metadata__"));
    file->count = 0;
    json_object_foreach(header, name, entry)
    {
        const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
        const json_int_t begin = json_integer_value(json_array_get(offsets, 0));
        const json_int_t end = json_integer_value(json_array_get(offsets, 1));
        if (strcmp(name, "__metadata__") == 0 || file->count == MOST_TENSORS) continue;
        if (strlen(name) >= MOST_NAME || json_array_size(shape) >= MOST_RANK) continue;
        struct tensor *t = &file->tensors[file->count++];
        *t = (struct tensor){ .dtype = dtype_named(json_string_value(json_object_get(entry, "dtype"))) };
        strcpy(t->name, name);
        t->rank = (int)json_array_size(shape);
        for (int i = 0; i < t->rank; i++) t->shape[i] = json_integer_value(json_array_get(shape, (size_t)i));
        if (begin >= 0 && end >= begin && (size_t)end <= size - 8 - length) t->size = (size_t)(end - begin);
        t->data = copied(data + (t->size ? begin : 0), t->size);
    }
    const int is_apart = header && file->count > 0;
    json_decref(header);
    if (!is_apart) free_file(file);
    return is_apart ? 0 : -1;
}

/* Returns the size of the file, or 0 if there is no room. */
static size_t put_together(uint8_t *bytes, size_t room, const struct file *file)
{
    json_t *header = json_object();
    size_t data = 0;
    if (file->metadata) json_object_set(header, "__metadata__", file->metadata);
    for (int i = 0; i < file->count; i++) {
        const struct tensor *t = &file->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->rank; d++) json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[t->dtype].name, "shape", shape,
                                      "data_offsets", (json_int_t)data, (json_int_t)(data + t->size)));
        data += t->size;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    size_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8, size = 8 + padded + data;
    if (text && size <= room) {
        for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(padded >> 8 * i);
        memcpy(bytes + 8, text, length);
        memset(bytes + 8 + length, ' ', padded - length);
        uint8_t *to = bytes + 8 + padded;
        for (int i = 0; i < file->count; to += file->tensors[i++].size)
            memcpy(to, file->tensors[i].data, file->tensors[i].size);
    }
    free(text);
    return text && size <= room ? size : 0;
}

/* Gives the tensor as many bytes as its shape says, its old ones over and over, if they are few. */
static void fit_data(struct tensor *t, size_t room)
{
    size_t size = dtypes[t->dtype].bytes;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(size, (size_t)t->shape[i], &size)) return;
    if (size > room) return;
    uint8_t *data = malloc(size + 1);
    if (!data) abort();
    for (size_t i = 0; i < size; i++) data[i] = t->size ? t->data[i % t->size] : 0;
    free(t->data);
    t->data = data;
    t->size = size;
}

static void change_shape(struct tensor *t, const struct file *file, struct dice *dice)
{
    static const int64_t sizes[] = { 0,
                                     1,
                                     2,
                                     3,
                                     4,
                                     5,
                                     7,
                                     8,
                                     16,
                                     64,
                                     127,
                                     128,
                                     129,
                                     1000,
                                     INT32_MAX,
                                     INT64_MAX,
                                     -1,
                                     INT64_C(1) << 31,
                                     INT64_C(1) << 32,
                                     INT64_C(1) << 62 };
    const struct tensor *other = &file->tensors[roll(dice, (uint64_t)file->count)];
    const int at = t->rank ? (int)roll(dice, (uint64_t)t->rank) : 0;
    switch (roll(dice, 7)) {
    case 0:
        if (t->rank) t->shape[at] = sizes[roll(dice, sizeof sizes / sizeof *sizes)];
        break;
    case 1:
        if (t->rank) t->shape[at] += roll(dice, 2) ? 1 : -1;
        break;
    case 2:
        if (t->rank < MOST_RANK) t->shape[t->rank++] = (int64_t)roll(dice, 3);
        break;
    case 3:
        if (t->rank == 0 || t->rank == MOST_RANK) break;
        memmove(t->shape + at + 1, t->shape + at, (size_t)(t->rank++ - at) * sizeof *t->shape);
        t->shape[at] = 1;
        break;
    case 4:
        if (t->rank) t->rank--;
        break;
    case 5:
        if (t->rank && other->rank) t->shape[at] = other->shape[roll(dice, (uint64_t)other->rank)];
        break;
    default: t->rank = other->rank; memcpy(t->shape, other->shape, sizeof t->shape);
    }
}

static void put_real(uint8_t *at, int dtype, double value)
{
    const float narrow = (float)value;
    if (dtype == 0) memcpy(at, &value, sizeof value);
    else if (dtype == 1) memcpy(at, &narrow, sizeof narrow);
    else if (dtype == 3) memcpy(at, (const uint8_t *)&narrow + 2, 2);
}

static void change_data(struct tensor *t, struct dice *dice)
{
    static const double reals[] = { NAN, INFINITY, -INFINITY, 0, -0.0, 1, -1, 1e308, 3.4e38, 1e-310, 1e-40, 0.1 };
    static const int64_t integers[] = {
        0, -1, 1, 2, 3, 7, 127, 128, 200025, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
    };
    const size_t width = dtypes[t->dtype].bytes;
    if (t->size < width) return;
    uint8_t *at = t->data + roll(dice, t->size / width) * width;
    if (roll(dice, 4) == 0) {
        t->size = LLVMFuzzerMutate(t->data, t->size, t->size);
    } else if (t->dtype < 4 && t->dtype != 2) {
        put_real(at, t->dtype, reals[roll(dice, sizeof reals / sizeof *reals)]);
    } else {
        memcpy(at, &integers[roll(dice, sizeof integers / sizeof *integers)], width);
    }
}

/* Names of taps belong together by their numbers. */
static void change_name(struct tensor *t, const struct file *file, struct dice *dice)
{
    const char *other = file->tensors[roll(dice, (uint64_t)file->count)].name;
    char *digit = strpbrk(t->name, "0123456789");
    size_t length = strlen(t->name);
    switch (roll(dice, 4)) {
    case 0:
        if (digit) *digit = (char)('0' + roll(dice, 4));
        break;
    case 1: length = LLVMFuzzerMutate((uint8_t *)t->name, length, MOST_NAME - 1); break;
    case 2: length = (size_t)snprintf(t->name, MOST_NAME, "%.100s%s", other, roll(dice, 2) ? ".weight" : "x"); break;
    default:
        if (length + 2 < MOST_NAME) t->name[length++] = (char)('0' + roll(dice, 10));
    }
    t->name[length] = '\0';
}

/* Metadata strings are texts, some of them JSON themselves. */
static void change_metadata(struct file *file, struct dice *dice)
{
    uint8_t *text = malloc(MOST_JSON);
    const char *key = NULL, *each;
    json_t *value;
    uint64_t seen = 0;
    if (!text) abort();
    json_object_foreach(file->metadata, each, value) if (roll(dice, ++seen) == 0) key = each;
    const char *old = json_string_value(json_object_get(file->metadata, key));
    size_t length = old ? strlen(old) : 0;
    if (old && length < MOST_JSON / 2) {
        memcpy(text, old, length);
        if (roll(dice, 8) == 0) length = 0;
        else if (*old == '{' || *old == '[') length = mutate_json(text, length, MOST_JSON - 1, dice);
        else length = LLVMFuzzerMutate(text, length, MOST_JSON - 1);
        json_t *changed = json_stringn((const char *)text, length);
        if (changed && roll(dice, 8)) json_object_set_new(file->metadata, key, changed);
        else json_object_del(file->metadata, key), json_decref(changed);
    }
    free(text);
}

static void change(struct file *file, size_t room, struct dice *dice)
{
    const int i = (int)roll(dice, (uint64_t)file->count);
    struct tensor *t = &file->tensors[i], *last = &file->tensors[file->count - 1];
    switch (roll(dice, 8)) {
    case 0:
        t->dtype = (int)roll(dice, DTYPES);
        fit_data(t, room);
        break;
    case 1:
    case 2:
        change_shape(t, file, dice);
        if (t->rank >= MOST_RANK) t->rank = MOST_RANK - 1;
        fit_data(t, room);
        break;
    case 3: change_name(t, file, dice); break;
    case 4:
        if (file->count == 1) break;
        free(t->data);
        *t = *last;
        file->count--;
        break;
    case 5:
        if (file->count == MOST_TENSORS) break;
        last[1] = *t;
        last[1].data = copied(t->data, t->size);
        file->count++;
        change_name(&last[1], file, dice);
        break;
    case 6: change_metadata(file, dice); break;
    default: change_data(t, dice);
    }
}

/* The header as a text: lengths and offsets are left as they are then, except the length of the header. */
static size_t mutate_header(uint8_t *bytes, size_t size, size_t room, struct dice *dice)
{
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)bytes[i] << 8 * i;
    if (length > size - 8 || room <= size) return LLVMFuzzerMutate(bytes, size, room);
    const size_t data = size - 8 - length;
    uint8_t *kept = copied(bytes + 8 + length, data);
    const size_t changed = mutate_json(bytes + 8, length, room - 8 - data, dice);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)changed >> 8 * i);
    memcpy(bytes + 8 + changed, kept, data);
    free(kept);
    return 8 + changed + data;
}

size_t mutate_tensors(uint8_t *bytes, size_t size, size_t room, struct dice *dice)
{
    static struct file file;
    if (roll(dice, 6) == 0 || take_apart(&file, bytes, size)) return mutate_header(bytes, size, room, dice);
    for (uint64_t changes = 1 + roll(dice, 3); changes-- > 0;) change(&file, room, dice);
    const size_t made = put_together(bytes, room, &file);
    free_file(&file);
    return made ? made : size;
}
