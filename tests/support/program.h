/* Runs the program $BUILD/m3ref (build/m3ref) in the repository's root, and inspects the files it leaves. Include in
 * one test file. */
#ifndef M3_TESTS_PROGRAM_H
#define M3_TESTS_PROGRAM_H

#include "files.h"

#include <stdarg.h>
#include <sys/wait.h>

#include "io/safetensors.h"

/* Runs `m3ref ARGUMENTS`, output to out and err in the folder. Returns the exit status. */
__attribute__((format(printf, 1, 2))) static inline int m3ref(const char *format, ...)
{
    char arguments[2048], command[3000];
    const char *build = getenv("BUILD");
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(command, sizeof command, "%s/m3ref %s >%s 2>%s", build ? build : "build", arguments, in_folder("out"),
             in_folder("err"));
    int status = system(command);
    ck_assert_msg(WIFEXITED(status), "m3ref %s: ended by a signal", arguments);
    return WEXITSTATUS(status);
}

static inline int has(const char *file, const char *text)
{
    size_t count;
    unsigned char *bytes = read_bytes(in_folder(file), &count);
    int found = strstr((char *)bytes, text) != NULL;
    if (!found) fprintf(stderr, "%s lacks \"%s\":\n%s", file, text, (char *)bytes);
    free(bytes);
    return found;
}

/* Does the last line that was printed contain the text? */
static inline int last_line_has(const char *text)
{
    size_t count;
    unsigned char *out = read_bytes(in_folder("out"), &count);
    while (count > 0 && out[count - 1] == '\n') out[--count] = '\0';
    const char *line = strrchr((char *)out, '\n');
    line = line ? line + 1 : (char *)out;
    const int found = strstr(line, text) != NULL;
    if (!found) fprintf(stderr, "the last line lacks \"%s\": %s\n", text, line);
    free(out);
    return found;
}

/* The number of lines in err; an error line starts with "m3ref: ". */
static inline int error_lines(void)
{
    size_t count;
    unsigned char *bytes = read_bytes(in_folder("err"), &count);
    int lines = 0;
    for (size_t i = 0; i < count; i++) lines += bytes[i] == '\n';
    free(bytes);
    return lines;
}

static inline int exists(const char *name) { return access(in_folder(name), F_OK) == 0; }

/* The number of entries in the folder: a failed run must leave no temporary file. */
static inline int entries(void)
{
    int count = 0;
    DIR *dir = opendir(folder);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir)) count++;
    closedir(dir);
    return count - 2;
}

static inline void copy(const char *from, const char *to)
{
    size_t count;
    unsigned char *bytes = read_bytes(from, &count);
    write_bytes(to, bytes, count);
    free(bytes);
}

/* Makes a copy of the tiny model in folder/model. */
static inline void copy_tiny(void)
{
    ck_assert_int_eq(mkdir(in_folder("model"), 0700), 0);
    copy("golden/tiny/model/config.json", in_folder("model/config.json"));
    copy("golden/tiny/model/model.safetensors", in_folder("model/model.safetensors"));
}

/* Overwrites bytes of a tensor of the copy. */
static inline void patch(const char *tensor, size_t offset, const void *bytes, size_t count)
{
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    uint64_t header;
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("model/model.safetensors"), &error), M3_OK);
    const struct m3_tensor *t = m3_safetensors_find(file, tensor);
    ck_assert_ptr_nonnull(t);
    long at = (long)((const char *)t->data - (const char *)m3_safetensors_header(file, &header)) + (long)offset;
    m3_safetensors_close(file);

    FILE *out = fopen(in_folder("model/model.safetensors"), "r+b");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fseek(out, at, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(bytes, 1, count, out), count);
    ck_assert_int_eq(fclose(out), 0);
}

#endif
