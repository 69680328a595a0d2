#include "model/plugin.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The first entry that is NULL, counted from 0, or -1. Entries are pointers, one behind the other, to the table's
 * end. */
static int missing_entry(const struct m3_ops *ops)
{
    void (*entry)(void);
    for (size_t at = offsetof(struct m3_ops, embed); at < sizeof *ops; at += sizeof entry) {
        memcpy(&entry, (const char *)ops + at, sizeof entry);
        if (!entry) return (int)((at - offsetof(struct m3_ops, embed)) / sizeof entry);
    }
    return -1;
}

int m3_plugin_load(struct m3_ops *ops, void **library, const char *path, struct m3_error *error)
{
    int (*replace)(struct m3_ops *);
    char here[4096];
    int length = snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (length < 0 || (size_t)length >= sizeof here)
        return m3_fail(error, M3_UNAVAILABLE, "--ops: the name is too long");

    *library = dlopen(here, RTLD_NOW | RTLD_LOCAL);
    const struct m3_plugin_abi *abi = *library ? dlsym(*library, "m3_plugin_abi") : NULL;
    void *symbol = abi ? dlsym(*library, "m3_plugin") : NULL;
    if (!symbol) return m3_fail(error, M3_UNAVAILABLE, "%s: not a plug-in: %s", path, dlerror());
    if (abi->abi_version != M3_OPS_ABI || abi->real_bytes != (int)sizeof(real))
        return m3_fail(error, M3_UNAVAILABLE,
                       "%s: built for another table: got ABI %d, real of %d bytes, expected %d, %d", path,
                       abi->abi_version, abi->real_bytes, M3_OPS_ABI, (int)sizeof(real));

    memcpy(&replace, &symbol, sizeof replace);      /* C has no cast from an object pointer to a function pointer */
    int status = replace(ops), missing = missing_entry(ops);
    if (status)
        return m3_fail(error, M3_UNAVAILABLE, "%s: the plug-in refused: got status %d, expected 0", path, status);
    if (missing >= 0)
        return m3_fail(error, M3_UNAVAILABLE, "%s: entry %d of the operator table: got NULL, expected a function", path,
                       missing);
    return M3_OK;
}

void m3_plugin_close(void *library)
{
    if (library) dlclose(library);
}
