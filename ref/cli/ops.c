#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/ranks.h"
#include "model/plugin.h"
#include "watch/guard.h"

int m3_cli_library(char *path, size_t room, const char *library, const char *what, const char *target,
                   struct m3_error *error)
{
    static const char *const places[] = { "", "../lib/" };
    char folder[4096];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = '\0';
    for (int i = 0; slash && i < 2; i++) {
        int size = snprintf(path, room, "%s%s%s", folder, places[i], library);
        if (size > 0 && (size_t)size < room && access(path, R_OK) == 0) return M3_OK;
    }
    return m3_fail(error, M3_UNAVAILABLE, "%s: %s%s: got no such file, expected what `%s` builds", what,
                   slash ? folder : "", library, target);
}

int m3_cli_ops_plain(const struct m3_cli_ops *ops) { return ops->name && strcmp(ops->name, "plain") == 0; }

static int is_named(const struct m3_cli_ops *ops, const char *word)
{
    const size_t length = strlen(word);
    return strncmp(ops->name, word, length) == 0 && (ops->name[length] == '\0' || ops->name[length] == ',') &&
           access(ops->name, F_OK) != 0;
}

int m3_cli_ops_foreign(const struct m3_cli_ops *ops)
{
    if (!ops->name || m3_cli_ops_plain(ops) || is_named(ops, "plain")) return 0;
    return ops->guard_all || !is_named(ops, "cuda");
}

int m3_cli_ops_find(struct m3_cli_ops *ops, struct m3_error *error)
{
    const char *comma = access(ops->name, F_OK) == 0 ? NULL : strchr(ops->name, ',');
    const int length = (int)(comma ? comma - ops->name : (ptrdiff_t)strlen(ops->name));
    ops->words = comma ? comma + 1 : "";
    if (is_named(ops, "plain"))
        return m3_fail(error, M3_USAGE, "--ops: got %s, expected plain alone: it takes no words", ops->name);
    if (is_named(ops, "cuda"))
        return m3_cli_library(ops->path, sizeof ops->path, "libm3ref_cuda.so", "--ops cuda", "make cuda", error);
    if (snprintf(ops->path, sizeof ops->path, "%.*s", length, ops->name) >= (int)sizeof ops->path)
        return m3_fail(error, M3_UNAVAILABLE, "--ops: the name is too long");
    return M3_OK;
}

int m3_cli_ops_open(struct m3_cli_ops *ops, const struct m3_engine *engine, struct m3_error *error)
{
    if (!ops->name && ops->guard_all) return m3_fail(error, M3_USAGE, "--ops-guard: expected --ops LIB beside it");
    if (!ops->name) return M3_OK;
    if (m3_cli_ops_plain(ops)) return m3_plugin_plain(&ops->plugin, engine, error);
    m3_watch_enter(ops->record, "the start of the plug-in");
    int status = m3_cli_ops_find(ops, error);
    if (!status) status = m3_plugin_open(&ops->plugin, ops->path, ops->words, engine, error);
    m3_watch_leave(ops->record);
    if (status || !ops->record || ops->is_timed) return status;
    return m3_guard_open(&ops->guard, engine, m3_plugin_replacement(ops->plugin), ops->record, error);
}

const struct m3_replacement *m3_cli_ops_replacement(const struct m3_cli_ops *ops)
{
    return ops->guard ? m3_guard_replacement(ops->guard) : m3_plugin_replacement(ops->plugin);
}

void m3_cli_ops_close(struct m3_cli_ops *ops)
{
    if (!ops->plugin) return;
    m3_guard_close(ops->guard);
    ops->guard = NULL;
    m3_watch_enter(ops->record, "the end of the plug-in");
    m3_plugin_close(ops->plugin);
    m3_watch_leave(ops->record);
    ops->plugin = NULL;
}

int m3_cli_ops_watch(struct m3_watch *watch, struct m3_cli_ops *ops, struct m3_error *error)
{
    int status = m3_watch_open(watch, (double)(ops->timeout ? ops->timeout : M3_CLI_TIMEOUT), error);
    ops->record = watch->record;
    return status;
}

int m3_cli_ops_run(struct m3_cli_ops *ops, int (*body)(void *self), void *self)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_watch watch = { 0 };
    char fault[512] = "";
    int status = m3_cli_ranks_refuse_ops(ops, &error);
    if (status) return m3_cli_end(status, &notes, &error);
    if (!m3_cli_ops_foreign(ops)) return body(self);
    status = m3_cli_ops_watch(&watch, ops, &error);
    if (!status) status = m3_watch_run(&watch, body, self, fault, sizeof fault, &error);
    if (fault[0]) m3_fail(&error, M3_INTERNAL, "%s: %s", ops->name, fault);
    m3_watch_close(&watch);
    ops->record = NULL;
    return error.count ? m3_cli_end(status, &notes, &error) : status;
}
