#include "cli/cli.h"
#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    const char *path = fuzz_file("config.json", parts[0]);
    const char *const lines[] = { "estimate", path,     "--context", "64,4K",  "--batch", "1,3", "--gpu",
                                  "h200",     "--gpus", "8",         "--json", "--mtp",   "1",   NULL };
    const char *const text[] = { "estimate", path, NULL };
    fuzz_command(m3_cli_estimate, lines);
    fuzz_command(m3_cli_estimate, text);
}
