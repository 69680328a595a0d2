#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "model/plugin.h"

/* `path` [room] := the CUDA library: in the program's folder, where make puts it, or in ../lib, where make install
 * puts it. */
static int find_cuda(char *path, size_t room, struct m3_error *error)
{
    static const char library[] = "libm3ref_cuda.so", *const places[] = { "", "../lib/" };
    char folder[4096];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = '\0';
    for (int i = 0; slash && i < 2; i++) {
        int size = snprintf(path, room, "%s%s%s", folder, places[i], library);
        if (size > 0 && (size_t)size < room && access(path, R_OK) == 0) return M3_OK;
    }
    return m3_fail(error, M3_UNAVAILABLE, "--ops cuda: %s%s: got no such file, expected what `make cuda` builds",
                   slash ? folder : "", library);
}

int m3_cli_ops_plain(const struct m3_cli_ops *ops) { return ops->name && strcmp(ops->name, "plain") == 0; }

int m3_cli_ops_open(struct m3_cli_ops *ops, const struct m3_engine *engine, struct m3_error *error)
{
    if (!ops->name) return M3_OK;
    if (m3_cli_ops_plain(ops)) return m3_plugin_plain(&ops->plugin, engine, error);
    const char *comma = access(ops->name, F_OK) == 0 ? NULL : strchr(ops->name, ',');
    int length = (int)(comma ? comma - ops->name : (ptrdiff_t)strlen(ops->name));
    int status = M3_OK;
    if (comma && length == 5 && strncmp(ops->name, "plain", 5) == 0)
        return m3_fail(error, M3_USAGE, "--ops: got %s, expected plain alone: it takes no words", ops->name);
    if (length == 4 && strncmp(ops->name, "cuda", 4) == 0) status = find_cuda(ops->path, sizeof ops->path, error);
    else if (snprintf(ops->path, sizeof ops->path, "%.*s", length, ops->name) >= (int)sizeof ops->path)
        status = m3_fail(error, M3_UNAVAILABLE, "--ops: the name is too long");
    return status ? status : m3_plugin_open(&ops->plugin, ops->path, comma ? comma + 1 : "", engine, error);
}

void m3_cli_ops_close(struct m3_cli_ops *ops)
{
    m3_plugin_close(ops->plugin);
    ops->plugin = NULL;
}
