/* Cases of an operator, and results of a kernel. */
#include "compare.h"
#include "oracle/operators/check_file.h"
#include "world.h"

const int fuzz_parts = 2;
void fuzz_begin(void) { fuzz_world(); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *files[2];
    struct m3_case_file cases;
    struct m3_file_check check;
    int status = open_two(files, parts, &error);
    if (!status) {
        status = m3_case_file_open(&cases, NULL, files[0], &error);
        if (!status) {
            status = m3_file_check(&check, &cases, files[1], NULL, fuzz_world()->profile, 1, &error);
            if (!status) check_comparison(&check.comparison);
            m3_file_check_free(&check);
        }
        m3_case_file_close(&cases);
    }
    close_two(files);
    fuzz_check(status, &error);
}
