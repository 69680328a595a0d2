/* An answer about the little model, among two honest implementations. */
#include "cli/cli.h"
#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_world(); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    const char *path = fuzz_file("answer.json", parts[0]);
    const char *const json[] = { "check", fuzz_path("little"), path,        "--profile", "bf16",   "--row-runs",
                                 "2",     "--no-causes",       "--threads", "1",         "--json", NULL };
    const char *const text[] = { "check", fuzz_path("little"), path,  "--row-runs", "2", "--no-causes", "--threads",
                                 "1",     "--temperature",     "0.5", "--all",      NULL };
    fuzz_command(m3_cli_check, parts[0].size % 2 ? json : text);
}
