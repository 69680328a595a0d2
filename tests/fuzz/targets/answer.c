#include "oracle/judge/server/answer.h"

#include "oracle/judge/server/server.h"
#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_world(); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    const struct m3_case *known = &fuzz_world()->the_case;
    struct m3_error error = { 0 };
    struct m3_answer answer = { 0 };
    const char *path = fuzz_file("answer.json", parts[0]);
    fuzz_see(m3_is_answer(path));
    for (int with_ids = 0; with_ids < 2; with_ids++) {
        int status = m3_answer_read(&answer, path, 17, &error);
        if (!status)
            status = m3_answer_settle(&answer, with_ids ? known->ids : NULL, with_ids ? known->T : 0, "--ids", &error);
        m3_answer_free(&answer);
        fuzz_check(status, &error);
    }
}
