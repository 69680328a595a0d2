#include "cli/cli.h"
#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    const char *const words[] = { "inspect", fuzz_file("in.safetensors", parts[0]),
                                  parts[0].size / 8 % 2 ? "--json" : NULL, NULL };
    fuzz_command(m3_cli_inspect, words);
}
