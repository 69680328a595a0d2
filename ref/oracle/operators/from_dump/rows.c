#include "oracle/operators/from_dump/rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "base/row_list.h"

enum { SAMPLED_FROM = 4096, SAMPLES = 24 };

static void sample(unsigned char *chosen, int64_t count, int64_t block)
{
    const uint64_t key = m3_draw_key(1, "rows");
    const int64_t b = block > 0 && block < count ? block : 1, middle = count / 2 / b * b;
    const int64_t edges[] = { 0,        1, b - 1, b, middle - 1, middle, (count - 1) / b * b - 1, (count - 1) / b * b,
                              count - 1 };
    const int64_t known = (int64_t)(sizeof edges / sizeof edges[0]);
    for (int64_t i = 0; i < known; i++) chosen[m3_max(0, edges[i])] = 1;
    for (int64_t i = known; i < SAMPLES; i++) chosen[m3_draw(key, (uint64_t)i, (uint64_t)count)] = 1;
}

int m3_cut_rows(json_t **rows, const char *given, int64_t count, int64_t each, int64_t block, struct m3_error *error)
{
    *rows = NULL;
    if (given ? strcmp(given, "all") == 0 : count < SAMPLED_FROM) {
        *rows = json_null();
        return M3_OK;
    }
    unsigned char *chosen = calloc((size_t)count + 1, 1);
    json_t *list = json_array();
    int status = chosen && list ? M3_OK : m3_fail_memory(error, "rows", (size_t)count);
    if (!status && !given) sample(chosen, count, block);
    if (!status && given && m3_rows_mark(chosen, given, count))
        status = m3_fail(error, M3_USAGE, "--rows: got %s, expected all, or numbers and ranges A:B from 0 to %" PRId64,
                         given, count - 1);
    for (int64_t r = 0; !status && r < count * each; r++)
        if (chosen[r / each] && json_array_append_new(list, json_integer(r))) status = m3_fail_memory(error, "rows", 0);
    free(chosen);
    if (status) json_decref(list);
    else *rows = list;
    return status;
}
