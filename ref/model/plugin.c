#include "model/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/open.h"
#include "ops/ops.h"

struct m3_plugin {
    void *library;
    struct m3_ops ops;          /* of either engine: the two tables differ only in their functions' types */
    struct m3_replacement replacement;
    void (*stop)(void *state);  /* NULL: none, or not started */
};

/* The first entry that is NULL, counted from 0, or -1. Entries are consecutive pointers up to the end of the table. */
static int missing_entry(const struct m3_ops *ops)
{
    void (*entry)(void);
    for (size_t at = offsetof(struct m3_ops, embed); at < sizeof *ops; at += sizeof entry) {
        memcpy(&entry, (const char *)ops + at, sizeof entry);
        if (!entry) return (int)((at - offsetof(struct m3_ops, embed)) / sizeof entry);
    }
    return -1;
}

static const char *how_to_build(const struct m3_plugin_abi *abi, const struct m3_engine *engine)
{
    if (abi->abi_version != M3_OPS_ABI) return "the ops.h of this version";
    return engine->real_bytes == sizeof(double) ? "-DM3_REAL_IS_DOUBLE, or run it with --precision f32"
                                                : "no -DM3_REAL_IS_DOUBLE, or run it with --precision f64";
}

/* Otherwise the file is at fault. dlopen does not always leave the errno; its message says what happened. */
static int is_of_system(int why)
{
    return why == ENOMEM || why == EIO || why == EMFILE || why == ENFILE || why == ENODEV;
}

static int load(struct m3_plugin *p, const char *path, const struct m3_engine *engine, struct m3_error *error)
{
    int (*replace)(struct m3_ops *);
    char here[4096];
    int length = snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (length < 0 || (size_t)length >= sizeof here)
        return m3_fail(error, M3_UNAVAILABLE, "--ops: the name is too long");

    int file, status = m3_open_file(&file, here, error);     /* dlopen would block on a FIFO */
    if (status) return status == M3_ABSENT ? M3_UNAVAILABLE : status;
    close(file);
    errno = 0;
    p->library = dlopen(here, RTLD_NOW | RTLD_LOCAL);
    const int why = errno;
    if (!p->library && is_of_system(why))
        return m3_fail(error, m3_status_of(why), "%s: cannot be loaded: %s", path, dlerror());
    const struct m3_plugin_abi *abi = p->library ? dlsym(p->library, "m3_plugin_abi") : NULL;
    void *symbol = abi ? dlsym(p->library, "m3_plugin") : NULL;
    if (!symbol) return m3_fail(error, M3_UNAVAILABLE, "%s: not a plug-in: %s", path, dlerror());
    if (abi->abi_version != M3_OPS_ABI || (size_t)abi->real_bytes != engine->real_bytes)
        return m3_fail(
            error, M3_UNAVAILABLE,
            "%s: got a table of ABI %d with reals of %d bytes, expected ABI %d with %d bytes: compile it with %s", path,
            abi->abi_version, abi->real_bytes, M3_OPS_ABI, (int)engine->real_bytes, how_to_build(abi, engine));

    memcpy(&replace, &symbol, sizeof replace);      /* C has no cast from an object pointer to a function pointer */
    status = replace(&p->ops);
    int missing = missing_entry(&p->ops);
    if (status)
        return m3_fail(error, M3_UNAVAILABLE, "%s: the plug-in refused: got status %d, expected 0", path, status);
    if (missing >= 0)
        return m3_fail(error, M3_UNAVAILABLE, "%s: entry %d of the operator table: got NULL, expected a function", path,
                       missing);
    return M3_OK;
}

static int start(struct m3_plugin *p, const char *path, const char *words, struct m3_error *error)
{
    int (*begin)(void **, const char *, struct m3_error *);
    void *symbol = dlsym(p->library, "m3_plugin_start"), *end = dlsym(p->library, "m3_plugin_stop");
    if (!symbol && *words)
        return m3_fail(error, M3_UNAVAILABLE,
                       "%s: got \"%s\" after the name, expected nothing: the plug-in takes no words", path, words);
    if (!symbol) return M3_OK;
    if (!end)
        return m3_fail(error, M3_UNAVAILABLE,
                       "%s: m3_plugin_stop: got none, expected one, because there is m3_plugin_start", path);
    memcpy(&begin, &symbol, sizeof begin);
    int status = begin(&p->replacement.state, words, error);
    if (status && !error->count)
        m3_fail(error, M3_UNAVAILABLE, "%s: the plug-in did not start: got status %d, expected 0", path, status);
    if (!status) memcpy(&p->stop, &end, sizeof p->stop);
    /* Another status would speak of the program's files or results. */
    return !status || status == M3_USAGE || status == M3_INTERNAL ? status : M3_UNAVAILABLE;
}

/* Makes a plug-in that holds a table of the engine. */
static int make(struct m3_plugin **plugin, const struct m3_ops *ops, struct m3_error *error)
{
    struct m3_plugin *p = *plugin = calloc(1, sizeof *p);
    if (!p) return m3_fail_memory(error, "--ops", sizeof *p);
    memcpy(&p->ops, ops, sizeof p->ops);
    p->replacement.ops = &p->ops;
    return M3_OK;
}

int m3_plugin_open(struct m3_plugin **plugin, const char *path, const char *words, const struct m3_engine *engine,
                   struct m3_error *error)
{
    int status = make(plugin, engine->ops, error);
    if (status) return status;
    /* A library compiled with -ffast-math turns subnormal numbers off as soon as it is loaded. */
    fenv_t arithmetic;
    fegetenv(&arithmetic);
    status = load(*plugin, path, engine, error);
    if (!status) status = start(*plugin, path, words, error);
    fesetenv(&arithmetic);
    if (status) {
        m3_plugin_close(*plugin);
        *plugin = NULL;
    }
    return status;
}

int m3_plugin_plain(struct m3_plugin **plugin, const struct m3_engine *engine, struct m3_error *error)
{
    return make(plugin, engine->plain, error);
}

const struct m3_replacement *m3_plugin_replacement(const struct m3_plugin *plugin)
{
    return plugin ? &plugin->replacement : NULL;
}

void m3_plugin_close(struct m3_plugin *p)
{
    if (!p) return;
    if (p->stop) p->stop(p->replacement.state);
    if (p->library) dlclose(p->library);
    free(p);
}
