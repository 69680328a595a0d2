/* The two targets of configs differ in their inputs. */
#include "fuzz.h"
#include "io/config.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    static const char letters[] = "HQGDRXVTFEKBNIJWAULYZC23qk?";
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_config config;
    const int status = m3_config_read(&config, fuzz_file("config.json", parts[0]), &notes, &error);
    for (const char *letter = letters; !status && *letter; letter++)
        if (m3_config_size(&config, *letter) < 0) fuzz_broken("a size below 0");
    for (int64_t l = 0; !status && l < config.layers && l < 1000; l++)
        fuzz_see(m3_config_sparse(&config, l) + 2 * m3_config_moe(&config, l));
    m3_config_free(&config);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}
