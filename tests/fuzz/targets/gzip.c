#include "fuzz.h"
#include "io/safetensors.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *file;
    const int status = m3_safetensors_open(&file, fuzz_file("in.safetensors.gz", parts[0]), &error);
    m3_safetensors_close(file);
    fuzz_check(status, &error);
}
