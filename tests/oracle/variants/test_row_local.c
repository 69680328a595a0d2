/* Dumps in bf16 that hold outputs of layers or logits, otherwise honest, with a few rows that are wrong, as decoding,
 * caches and ranks fail; compare judges them among honest implementations (SPEC 7.10). */
#include "program.h"
#include "mistaken.h"

#include <math.h>

#define MODEL "golden/tiny/model"
#define CASE "golden/tiny/case.safetensors"

static struct m3_error error, notes;
static struct m3_model *model;
static struct m3_case the_case;
static struct m3_profile *profile;
static struct m3_honest *honest;

static void good(int status) { ck_assert_msg(status == 0, "status %d: %s", status, error.text ? error.text : ""); }

static void make_truth(void)
{
    make_folder();
    ck_assert_int_eq(
        m3ref("run " MODEL " --case " CASE " --precision f64 --bounds --profile bf16 --dump %s", in_folder("truth")),
        0);
}

static void setup(void)
{
    good(m3_model_open(&model, MODEL, &notes, &error));
    good(m3_case_read(&the_case, CASE, &model->config, &error));
    good(m3_profile_open(&profile, "bf16", &error));
    good(m3_honest_new(&honest, model, &model->config.semantics, profile, NULL, the_case.T, &error));
}

static void teardown(void)
{
    m3_honest_free(honest);
    m3_profile_close(profile);
    m3_case_free(&the_case);
    m3_model_close(model);
}

TIMEOUT(300);
FIXTURE(setup, teardown);
FIXTURE_ONCE(make_truth, remove_folder);

/* Moves rows of a tap of the candidate toward the row `back` before them, or toward 0 if that is 0: 1 is all the way. */
static void spoil(const char *tap, int64_t first, int64_t count, int64_t back, double share)
{
    struct m3_safetensors *file;
    uint64_t header;
    good(m3_safetensors_open(&file, in_folder("candidate"), &error));
    const struct m3_tensor *t = m3_safetensors_find(file, tap);
    ck_assert(t && t->dtype == M3_F32 && t->rank == 2);
    const int64_t width = t->shape[1], at = first * width;
    const long place = (const char *)t->data - (const char *)m3_safetensors_header(file, &header);
    float *rows = malloc((size_t)(count * width) * sizeof *rows);
    for (int64_t i = 0; i < count * width; i++) {
        const double own = m3_decode(t->dtype, t->data, at + i),
                     other = back > 0 ? m3_decode(t->dtype, t->data, at + i - back * width) : 0;
        rows[i] = (float)(own + share * (other - own));
    }
    m3_safetensors_close(file);
    FILE *out = fopen(in_folder("candidate"), "r+b");
    ck_assert(out && fseek(out, place + at * 4, SEEK_SET) == 0);
    ck_assert_int_eq(fwrite(rows, sizeof *rows, (size_t)(count * width), out), (size_t)(count * width));
    fclose(out);
    free(rows);
}

static int compare(const char *taps)
{
    char truth[512];
    snprintf(truth, sizeof truth, "%s", in_folder("truth"));
    return m3ref("compare %s %s --profile bf16 --taps '%s'", truth, in_folder("candidate"), taps);
}

/* Claim: honest draws pass; a mistake in a few rows from one layer on, too small or too rare to move a quantile of all
 * rows, does not, in outputs as in logits; the last line says which rows are off.
 * Seen to fail with the quantiles alone: half of them pass, and no rows are named; and, for copies, without them. */
static const struct {
    const char *what;
    int layer;                          /* -1: logits */
    int64_t first, count, back;
    double share;
    const char *says;
} mistakes[] = {
    { "a split-KV merge, in the last rows", 2, 63, 4, 20, 0.1, "rows 63 to 66 only" },
    { "an all-reduce lost", 1, 30, 2, 1, 0.2, "rows 30 to 31 only" },
    { "a stale norm", 2, 20, 3, 1, 0.3, "only, each" },
    { "pad rows routed", 3, 63, 4, 30, 0.4, "to 66 only" },
    { "a picture one row late", 1, 40, 6, 1, 0.1, "rows 40 to 45 only" },
    { "all rows from a position on", 1, 50, 17, 3, 0.04, "to 66 only" },
    { "one row before any choice", 0, 33, 1, 1, 0.05, "row 33 only" },
    { "one row that holds another", 4, 14, 1, 7, 1, "row 14 only" },
    { "logits of the last rows", -1, 62, 5, 1, 0.2, "to 66 only" },
    { "logits of one row that holds another", -1, 14, 1, 7, 1, "row 14 only" },
    { "one row of zeros", 4, 59, 1, 0, 1, "row 59 only" },
    { "logits of one row of zeros", -1, 44, 1, 0, 1, "row 44 only" },
};

LOOP_TEST(few_rows, sizeof mistakes / sizeof *mistakes)
{
    const char *taps = mistakes[_i].layer < 0 ? "logits" : "layers.*.out";
    good(honest_dump(in_folder("candidate"), taps, honest, 100 + _i, model, &the_case, &error));
    ck_assert_msg(compare(taps) == 0, "%s", mistakes[_i].what);
    for (int layer = mistakes[_i].layer; layer < (mistakes[_i].layer < 0 ? 0 : model->config.layers); layer++) {
        char tap[32];
        snprintf(tap, sizeof tap, layer < 0 ? "logits" : "layers.%d.out", layer);
        spoil(tap, mistakes[_i].first, mistakes[_i].count, mistakes[_i].back, mistakes[_i].share);
    }
    const int status = compare(taps);
    ck_assert_msg(status == 1 || status == 2, "%s: exit %d", mistakes[_i].what, status);
    ck_assert_msg(last_line_has(mistakes[_i].says), "%s: the rows are not named", mistakes[_i].what);
}
