#include "oracle/report/baseline.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "io/json.h"
#include "io/open.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/json_values.h"

struct m3_baseline {
    const char *path;
    json_t *stages;             /* the lines by tap, in their order */
    json_t *summary;            /* NULL: there was none */
};

/* From good to bad. A stage that was not judged is worse than a pass and better than a suspect one. */
static const struct {
    const char *word;
    int rank;
} words[] = {
    { "pass", 0 },       { "identical", 0 }, { "permuted", 0 }, { "tie", 0 },          { "admissible", 0 },
    { "not_judged", 1 }, { "suspect", 2 },   { "fail", 3 },     { "inadmissible", 3 }, { "not_comparable", 4 },
};

static int rank_of(const char *word)
{
    for (size_t i = 0; word != NULL && i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i].word, word) == 0) return words[i].rank;
    return -1;
}

/* The name of a stage: the tap, but the next tokens are a choice that is made from logits and stand beside them. */
static const char *name_of(const char *tap, int is_choice)
{
    return is_choice && strcmp(tap, "logits") == 0 ? "next token" : tap;
}

static int add_line(struct m3_baseline *baseline, const char *text, size_t length, int number, struct m3_error *error)
{
    char name[4200];
    snprintf(name, sizeof name, "%s: line %d of the report", baseline->path, number);
    json_t *line;
    int status = m3_json_parse(&line, text, length, name, error);
    if (status != M3_OK) return status;
    const char *type = json_string_value(json_object_get(line, "type"));
    const char *tap = json_string_value(json_object_get(line, "tap"));
    const int is_stage = type != NULL && (strcmp(type, "stage") == 0 || strcmp(type, "selection") == 0);
    if (type == NULL || (is_stage && tap == NULL))
        status = m3_fail(error, M3_BAD_INPUT, "%s: got no %s, expected a line of compare --json", name,
                         type == NULL ? "type" : "tap");
    else if (is_stage && rank_of(json_string_value(json_object_get(line, "verdict"))) < 0)
        status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got no verdict that compare --json prints", name, tap);
    if (status == M3_OK && is_stage)
        m3_json_set(baseline->stages, name_of(tap, strcmp(type, "selection") == 0), json_incref(line));
    else if (status == M3_OK && strcmp(type, "summary") == 0 && !baseline->summary)
        baseline->summary = json_incref(line);
    json_decref(line);
    return status;
}

static int read_lines(struct m3_baseline *baseline, struct m3_error *error)
{
    char *text;
    size_t count;
    int number = 0, status = m3_read_file(&text, &count, baseline->path, M3_JSON_MOST_BYTES, error);
    for (const char *at = text; status == M3_OK && at < text + count; number++) {
        const size_t length = strcspn(at, "\n");
        if (length > 0) status = add_line(baseline, at, length, number + 1, error);
        at += length + 1;
    }
    free(text);
    if (status != M3_OK || json_object_size(baseline->stages) > 0) return status;
    return m3_fail(error, M3_BAD_INPUT, "%s: got no stage, expected the output of compare --json", baseline->path);
}

int m3_baseline_open(struct m3_baseline **baseline, const char *path, struct m3_error *error)
{
    struct m3_baseline *b = *baseline = calloc(1, sizeof *b);
    if (b == NULL) return m3_fail_memory(error, path, 0);
    b->path = path;
    b->stages = json_object();
    return b->stages == NULL ? m3_fail_memory(error, path, 0) : read_lines(b, error);
}

void m3_baseline_close(struct m3_baseline *baseline)
{
    if (baseline == NULL) return;
    json_decref(baseline->stages);
    json_decref(baseline->summary);
    free(baseline);
}

/* One stage before and now; its tap is missing in one of the two if that word is NULL. */
struct change {
    const char *tap, *was, *is;
    double share_was, share_is; /* of what is allowed; NaN: a choice, or not known */
};

static enum m3_baseline_change kind_of(const struct change *change)
{
    if (change->was == NULL) return M3_BASELINE_NEW;
    if (change->is == NULL) return M3_BASELINE_MISSING;
    const int was = rank_of(change->was), is = rank_of(change->is);
    if (was == is) return M3_BASELINE_NONE;
    return is > was || is == 1 ? M3_BASELINE_WORSE : M3_BASELINE_BETTER;    /* 1: nobody judges it any more */
}

static double share_of(const json_t *line)
{
    const json_t *share = json_object_get(line, "headroom");
    const char *word = json_string_value(share);
    if (word != NULL && strcmp(word, "inf") == 0) return INFINITY;
    return json_is_number(share) ? json_number_value(share) : NAN;
}

static struct change change_of(const struct m3_finding *stage, const struct m3_baseline *baseline)
{
    const char *name = name_of(stage->tap, stage->selection);
    const json_t *line = json_object_get(baseline->stages, name);
    const int judged = m3_is_judged(stage->verdict), choice = stage->selection && judged;
    return (struct change){ .tap = name,
                            .was = json_string_value(json_object_get(line, "verdict")),
                            .is = choice ? m3_choice_text(stage->choice) : m3_verdict_name(stage->verdict),
                            .share_was = share_of(line),
                            .share_is = judged && !choice ? stage->tiers.headroom : NAN };
}

static void print_word(FILE *out, const char *word, double share)
{
    fputs(word, out);
    if (isnan(share)) return;
    fputc(' ', out);
    m3_print_share(out, share, 0);
}

static int print_text(FILE *out, const char *name, const struct change *change, struct m3_error *error)
{
    char *tap = strdup(change->tap);
    if (tap == NULL) return m3_fail_memory(error, "the baseline", 0);
    m3_make_printable(tap, strlen(tap));
    fprintf(out, "%-8s  %s  ", name, tap);
    free(tap);
    if (change->was != NULL) print_word(out, change->was, change->share_was);
    if (change->was != NULL && change->is != NULL) fputs(" -> ", out);
    if (change->is != NULL) print_word(out, change->is, change->share_is);
    fputc('\n', out);
    return M3_OK;
}

static int print_json(FILE *out, const char *name, const struct change *change, struct m3_error *error)
{
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "type", "change", "change", name, "tap", change->tap, "was",
                  m3_json_text(change->was), "is", m3_json_text(change->is), "headroom_was",
                  m3_json_known(change->share_was), "headroom_is", m3_json_known(change->share_is));
    return m3_json_line(out, line, error);
}

/* What is said of one stage, if it is of the kind that is being printed. */
struct printing {
    FILE *out;
    enum m3_baseline_change kind;        /* M3_BASELINE_KINDS: only counts */
    int64_t *counts;
    int64_t room;               /* lines that may still be printed */
    int json;
    struct m3_error *error;
};

static int say(struct printing *p, const struct change *change)
{
    static const char *const names[M3_BASELINE_KINDS] = { "worse", "missing", "better", "new", "same" };
    const enum m3_baseline_change kind = kind_of(change);
    if (p->kind == M3_BASELINE_KINDS) p->counts[kind]++;
    if (p->kind != kind || p->room-- <= 0) return M3_OK;
    return (p->json ? print_json : print_text)(p->out, names[kind], change, p->error);
}

/* Every stage of either side: those of the comparison in their order, then those that only the baseline has. */
static int each(struct printing *p, const struct m3_baseline *baseline, const struct m3_judgement *comparison)
{
    json_t *gone = json_copy(baseline->stages);
    int status = gone == NULL ? m3_fail_memory(p->error, "the baseline", 0) : M3_OK;
    for (int64_t i = 0; i <= comparison->count && status == M3_OK; i++) {
        const struct m3_finding *stage = i < comparison->count ? &comparison->findings[i] : &comparison->next_token;
        if (stage->tap == NULL) continue;
        const struct change change = change_of(stage, baseline);
        json_object_del(gone, change.tap);
        status = say(p, &change);
    }
    const char *tap;
    json_t *line;
    json_object_foreach(gone, tap, line)
    {
        const struct change change = { .tap = tap,
                                       .was = json_string_value(json_object_get(line, "verdict")),
                                       .share_was = share_of(line),
                                       .share_is = NAN };
        if (status == M3_OK) status = say(p, &change);
    }
    json_decref(gone);
    return status;
}

static int print_counts(FILE *out, const int64_t *counts, const char *path, int json, struct m3_error *error)
{
    if (!json) {
        fprintf(out,
                "since %s: %" PRId64 " worse, %" PRId64 " missing, %" PRId64 " better, %" PRId64 " new, %" PRId64
                " with the same verdict\n",
                m3_printable(path).text, counts[M3_BASELINE_WORSE], counts[M3_BASELINE_MISSING],
                counts[M3_BASELINE_BETTER], counts[M3_BASELINE_NEW], counts[M3_BASELINE_NONE]);
        return M3_OK;
    }
    return m3_json_line(out,
                        json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:I}", "type", "baseline", "file", m3_json_text(path),
                                  "worse", (json_int_t)counts[M3_BASELINE_WORSE], "missing",
                                  (json_int_t)counts[M3_BASELINE_MISSING], "better",
                                  (json_int_t)counts[M3_BASELINE_BETTER], "new", (json_int_t)counts[M3_BASELINE_NEW],
                                  "same", (json_int_t)counts[M3_BASELINE_NONE]),
                        error);
}

/* Reports of earlier versions do not state what they are of, and dumps of others need not. */
static int check_same(const struct m3_baseline *baseline, const struct m3_judgement *comparison, struct m3_error *error)
{
    const struct {
        const char *what, *field, *is;
    } all[] = { { "model", "model_sha256", comparison->of.model_sha256 },
                { "case", "case_sha256", comparison->of.case_sha256 },
                { "profile", "profile_sha256", comparison->of.profile_sha256 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *was = json_string_value(json_object_get(baseline->summary, all[i].field));
        if (was && all[i].is && strcmp(was, all[i].is) != 0)
            return m3_fail(error, M3_NOT_COMPARABLE, "%s: %s: got %s, expected %s: the report is of another %s",
                           baseline->path, all[i].field, was, all[i].is, all[i].what);
    }
    return M3_OK;
}

int m3_baseline_report(FILE *out, int64_t *counts, const struct m3_baseline *baseline,
                       const struct m3_judgement *comparison, enum m3_report_extent extent, int json,
                       struct m3_error *error)
{
    struct printing p = { .out = out, .kind = M3_BASELINE_KINDS, .counts = counts, .json = json, .error = error };
    p.room = json || extent == M3_REPORT_ALL ? INT64_MAX : M3_REPORT_LINES;
    memset(counts, 0, M3_BASELINE_KINDS * sizeof *counts);
    int status = check_same(baseline, comparison, error);
    if (status == M3_OK) status = each(&p, baseline, comparison);
    if (status == M3_OK) status = print_counts(out, counts, baseline->path, json, error);
    for (p.kind = 0; p.kind < M3_BASELINE_NONE && status == M3_OK; p.kind++) status = each(&p, baseline, comparison);
    if (status == M3_OK && p.room < 0 && !json) m3_print_more(out, -p.room, "stages");
    return status;
}
