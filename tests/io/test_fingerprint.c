/* Which weights a model has: hashes of files, whole or in samples, what is remembered of them, and how two are
 * compared. */
#include "files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "io/fingerprint.h"

/* The clock of the code under test, which calls this in place of libc's: so many seconds ahead of that of files. */
static time_t ahead;

time_t time(time_t *now)
{
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    if (now) *now = real.tv_sec + ahead;
    return real.tv_sec + ahead;
}

/* The next change of a file is a new one, and has another time: the clock of files ticks every few milliseconds. */
static void catch_up(void)
{
    ahead = 0;
    usleep(50000);
}

static struct m3_error error;
static struct m3_checkpoint *checkpoint;

enum { STRIDE = 16 << 20, BLOCK = 64 << 10 };

/* A file of one tensor of this many bytes, zeros but for those of its number at some places; sparse if large. */
static void write_shard(const char *name, const char *tensor, long bytes)
{
    char header[200];
    int length = snprintf(header + 8, sizeof header - 8,
                          "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%ld],\"data_offsets\":[0,%ld]}}", tensor, bytes, bytes);
    for (int i = 0; i < 8; i++) header[i] = (char)((uint64_t)length >> 8 * i);
    write_bytes(in_folder(name), header, (size_t)length + 8);
    ck_assert_int_eq(truncate(in_folder(name), 8 + length + bytes), 0);
}

/* Changes a byte of a file; from its end. */
static void poke(const char *name, long from_end, char byte)
{
    FILE *file = fopen(in_folder(name), "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, -from_end, SEEK_END), 0);
    ck_assert_int_eq(fputc(byte, file), byte);
    ck_assert_int_eq(fclose(file), 0);
}

static void hex_of(char hex[65], EVP_MD_CTX *digest)
{
    unsigned char bytes[32];
    ck_assert_int_eq(EVP_DigestFinal_ex(digest, bytes, NULL), 1);
    for (int i = 0; i < 32; i++) sprintf(hex + 2 * i, "%02x", bytes[i]);
    EVP_MD_CTX_free(digest);
}

static EVP_MD_CTX *new_digest(void)
{
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    ck_assert_int_eq(EVP_DigestInit_ex(digest, EVP_sha256(), NULL), 1);
    return digest;
}

static void hash_of_file(char hex[65], const char *name)
{
    size_t count;
    unsigned char *bytes = read_bytes(in_folder(name), &count);
    EVP_MD_CTX *digest = new_digest();
    EVP_DigestUpdate(digest, bytes, count);
    hex_of(hex, digest);
    free(bytes);
}

/* The fingerprint, to be freed. */
static char *made(uint64_t whole, const char *memory)
{
    const struct m3_fingerprint_how how = { .whole = whole, .memory = memory };
    char *text;
    m3_checkpoint_close(checkpoint);
    ck_assert_int_eq(m3_checkpoint_open(&checkpoint, folder, &error), 0);
    ck_assert_int_eq(m3_fingerprint(&text, checkpoint, &how, &error), 0);
    ck_assert_ptr_null(error.text);
    return text;
}

static void setup(void)
{
    make_folder();
    error = (struct m3_error){ 0 };
    checkpoint = NULL;
    ahead = 0;
    write_text(in_folder("config.json"), "{}");
}

static void teardown(void)
{
    m3_checkpoint_close(checkpoint);
    m3_error_free(&error);
    remove_folder();
}

TIMEOUT(120);
FIXTURE(setup, teardown);

/* Goal:  one SHA-256 of each file's bytes, as sha256sum says it, in byte order of names.
 * Seen to fail with the header alone hashed, and with the order of the index. */
TEST(whole_files)
{
    char a[65], b[65], expected[400];
    write_shard("b.safetensors", "x", 5);
    write_shard("a.safetensors", "y", 3000000);
    write_text(in_folder("model.safetensors.index.json"),
               "{\"weight_map\":{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\"}}");
    for (int changed = 0; changed < 2; changed++) {
        if (changed) poke("a.safetensors", 1, 7);
        hash_of_file(a, "a.safetensors");
        hash_of_file(b, "b.safetensors");
        sprintf(expected, "{\"a.safetensors\":\"%s\",\"b.safetensors\":\"%s\"}", a, b);
        char *text = made(M3_FINGERPRINT_WHOLE, NULL);
        ck_assert_str_eq(text, expected);
        free(text);
    }
}

/* Goal:  above the limit: of each tensor its name, 64 KiB every 16 MiB, and the last 64 KiB.
 * Given: a tensor of 33 MiB + 1 byte; a byte changed in a block, and one between blocks.
 * Seen to fail with the last block left out, and with whole files. */
TEST(samples)
{
    enum { BYTES = 33 << 20 | 1 };
    static const struct {
        long from_end;
        int is_seen;
    } places[] = { { 1, 1 }, { BLOCK, 1 }, { BLOCK + 1, 0 }, { BYTES - STRIDE - 5, 1 }, { BYTES - STRIDE - BLOCK, 0 } };
    char *zeros = calloc(BLOCK, 1), hex[65], expected[200];
    EVP_MD_CTX *digest = new_digest();
    EVP_DigestUpdate(digest, "w", 2);
    for (int i = 0; i < 4; i++) EVP_DigestUpdate(digest, zeros, BLOCK);
    hex_of(hex, digest);
    sprintf(expected, "{\"model.safetensors\":\"%s\",\"sampled\":true}", hex);
    write_shard("model.safetensors", "w", BYTES);
    char *text = made(1, NULL);
    ck_assert_str_eq(text, expected);
    free(text);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        poke("model.safetensors", places[i].from_end, 1);
        text = made(1, NULL);
        ck_assert_msg((strcmp(text, expected) != 0) == places[i].is_seen, "%ld from the end", places[i].from_end);
        free(text);
        poke("model.safetensors", places[i].from_end, 0);
    }
    free(zeros);
}

/* Is `text` the fingerprint of model.safetensors as it is now? */
static int is_true(char *text)
{
    char hex[65];
    hash_of_file(hex, "model.safetensors");
    const int found = strstr(text, hex) != NULL;
    free(text);
    return found;
}

/* Puts other digits into the memory, so that what comes from it can be told. */
static void spoil(const char *memory)
{
    size_t count;
    char *lines = (char *)read_bytes(memory, &count);
    ck_assert(count > 64);
    memset(lines, 'a', 64);
    write_bytes(memory, lines, count);
    free(lines);
}

/* Goal:  a large file is hashed once, and again if its time, size or inode is another.
 * Given: 17 MiB, older than 2 s; touched; written with its old time put back; replaced.
 * Claim: a spoilt memory is believed exactly if nothing has changed, and not for samples. A file that was written less
 *        than 2 s ago is not remembered, nor a small one.
 * Seen to fail with the times left out of what is compared; with the time of the inode left out; with new files
 * remembered; with small files remembered. */
TEST(remembered)
{
    char memory[300];
    struct stat state;
    strcpy(memory, in_folder("cache/m3ref/weights"));
    mkdir(in_folder("cache"), 0700);
    write_shard("model.safetensors", "w", 17 << 20);
    ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, memory)));
    ck_assert_int_ne(access(memory, F_OK), 0);
    for (int change = 0; change < 3; change++) {
        ahead = 3;
        ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, memory)));
        spoil(memory);
        ck_assert(!is_true(made(M3_FINGERPRINT_WHOLE, memory)));
        ck_assert_int_eq(stat(in_folder("model.safetensors"), &state), 0);
        catch_up();
        const struct timespec times[2] = { state.st_atim, state.st_mtim };
        if (change == 0) utimensat(AT_FDCWD, in_folder("model.safetensors"), NULL, 0);
        if (change == 1) poke("model.safetensors", 9, 3);
        if (change == 1) utimensat(AT_FDCWD, in_folder("model.safetensors"), times, 0);
        if (change == 2) rename(in_folder("model.safetensors"), in_folder("old"));
        if (change == 2) write_shard("model.safetensors", "w", 17 << 20);
        if (change == 2) utimensat(AT_FDCWD, in_folder("model.safetensors"), times, 0);
        ck_assert_msg(is_true(made(M3_FINGERPRINT_WHOLE, memory)), "change %d", change);
    }
    ahead = 3;
    free(made(M3_FINGERPRINT_WHOLE, memory));
    spoil(memory);
    char *sampled = made(1, memory);
    ck_assert_ptr_null(strstr(sampled, "aaaaaaaaaaaaaaaa"));
    free(sampled);
    catch_up();
    write_shard("model.safetensors", "w", 5);
    ck_assert_int_eq(unlink(memory), 0);
    ahead = 3;
    ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, memory)));
    ck_assert_int_ne(access(memory, F_OK), 0);
}

/* Goal:  an edit through a memory map, which leaves size, inode and times as they are, is seen.
 * Given: a file that is mapped and written, remembered, and written again in the same page; then at a place that no
 *        sample reads, which is the documented gap.
 * Seen to fail with nothing but the state of the file compared. */
TEST(through_a_map)
{
    enum { BYTES = 17 << 20 };
    char memory[300];
    struct stat before, after;
    strcpy(memory, in_folder("weights"));
    write_shard("model.safetensors", "w", BYTES);
    const int file = open(in_folder("model.safetensors"), O_RDWR);
    ck_assert_int_eq(fstat(file, &before), 0);
    char *bytes = mmap(NULL, (size_t)before.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ck_assert(bytes != MAP_FAILED);
    char *end = bytes + before.st_size;
    end[-9] = end[-(8 << 20)] = 1;
    catch_up();
    ahead = 3;
    ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, memory)));
    ck_assert_int_eq(access(memory, F_OK), 0);
    ck_assert_int_eq(fstat(file, &before), 0);
    end[-9] = 2;
    ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, memory)));
    end[-(8 << 20)] = 2;
    ck_assert_int_eq(fstat(file, &after), 0);
    const int same_times = memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim) == 0;
    ck_assert_int_eq(is_true(made(M3_FINGERPRINT_WHOLE, memory)), !same_times);
    munmap(bytes, (size_t)before.st_size);
    close(file);
}

/* A memory that is a folder, not there, or no text does no harm.
 * Seen to fail with a failed write returned. */
TEST(no_memory)
{
    write_shard("model.safetensors", "w", 17 << 20);
    ahead = 3;
    ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, folder)));
    ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, in_folder("config.json/weights"))));
    write_bytes(in_folder("weights"), "\0\xff\n\n0123456789abcdef whole", 26);
    ck_assert(is_true(made(M3_FINGERPRINT_WHOLE, in_folder("weights"))));
}

/* Goal:  files that both name must agree; nothing is said of others, or of samples beside whole files.
 * Seen to fail with a missing shard taken as a difference, and with the first file alone compared. */
static const struct {
    const char *got, *expected, *difference;
} pairs[] = {
    { "{\"a\":\"1\",\"b\":\"2\"}", "{\"a\":\"1\",\"b\":\"2\"}", NULL },
    { "{\"a\":\"1\",\"b\":\"2\"}", "{\"b\":\"2\",\"a\":\"1\"}", NULL },
    { "{\"a\":\"1\"}", "{\"a\":\"1\",\"b\":\"2\"}", NULL },
    { "{\"a\":\"1\"}", "{\"b\":\"2\"}", NULL },
    { "{\"a\":\"1\",\"b\":\"3\"}", "{\"a\":\"1\",\"b\":\"2\"}", "b: got 3, expected 2; 1 of 2 files differ" },
    { "{\"b\":\"3\"}", "{\"a\":\"1\",\"b\":\"2\"}", "b: got 3, expected 2" },
    { "{\"a\":\"1\",\"sampled\":true}", "{\"a\":\"2\"}", NULL },
    { "{\"a\":\"1\",\"sampled\":true}", "{\"a\":\"2\",\"sampled\":true}", "a: got 1, expected 2" },
    { "none", "{\"a\":\"2\"}", "got none, expected {\"a\":\"2\"}" },
};

LOOP_TEST(compared, sizeof pairs / sizeof *pairs)
{
    char *difference;
    ck_assert_int_eq(m3_fingerprint_compare(&difference, pairs[_i].got, pairs[_i].expected, &error), 0);
    if (!pairs[_i].difference) ck_assert_ptr_null(difference);
    else ck_assert_pstr_eq(difference, pairs[_i].difference);
    free(difference);
}

/* Seen to fail with a relative XDG_CACHE_HOME, which its specification says to ignore. */
TEST(where)
{
    const char *const cases[][3] = { { "/c", "/h", "/c/m3ref/weights" },
                                     { "c", "/h", "/h/.cache/m3ref/weights" },
                                     { NULL, "/h", "/h/.cache/m3ref/weights" },
                                     { NULL, NULL, NULL } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const names[] = { "XDG_CACHE_HOME", "HOME" };
        for (int k = 0; k < 2; k++) cases[i][k] ? setenv(names[k], cases[i][k], 1) : unsetenv(names[k]);
        char *path = m3_fingerprint_memory();
        ck_assert_pstr_eq(path, cases[i][2]);
        free(path);
    }
}
