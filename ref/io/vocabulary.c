#include "io/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "io/json.h"
#include "io/open.h"

/* Byte-level pieces spell bytes as characters: a byte that Latin-1 prints is the character of the same number; the
 * other 68, in their order, are the characters from 256 on. */
enum { FIRST_OTHER = 256, OTHERS = 68, CHARACTERS = FIRST_OTHER + OTHERS };

struct piece {
    char *text;
    size_t length;
};

struct m3_vocabulary {
    struct piece *pieces;       /* [V] */
    int64_t V;
    int is_byte_level;
    int16_t byte[CHARACTERS];   /* of a character; -1: none */
};

static int is_printed(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

static void fill_bytes(int16_t *byte)
{
    int other = FIRST_OTHER;
    for (int i = 0; i < CHARACTERS; i++) byte[i] = -1;
    for (int b = 0; b < 256; b++) byte[is_printed(b) ? b : other++] = (int16_t)b;
}

/* Writes the bytes that the piece spells over it, if it spells any. */
static void spell_out(struct piece *piece, const int16_t *byte)
{
    size_t length = 0, count;
    for (size_t i = 0; i < piece->length; i += count) {
        const uint32_t c = m3_utf8(piece->text + i, piece->length - i, &count);
        if (count == 0 || c >= CHARACTERS || byte[c] < 0) return;
    }
    for (size_t i = 0; i < piece->length; i += count)
        piece->text[length++] = (char)byte[m3_utf8(piece->text + i, piece->length - i, &count)];
    piece->length = length;
}

static int set_piece(struct m3_vocabulary *v, int64_t id, const char *text, size_t length, int spells,
                     struct m3_error *error)
{
    if (id < 0 || id >= v->V) return M3_OK;
    struct piece *piece = &v->pieces[id];
    char *own = malloc(length + 1);
    if (!own) return m3_fail_memory(error, "the vocabulary", length + 1);
    memcpy(own, text, length);
    own[length] = '\0';
    free(piece->text);
    *piece = (struct piece){ .text = own, .length = length };
    if (spells) spell_out(piece, v->byte);
    return M3_OK;
}

/* model.vocab: an object from pieces to ids, or a list of [piece, score] in the order of ids. */
static int add_pieces(struct m3_vocabulary *v, json_t *vocab, struct m3_error *error)
{
    const char *key;
    json_t *value;
    size_t i;
    int status = M3_OK;
    json_object_foreach(vocab, key, value)
    {
        if (status) break;
        if (json_is_integer(value))
            status = set_piece(v, json_integer_value(value), key, strlen(key), v->is_byte_level, error);
    }
    json_array_foreach(vocab, i, value)
    {
        const json_t *piece = json_array_get(value, 0);
        if (status) break;
        if (json_is_string(piece))
            status =
                set_piece(v, (int64_t)i, json_string_value(piece), json_string_length(piece), v->is_byte_level, error);
    }
    return status;
}

/* Added tokens stand for themselves, also where the others spell bytes. */
static int add_added(struct m3_vocabulary *v, const json_t *added, struct m3_error *error)
{
    const json_t *entry;
    size_t i;
    int status = M3_OK;
    json_array_foreach(added, i, entry)
    {
        const json_t *id = json_object_get(entry, "id"), *content = json_object_get(entry, "content");
        if (status) break;
        if (json_is_integer(id) && json_is_string(content))
            status =
                set_piece(v, json_integer_value(id), json_string_value(content), json_string_length(content), 0, error);
    }
    return status;
}

static int is_byte_level(const json_t *decoder)
{
    const char *type = json_string_value(json_object_get(decoder, "type"));
    const json_t *one;
    size_t i;
    if (type && strcmp(type, "ByteLevel") == 0) return 1;
    json_array_foreach(json_object_get(decoder, "decoders"), i, one)
    {
        type = json_string_value(json_object_get(one, "type"));
        if (type && strcmp(type, "ByteLevel") == 0) return 1;
    }
    return 0;
}

static int fill(struct m3_vocabulary *v, const json_t *root, const char *path, struct m3_error *error)
{
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    if (!json_is_object(vocab) && !json_is_array(vocab))
        return m3_fail(error, M3_BAD_INPUT, "%s: model.vocab: got no object or list, expected either", path);
    v->is_byte_level = is_byte_level(json_object_get(root, "decoder"));
    fill_bytes(v->byte);
    v->pieces = calloc((size_t)v->V, sizeof *v->pieces);
    if (!v->pieces) return m3_fail_memory(error, path, (size_t)v->V * sizeof *v->pieces);
    const int status = add_pieces(v, vocab, error);
    return status ? status : add_added(v, json_object_get(root, "added_tokens"), error);
}

static int open_file(struct m3_vocabulary **vocabulary, const char *path, int64_t V, struct m3_error *error)
{
    json_t *root = NULL;
    int status = m3_json_load(&root, path, error);
    if (status) return status;
    struct m3_vocabulary *v = calloc(1, sizeof *v);
    if (!v) status = m3_fail_memory(error, path, sizeof *v);
    if (!status) {
        v->V = V;
        status = fill(v, root, path, error);
    }
    json_decref(root);
    if (status) m3_vocabulary_close(v);
    else *vocabulary = v;
    return status;
}

int m3_vocabulary_open(struct m3_vocabulary **vocabulary, const char *folder, int64_t V, struct m3_error *notes,
                       struct m3_error *error)
{
    struct m3_error why = { 0 };
    const size_t size = strlen(folder) + sizeof "/tokenizer.json";
    char *path = malloc(size);
    int exists = 0;
    *vocabulary = NULL;
    if (!path) return m3_fail_memory(error, folder, size);
    snprintf(path, size, "%s/tokenizer.json", folder);
    int status = m3_look_for(&exists, path, &why);
    if (!status && exists) status = open_file(vocabulary, path, V, &why);
    free(path);
    if (status == M3_BAD_INPUT) {
        const char *at = m3_error_lines(&why);
        size_t length = 0;
        const char *line = at ? m3_next_line(&at, &length) : NULL;
        m3_fail(notes, status, "%.*s; tokens are shown without their text", (int)length, line ? line : "");
        status = M3_OK;
    } else if (status) {
        m3_fail_because(error, status, &why);
    }
    m3_error_free(&why);
    return status;
}

void m3_vocabulary_close(struct m3_vocabulary *v)
{
    if (!v) return;
    for (int64_t i = 0; v->pieces && i < v->V; i++) free(v->pieces[i].text);
    free(v->pieces);
    free(v);
}

const char *m3_vocabulary_text(const struct m3_vocabulary *v, int64_t id, size_t *length)
{
    *length = 0;
    if (!v || id < 0 || id >= v->V || !v->pieces[id].text) return NULL;
    *length = v->pieces[id].length;
    return v->pieces[id].text;
}

int m3_vocabulary_join(char **text, size_t *length, const struct m3_vocabulary *v, const int32_t *ids, int64_t n,
                       struct m3_error *error)
{
    size_t one, room = 1;
    *length = 0;
    for (int64_t i = 0; i < n; i++) {
        m3_vocabulary_text(v, ids[i], &one);
        if (__builtin_add_overflow(room, one, &room)) return m3_fail_memory(error, "the text", one);
    }
    if (!(*text = malloc(room))) return m3_fail_memory(error, "the text", room);
    for (int64_t i = 0; i < n; i++) {
        const char *piece = m3_vocabulary_text(v, ids[i], &one);
        if (piece) memcpy(*text + *length, piece, one);
        *length += one;
    }
    (*text)[*length] = '\0';
    return M3_OK;
}

void m3_print_quoted(FILE *out, const char *text, size_t length)
{
    static const char named[] = "\n\r\t\"\\", names[] = "nrt\"\\";
    size_t count;
    fputc('"', out);
    for (size_t i = 0; i < length; i += count) {
        const uint32_t c = m3_utf8(text + i, length - i, &count);
        const char *name = c && c < 128 ? strchr(named, (int)c) : NULL;
        const int whole = count > 0 && !m3_steers_terminal(c);
        if (count == 0) count = 1;
        if (name) fprintf(out, "\\%c", names[name - named]);
        else if (whole) fwrite(text + i, 1, count, out);
        else
            for (size_t k = 0; k < count; k++) fprintf(out, "\\x%02x", (unsigned char)text[i + k]);
    }
    fputc('"', out);
}

char *m3_whole_characters(const char *text, size_t length, size_t *whole)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    char *own = length < SIZE_MAX / 3 ? malloc(3 * length + 1) : NULL;
    size_t count;
    *whole = 0;
    for (size_t i = 0; own && i < length; i += count ? count : 1) {
        m3_utf8(text + i, length - i, &count);
        memcpy(own + *whole, count ? text + i : replacement, count ? count : 3);
        *whole += count ? count : 3;
    }
    return own;
}
