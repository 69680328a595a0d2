/* An earlier report beside a comparison of two dumps of the little model. */
#include "oracle/report/baseline.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "world.h"

const int fuzz_parts = 1;
static struct m3_judgement comparison;

static struct m3_safetensors *dump(const char *name, const char *reading)
{
    char path[512];
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    snprintf(path, sizeof path, "%s", fuzz_path(name));
    const char *const words[] = {
        "run", fuzz_path("little"), "--ids", "1,2,3,4,5,6", "--threads", "1", "--dump", path, "--set", reading, NULL
    };
    fuzz_command(m3_cli_run, words);
    if (m3_safetensors_open(&file, path, &error)) fuzz_broken("a dump cannot be made");
    return file;
}

void fuzz_begin(void)
{
    struct m3_error error = { 0 };
    fuzz_world();
    static struct m3_safetensors *files[2];
    files[0] = dump("reference", "selection=shared");
    files[1] = dump("candidate", "gate_clamp=both");
    const struct m3_compare_options options = { .profile = fuzz_world()->profile, .force = 1 };
    if (m3_compare(&comparison, files[0], files[1], &options, &error)) fuzz_broken("no comparison");
    m3_judgement_is_of(&comparison, files[0], fuzz_world()->profile);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_baseline *baseline;
    struct m3_error error = { 0 };
    int64_t counts[M3_BASELINE_KINDS], stages = comparison.count + (comparison.next_token.tap != NULL);
    int status = m3_baseline_open(&baseline, fuzz_file("baseline.jsonl", parts[0]), &error);
    for (int json = 0; status == M3_OK && json < 2; json++) {
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        if (!out) fuzz_broken("no stream");
        status = m3_baseline_report(out, counts, baseline, &comparison, M3_REPORT_ALL, json, &error);
        fclose(out);
        free(text);
        int64_t all = 0;
        for (int kind = 0; kind < M3_BASELINE_KINDS; kind++) all += counts[kind];
        if (status == M3_OK && all - counts[M3_BASELINE_MISSING] != stages)
            fuzz_broken("the counts are not those of the stages");
    }
    m3_baseline_close(baseline);
    fuzz_check(status, &error);
}
