#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* memfd_create */
#endif
#include "cli/words.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/standard.h"
#include "io/gzip.h"
#include "io/json.h"
#include "io/open.h"

enum { MOST_BYTES = M3_JSON_MOST_BYTES };

static const char python[] = "python3 -m m3ref.text";
static const char expected[] = "the Python package m3ref with its words (pip install './scripts/python[text]')";

extern char **environ;

static int is_variable(const char *one, const char *as)
{
    const size_t length = strcspn(as, "=") + 1;
    return strncmp(one, as, length) == 0;
}

static int start(pid_t *child, char *task, const char *model, const int file[3], struct m3_error *error)
{
    char *const arguments[] = { "python3", "-m", "m3ref.text", task, (char *)(uintptr_t)model, NULL };
    /* The current folder does not belong to the modules that Python looks for (from Python 3.11 on). */
    char safe_path[] = "PYTHONSAFEPATH=1", parent[40];
    posix_spawn_file_actions_t actions;
    size_t count = 0;
    while (environ[count]) count++;
    char **own = malloc((count + 3) * sizeof *own);
    if (!own) return m3_fail_memory(error, python, count * sizeof *own);
    snprintf(parent, sizeof parent, "M3REF_PARENT=%ld", (long)getpid());
    count = 0;
    for (char **one = environ; *one; one++)
        if (!is_variable(*one, safe_path) && !is_variable(*one, parent)) own[count++] = *one;
    own[count++] = safe_path;
    own[count++] = parent;
    own[count] = NULL;
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed) {
        free(own);
        return m3_fail(error, m3_status_of(failed), "%s: %s", python, strerror(failed));
    }
    for (int i = 0; !failed && i < 3; i++) failed = posix_spawn_file_actions_adddup2(&actions, file[i], i);
    if (!failed) failed = posix_spawnp(child, "python3", &actions, NULL, arguments, own);
    posix_spawn_file_actions_destroy(&actions);
    free(own);
    if (failed == ENOENT) return m3_fail(error, M3_UNAVAILABLE, "python3: got no such program, expected %s", expected);
    return failed ? m3_fail(error, m3_status_of(failed), "%s: %s", python, strerror(failed)) : M3_OK;
}

/* What the child wrote, with a NUL at its end. */
static int read_back(char **text, size_t *length, int fd, struct m3_error *error)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return m3_read_file(text, length, path, MOST_BYTES, error);
}

/* The error of a child that did not exit with 0. Its last line says why, and calls the file of --chat "the chat"; the
 * statuses of the package are those of the program. */
static int explain(int ended, char *said, const char *name, struct m3_error *error)
{
    static const char the_chat[] = "m3ref: the chat: ";
    static const int own[] = { M3_USAGE, M3_BAD_INPUT, M3_ABSENT, M3_UNAVAILABLE, M3_INTERNAL, M3_IO };
    if (!WIFEXITED(ended)) return m3_fail(error, M3_UNAVAILABLE, "%s: was ended by signal %d", python, WTERMSIG(ended));
    for (size_t n = strlen(said); n > 0 && said[n - 1] == '\n'; n--) said[n - 1] = '\0';
    const char *last = strrchr(said, '\n') ? strrchr(said, '\n') + 1 : said;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (WEXITSTATUS(ended) != own[i]) continue;
        if (strncmp(last, the_chat, sizeof the_chat - 1) == 0)
            return m3_fail(error, own[i], "%s: %s", name, last + sizeof the_chat - 1);
        if (strncmp(last, "m3ref: ", 7) == 0) return m3_fail(error, own[i], "%s", last + 7);
    }
    return m3_fail(error, M3_UNAVAILABLE, "%s: got %.200s, expected %s", python, *last ? last : "an error", expected);
}

/* name: what the text is called in messages.
 * Files in memory, not pipes: neither side ever waits for the other, and a child that ends early causes no signal. */
static int translate(char **ids, size_t *length, char *task, const char *model, const char *name, const char *text,
                     size_t count, struct m3_error *error)
{
    int file[3] = { -1, -1, -1 }, ended = 0, status = M3_OK;
    char *said = NULL;
    size_t unused;
    pid_t child;
    for (int i = 0; !status && i < 3; i++) {
        file[i] = memfd_create("m3ref", MFD_CLOEXEC);
        if (file[i] < 0) status = m3_fail(error, m3_status_of(errno), "%s: %s", python, strerror(errno));
    }
    if (!status) status = m3_write_all(file[0], text, count, python, error);
    if (!status && lseek(file[0], 0, SEEK_SET) != 0) status = m3_fail(error, M3_IO, "%s: %s", python, strerror(errno));
    if (!status) status = start(&child, task, model, file, error);
    if (!status) {
        while (waitpid(child, &ended, 0) < 0 && errno == EINTR) continue;
        status = ended ? read_back(&said, &unused, file[2], error) : read_back(ids, length, file[1], error);
        if (!status && ended) status = explain(ended, said, name, error);
    }
    free(said);
    for (int i = 0; i < 3; i++)
        if (file[i] >= 0) close(file[i]);
    return status;
}

static int read_ids(char **text, size_t *length, struct m3_cli_input *in, struct m3_error *error)
{
    struct m3_standard file;
    if (*in->ids == '@') {
        in->ids_path = in->ids_name = in->ids + 1;
        return m3_read_file(text, length, in->ids_path, MOST_BYTES, error);
    }
    int status = m3_standard_input(&file, in->ids, error);
    in->ids_path = "/dev/stdin";
    in->ids_name = file.name;
    if (!status) status = m3_read_file(text, length, file.path, MOST_BYTES, error);
    m3_standard_end(&file);
    return status;
}

int m3_cli_words(struct m3_cli_input *in, const char *model, struct m3_error *error)
{
    char *chat = NULL;
    size_t length = 0;
    int status = M3_OK;
    in->ids_name = in->prompt ? "--prompt" : in->chat ? in->chat : "--ids";
    if (in->ids && (*in->ids == '@' || strcmp(in->ids, "-") == 0)) {
        status = read_ids(&in->text, &length, in, error);
    } else if (in->prompt) {
        status = translate(&in->text, &length, "encode", model, in->ids_name, in->prompt, strlen(in->prompt), error);
    } else if (in->chat) {
        status = m3_read_file(&chat, &length, in->chat, MOST_BYTES, error);
        if (!status) status = translate(&in->text, &length, "chat", model, in->ids_name, chat, length, error);
        free(chat);
    }
    if (status || !in->text) return status;
    if (strlen(in->text) != length)
        return m3_fail(error, M3_BAD_INPUT, "%s: got a byte of 0, expected ids", in->ids_name);
    in->ids = in->text;
    return M3_OK;
}
