#include "files.h"

#include "io/checkpoint.h"

#include <openssl/evp.h>

static struct m3_error error;
static struct m3_checkpoint *checkpoint;

/* A file with one tensor of `bytes` bytes. */
static void write_shard(const char *name, const char *tensor, int bytes)
{
    char json[200];
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", tensor, bytes,
             bytes);
    write_safetensors(in_folder(name), json, (size_t)bytes);
}

static void write_index(const char *weight_map)
{
    char json[1000];
    snprintf(json, sizeof json, "{\"metadata\":{\"total_size\":1},\"weight_map\":%s}", weight_map);
    write_text(in_folder("model.safetensors.index.json"), json);
}

static int open_it(void)
{
    m3_checkpoint_close(checkpoint);
    m3_error_free(&error);
    return m3_checkpoint_open(&checkpoint, folder, &error);
}

static void setup(void)
{
    make_folder();
    error = (struct m3_error){ 0 };
    checkpoint = NULL;
    write_text(in_folder("config.json"), "{\"any\": \"text\"}");
}

static void teardown(void)
{
    m3_checkpoint_close(checkpoint);
    m3_error_free(&error);
    remove_folder();
}

FIXTURE(setup, teardown);

TEST(one_file)
{
    write_shard("model.safetensors", "lm_head.weight", 5);
    ck_assert_msg(open_it() == M3_OK, "%s", error.text);
    ck_assert_str_eq(m3_checkpoint_config_path(checkpoint), in_folder("config.json"));
    ck_assert_int_eq(m3_checkpoint_count(checkpoint), 1);
    const char *path;
    const struct m3_tensor *tensor = m3_checkpoint_find(checkpoint, "lm_head.weight", &path);
    ck_assert_str_eq(path, in_folder("model.safetensors"));
    ck_assert_mem_eq(tensor->data, "\0\1\2\3\4", 5);
    ck_assert_ptr_eq(m3_checkpoint_at(checkpoint, 0, NULL), tensor);
    ck_assert_ptr_null(m3_checkpoint_find(checkpoint, "lm_head", NULL));

    size_t size;
    free(read_bytes(in_folder("model.safetensors"), &size));
    ck_assert_uint_eq(m3_checkpoint_bytes(checkpoint), size);
}

/* Shards named so that the order of the index, of the tensors and of the files are three different ones. */
static void write_shards(void)
{
    write_shard("b.safetensors", "x", 1);
    write_shard("a.safetensors", "y", 2);
    write_shard("B.safetensors", "w", 3);
    write_index("{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\",\"w\":\"B.safetensors\"}");
}

/* Goal: every tensor is found in its own shard, and shards come in byte order of names: B, a, b.
 * A model.safetensors beside an index is not looked at. */
TEST(shards)
{
    write_shards();
    write_text(in_folder("model.safetensors"), "not a safetensors file");
    ck_assert_msg(open_it() == M3_OK, "%s", error.text);
    ck_assert_int_eq(m3_checkpoint_count(checkpoint), 3);
    static const char *const tensors[] = { "w", "y", "x" }, *const files[] = { "B", "a", "b" };
    for (int i = 0; i < 3; i++) {
        char name[100];
        const char *path, *found;
        snprintf(name, sizeof name, "%s.safetensors", files[i]);
        const struct m3_tensor *tensor = m3_checkpoint_at(checkpoint, i, &path);
        ck_assert_str_eq(tensor->name, tensors[i]);
        ck_assert_str_eq(path, in_folder(name));
        ck_assert_int_eq(tensor->count, 3 - i);
        ck_assert_ptr_eq(m3_checkpoint_find(checkpoint, tensors[i], &found), tensor);
        ck_assert_str_eq(found, path);
    }
    size_t total = 0, size;
    free(read_bytes(in_folder("a.safetensors"), &size)), total += size;
    free(read_bytes(in_folder("b.safetensors"), &size)), total += size;
    free(read_bytes(in_folder("B.safetensors"), &size)), total += size;
    ck_assert_uint_eq(m3_checkpoint_bytes(checkpoint), total);
}

/* Goal: SHA-256 over config.json and, per file, name, zero byte, length and header; the data does not count.
 * The expected value is put together here from the files' bytes and hashed by libcrypto. */
TEST(hash)
{
    write_shards();
    ck_assert_int_eq(open_it(), M3_OK);
    unsigned char all[4000], digest[32];
    size_t used = 0, size;
    unsigned char *bytes = read_bytes(in_folder("config.json"), &size);
    memcpy(all, bytes, used = size);
    free(bytes);
    static const char *const files[] = { "B.safetensors", "a.safetensors", "b.safetensors" };
    for (int i = 0; i < 3; i++) {
        bytes = read_bytes(in_folder(files[i]), &size);
        memcpy(all + used, files[i], strlen(files[i]) + 1);
        used += strlen(files[i]) + 1;
        memcpy(all + used, bytes, 8u + bytes[0]);
        used += 8u + bytes[0];
        free(bytes);
    }
    ck_assert_int_eq(EVP_Digest(all, used, digest, NULL, EVP_sha256(), NULL), 1);
    char want[65], got[65], other[65];
    for (int i = 0; i < 32; i++) sprintf(want + 2 * i, "%02x", digest[i]);
    ck_assert_int_eq(m3_checkpoint_sha256(checkpoint, got, &error), M3_OK);
    ck_assert_str_eq(got, want);

    write_text(in_folder("config.json"), "{\"any\": \"Text\"}");
    ck_assert_int_eq(m3_checkpoint_sha256(checkpoint, other, &error), M3_OK);
    ck_assert_str_ne(got, other);
}

static void expect(int status, const char *line)
{
    int got = open_it();
    ck_assert_msg(got == status && strstr(error.text, line), "got %d, %sexpected %d, %s", got, error.text, status,
                  line);
    ck_assert_ptr_null(checkpoint);
}

/* Goal: a shard with two tensors is opened once. */
TEST(two_in_a_shard)
{
    write_safetensors(in_folder("s"),
                      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                      2);
    write_index("{\"b\":\"s\",\"a\":\"s\"}");
    ck_assert_msg(open_it() == M3_OK, "%s", error.text);
    ck_assert_int_eq(m3_checkpoint_count(checkpoint), 2);
    ck_assert_ptr_eq(m3_checkpoint_find(checkpoint, "b", NULL), m3_checkpoint_at(checkpoint, 1, NULL));
}

/* Goal: each thing that can be wrong with a folder is refused, with the status and the name that help. */
TEST(absent)
{
    expect(M3_ABSENT, "model.safetensors: cannot open");
    write_shards();
    ck_assert_int_eq(open_it(), M3_OK);
    m3_checkpoint_close(checkpoint);
    checkpoint = NULL;
    remove(in_folder("a.safetensors"));
    remove(in_folder("B.safetensors"));
    expect(M3_ABSENT, "a.safetensors: cannot open");
    ck_assert_int_eq(error.count, 2);
    remove(in_folder("config.json"));
    expect(M3_ABSENT, "config.json: no such file");
    ck_assert_int_eq(error.count, 3);
    ck_assert_int_eq(m3_checkpoint_open(&checkpoint, in_folder("none"), &error), M3_ABSENT);
}

TEST(outside_the_folder)
{
    static const char *const names[] = { "\"/etc/hosts\"", "\"../x\"", "\"..\"", "\"sub/x\"", "\"a..b\"", "\"\"", "1" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char map[100];
        snprintf(map, sizeof map, "{\"x\":%s}", names[i]);
        write_index(map);
        expect(M3_BAD_INPUT, "index.json: x: got");
    }
}

TEST(index_and_files_differ)
{
    write_shards();
    write_index("{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\"}");
    ck_assert_int_eq(open_it(), M3_OK);                     /* the third shard is not named, and so not opened */
    m3_checkpoint_close(checkpoint);
    checkpoint = NULL;

    write_index("{\"x\":\"b.safetensors\",\"z\":\"a.safetensors\"}");
    expect(M3_BAD_INPUT, "y: got no entry, expected a.safetensors");
    ck_assert_ptr_nonnull(strstr(error.text, "z: not in a.safetensors"));
    ck_assert_int_eq(error.count, 2);

    write_index("{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}");
    expect(M3_BAD_INPUT, "y: got b.safetensors, expected a.safetensors");

    write_shard("a.safetensors", "x", 1);                   /* x is in two shards */
    write_index("{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\"}");
    expect(M3_BAD_INPUT, "x: got b.safetensors, expected a.safetensors");
}

TEST(bad_index)
{
    static const char *const texts[] = {
        "{", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "", "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}"
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(in_folder("model.safetensors.index.json"), texts[i]);
        expect(M3_BAD_INPUT, "model.safetensors.index.json: ");
    }
    remove(in_folder("model.safetensors.index.json"));
    ck_assert_int_eq(mkdir(in_folder("model.safetensors.index.json"), 0700), 0);
    expect(M3_BAD_INPUT, "model.safetensors.index.json: ");
}

static int is_first(void *self, const char *tensor) { return strcmp(tensor, self) == 0; }

struct listed {
    char text[300];
    size_t length;
};

static void list(void *to, const char *name, int is_needed, int64_t bytes)
{
    struct listed *l = to;
    l->length +=
        (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, "%s %d %d;", name, is_needed, (int)bytes);
}

/* Goal:  of a part of a model only the files with its tensors are opened; the others may be absent, and count for the
 *        hash as long as they are there.
 * Claim: a list in byte order of names, with sizes; the tensors of the needed file alone; the hash of the whole model.
 * Seen to fail with files that are needed and not needed exchanged, and with 0 for the size of an absent file. */
TEST(part)
{
    struct listed got = { .length = 0 };
    char whole[65], hex[65];
    write_index("{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\",\"c\":\"3.safetensors\",\"d\":\"3.safetensors\"}");
    write_shard("2.safetensors", "a", 5);
    write_shard("1.safetensors", "b", 7);
    struct stat one, two;
    ck_assert_int_eq(stat(in_folder("1.safetensors"), &one) | stat(in_folder("2.safetensors"), &two), 0);
    ck_assert_int_eq(m3_checkpoint_list(folder, is_first, "a", list, &got, &error), M3_OK);
    char want[300];
    snprintf(want, sizeof want, "1.safetensors 0 %d;2.safetensors 1 %d;3.safetensors 0 -1;", (int)one.st_size,
             (int)two.st_size);
    ck_assert_str_eq(got.text, want);

    ck_assert_msg(m3_checkpoint_open_part(&checkpoint, folder, is_first, "a", &error) == M3_OK, "%s", error.text);
    ck_assert_int_eq(m3_checkpoint_count(checkpoint), 1);
    ck_assert_int_eq(m3_checkpoint_skipped(checkpoint), 2);
    ck_assert_ptr_nonnull(m3_checkpoint_find(checkpoint, "a", NULL));
    ck_assert_ptr_null(m3_checkpoint_find(checkpoint, "b", NULL));
    ck_assert_int_eq(m3_checkpoint_sha256(checkpoint, hex, &error), M3_OK);
    ck_assert_str_eq(hex, ""); /* not known without the third file */

    write_safetensors(in_folder("3.safetensors"),
                      "{\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                      2);
    ck_assert_int_eq(m3_checkpoint_sha256(checkpoint, hex, &error), M3_OK);
    ck_assert_msg(open_it() == M3_OK, "%s", error.text);
    ck_assert_int_eq(m3_checkpoint_sha256(checkpoint, whole, &error), M3_OK);
    ck_assert_str_eq(hex, whole);

    got.length = 0;
    ck_assert_int_eq(m3_checkpoint_list(in_folder("no_such"), NULL, NULL, list, &got, &error), M3_OK);
    ck_assert_str_eq(got.text, "model.safetensors 1 -1;");
}

TEST(bad_shard)
{
    write_shards();
    write_text(in_folder("a.safetensors"), "short");
    expect(M3_BAD_INPUT, "a.safetensors: got 5 bytes");
}
