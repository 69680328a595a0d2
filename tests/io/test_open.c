/* Only regular files are read: whatever else has the name of an input is refused at once.
 *
 * Goal:  a FIFO, a socket, a device or a folder is 65 with one line that says which, a missing file 66; nothing waits.
 * Given: each of them as each input of each command, under a limit of 10 seconds.
 * Seen to fail with the program before all files were opened in one place: config, index, picture, frame, profile and
 * plug-in waited until the limit (status 124). */
#include "program.h"

#include <sys/socket.h>
#include <sys/un.h>

#include "io/open.h"

TIMEOUT(30);
FIXTURE(make_folder, remove_folder);

static void make_socket(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_uint_lt(strlen(path), sizeof address.sun_path);
    strcpy(address.sun_path, path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

TEST(kinds)
{
    ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
    make_socket(in_folder("socket"));
    write_text(in_folder("file"), "words");
    ck_assert_int_eq(symlink("file", in_folder("link")) | symlink("fifo", in_folder("pipe")), 0);
    ck_assert_int_eq(symlink("nothing", in_folder("broken")) | symlink("loop", in_folder("loop")), 0);
    const struct {
        const char *path, *words;
        int status;
    } all[] = {
        { in_folder("fifo"), "fifo: got a FIFO, expected a regular file", M3_BAD_INPUT },
        { in_folder("pipe"), "pipe: got a FIFO, expected a regular file", M3_BAD_INPUT },
        { in_folder("socket"), "socket: got a socket, expected a regular file", M3_BAD_INPUT },
        { folder, ": got a folder, expected a regular file", M3_BAD_INPUT },
        { "/dev/zero", "/dev/zero: got a device, expected a regular file", M3_BAD_INPUT },
        { in_folder("none"), "none: cannot open: No such file", M3_ABSENT },
        { in_folder("broken"), "broken: cannot open: No such file", M3_ABSENT },
        { in_folder("loop"), "loop: cannot open: Too many levels", M3_ABSENT },
        { in_folder("file/more"), "more: cannot open: ", M3_ABSENT },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct m3_error error = { 0 };
        int fd = 7;
        FILE *file = stdin;
        ck_assert_int_eq(m3_open_file(&fd, all[i].path, &error), all[i].status);
        ck_assert_int_eq(fd, -1);
        ck_assert_msg(strstr(error.text, all[i].words) && error.count == 1, "%s", error.text);
        ck_assert_int_eq(m3_open_stream(&file, all[i].path, NULL), all[i].status);
        ck_assert_ptr_null(file);
        m3_error_free(&error);
    }
    char words[8] = "";
    FILE *file;
    ck_assert_int_eq(m3_open_stream(&file, in_folder("link"), NULL), M3_OK);
    ck_assert_ptr_nonnull(fgets(words, sizeof words, file));
    ck_assert_str_eq(words, "words");
    fclose(file);
}

#define TINY "golden/tiny/model --case golden/tiny/case.safetensors "
#define DUMP "golden/tiny/golden.safetensors.gz "
static const struct {
    const char *arguments, *fifo; /* @ is the folder */
} inputs[] = {
    { "run @/model --ids 1", "model/config.json" },
    { "run @/model --ids 1", "model/model.safetensors" },
    { "run @/model --ids 1", "model/model.safetensors.index.json" },
    { "run golden/tiny/model --case @/case", "case" },
    { "run " TINY "--hidden @/h --layers 1:2", "h" },
    { "run " TINY "--decisions @/h", "h" },
    { "run " TINY "--cache-in @/h", "h" },
    { "run " TINY "--ops @/ops.so", "ops.so" },
    { "run golden/tiny/model --ids 1,200 --image @/a.png", "a.png" },
    { "run golden/tiny/model --ids 1,201 --video @/video", "video/1.png" },
    { "generate @/model --ids 1", "model/config.json" },
    { "compare @/t " DUMP, "t" },
    { "compare " DUMP "@/t.gz", "t.gz" },
    { "compare " DUMP DUMP "--profile @/p.json", "p.json" },
    { "compare " DUMP DUMP "--map @/m.json", "m.json" },
    { "compare " DUMP DUMP "--companions @/c", "c" },
    { "compare " DUMP DUMP "--envelope @/e", "e" },
    { "blame golden/tiny/model @/t --case golden/tiny/case.safetensors", "t" },
    { "envelope " TINY "--runs 1 --out @/new --profile @/p.json", "p.json" },
    { "estimate @/c.json", "c.json" },
    { "estimate @/model", "model/config.json" },
    { "inspect @/t", "t" },
    { "synth @/c.json @/new", "c.json" },
};

LOOP_TEST(no_command_waits, sizeof inputs / sizeof *inputs)
{
    char command[800], text[400];
    const char *build = getenv("BUILD");
    copy_tiny();
    ck_assert_int_eq(mkdir(in_folder("video"), 0700), 0);
    remove(in_folder(inputs[_i].fifo));
    ck_assert_int_eq(mkfifo(in_folder(inputs[_i].fifo), 0600), 0);
    snprintf(command, sizeof command, "timeout 10 %s/m3ref %s >/dev/null 2>%s", build ? build : "build",
             with_folder(text, inputs[_i].arguments), in_folder("err"));
    ck_assert_int_eq(WEXITSTATUS(system(command)), 65);
    ck_assert(has("err", ": got a FIFO, expected a regular file\n") && has("err", inputs[_i].fifo));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(!exists("new"));
}
