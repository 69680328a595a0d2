#include "model/plugin.h"

#include <dlfcn.h>
#include <string.h>

int m3_plugin_load(struct m3_ops *ops, void **library, const char *path, struct m3_error *error)
{
    m3_plugin_entry *entry;
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = *library ? dlsym(*library, M3_PLUGIN_SYMBOL) : NULL;
    if (!symbol) return m3_fail(error, M3_UNAVAILABLE, "%s: not a plug-in: %s", path, dlerror());

    memcpy(&entry, &symbol, sizeof entry);      /* C has no cast from an object pointer to a function pointer */
    int status = entry(ops);
    if (status)
        return m3_fail(error, M3_UNAVAILABLE, "%s: " M3_PLUGIN_SYMBOL " refused: got status %d for ABI %d, real of %d bytes,"
                       " expected 0", path, status, ops->abi_version, ops->real_bytes);
    if (ops->abi_version != M3_OPS_ABI || ops->real_bytes != (int)sizeof(real))
        return m3_fail(error, M3_UNAVAILABLE, "%s: built for another table: got ABI %d, real of %d bytes, expected %d, %d",
                       path, ops->abi_version, ops->real_bytes, M3_OPS_ABI, (int)sizeof(real));
    return M3_OK;
}

void m3_plugin_close(void *library)
{
    if (library) dlclose(library);
}
