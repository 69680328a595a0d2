/* The input is the value of quantization_config. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "io/config.h"

static const char key[] = ", \"quantization_config\": ";
static char *text;              /* little.json without its last brace, and room behind */
static size_t length;

const int fuzz_parts = 1;

void fuzz_begin(void)
{
    FILE *file = fopen("tests/fuzz/little.json", "rb");
    text = malloc(1 << 16);
    if (!file || !text) fuzz_broken("tests/fuzz/little.json cannot be read");
    length = fread(text, 1, 1 << 15, file);
    fclose(file);
    while (length > 0 && text[length - 1] != '}') length--;
    memcpy(text + --length, key, sizeof key - 1);
    length += sizeof key - 1;
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_config config;
    if (parts[0].size > 1 << 14) return;
    if (parts[0].size) memcpy(text + length, parts[0].bytes, parts[0].size);
    strcpy(text + length + parts[0].size, "}");
    const int status = m3_config_parse(&config, text, "config.json", &notes, &error);
    m3_config_free(&config);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}
