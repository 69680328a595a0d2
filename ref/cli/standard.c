#include "cli/standard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

/* An empty file in the folder for temporary files. */
static int make_file(struct m3_standard *file, struct m3_error *error)
{
    const int status = m3_temporary_nameless(&file->own, NULL, error);
    file->is_standard = 1;
    file->path = file->own.path;
    return status;
}

/* Everything that `from` still gives. */
static int copy_all(int to, int from, const char *name, struct m3_error *error)
{
    char *piece = malloc(PIECE);
    ssize_t count = 0;
    if (!piece) return m3_fail_memory(error, name, PIECE);
    while ((count = read(from, piece, PIECE)) != 0) {
        if (count < 0 && errno == EINTR) continue;
        for (ssize_t done = 0, n = 0; count > 0 && done < count; done += n) {
            n = write(to, piece + done, (size_t)(count - done));
            if (n < 0 && errno == EINTR) n = 0;
            else if (n < 0) count = -1;
        }
        if (count < 0) break;
    }
    free(piece);
    return count < 0 ? m3_fail(error, M3_IO, "%s: %s", name, strerror(errno)) : M3_OK;
}

int m3_standard_input(struct m3_standard *file, const char *given, struct m3_error *error)
{
    *file = (struct m3_standard){ .path = given, .name = given, .own.fd = -1 };
    if (strcmp(given, "-") != 0) return M3_OK;
    file->name = "standard input";
    const int status = make_file(file, error);
    return status ? status : copy_all(file->own.fd, STDIN_FILENO, file->name, error);
}

int m3_standard_output(struct m3_standard *file, const char *given, struct m3_error *error)
{
    *file = (struct m3_standard){ .path = given, .name = given, .own.fd = -1 };
    if (strcmp(given, "-") != 0) return M3_OK;
    file->name = "standard output";
    return make_file(file, error);
}

int m3_standard_send(const struct m3_standard *file, struct m3_error *error)
{
    if (!file->is_standard) return M3_OK;
    const int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return m3_fail(error, M3_IO, "%s: %s", file->path, strerror(errno));
    int status = copy_all(STDOUT_FILENO, fd, file->name, error);
    close(fd);
    return status;
}

void m3_standard_end(struct m3_standard *file)
{
    if (file->is_standard) m3_nameless_close(&file->own);
}
