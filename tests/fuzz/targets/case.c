#include "model/files/case.h"

#include "fuzz.h"
#include "world.h"

static struct m3_config config;

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_config_of(&config, "golden/tiny/model/config.json"); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *file;
    struct m3_case c = { 0 };
    const char *path = fuzz_file("case.safetensors", parts[0]);
    int status = m3_case_read(&c, path, &config, &error);
    if (!status) status = m3_case_check(&c, &config, 0, path, M3_BAD_INPUT, &error);
    if (!status) fuzz_see((double)m3_case_reach(&c));
    m3_case_free(&c);
    fuzz_check(status, &error);
    c = (struct m3_case){ 0 };
    status = m3_safetensors_open(&file, path, &error);
    if (!status) status = m3_case_from_dump(&c, file, &config, &error);
    m3_case_free(&c);
    m3_safetensors_close(file);
    fuzz_check(status, &error);
}
