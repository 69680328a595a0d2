/* m3ref estimate --chart: well-formed XML that refers to nothing, every series there, and at the marks the right values
 * in the right places: those of SPEC 14's tables, read against the picture's own axes.
 *
 * Seen to fail with: an axis linear in the context; a series left out of the stack, or drawn twice; values of the
 * wrong context; marks in the order asked; an angle bracket in the title; a tag left open; the chart written in place;
 * a line of full attention in a model that has nothing else; panels of unknown sums; the time axis off by the cards;
 * the chart in its place before the report. */
#include "program.h"
#include "xml.h"

#include <math.h>

FIXTURE(make_folder, remove_folder);

#define M3 "golden/configs/minimax-m3.json"

static char *picture(void)
{
    size_t count;
    char *text = (char *)read_bytes(in_folder("a.svg"), &count);
    ck_assert_uint_eq(strlen(text), count);
    return text;
}

static double number_after(const char *text, const char *key) { return strtod(past(text, key), NULL); }

/* Slope and offset of the axis on the left of a panel, from its ticks: y = base + value * slope. */
struct axis {
    double base, slope;
};

static struct axis axis_of(const char *panel)
{
    const char *zero = past(panel, "<text class=\"quiet right\" x=\"56\" y=\"");
    const char *next = past(zero, "<text class=\"quiet right\" x=\"56\" y=\"");
    ck_assert(number_after(zero, ">") == 0);
    struct axis a = { .base = strtod(zero, NULL) };
    a.slope = (strtod(next, NULL) - a.base) / number_after(next, ">");
    a.base -= 4; /* words stand lower than their line */
    return a;
}

static const struct {
    const char *title;
    double unit;
    double values[3]; /* at 4K, 128K, 1M */
} panels[] = {
    { "FLOPs of one decoded token", 1e9, { 53931933696, 73825517568, 217572704256 } },
    { "Caches of the batch", 1e9, { 563085312, 18018729984, 144149839872 } },
    { "Read in one step",
      1e9,
      { 49466561280.0 + 25165824 + 239075328 + 59768832, 49466561280.0 + 805306368 + 239075328 + 1912602624,
        49466561280.0 + 6442450944 + 239075328 + 15300820992 } },
};

static void check_marks(const char *text)
{
    static const double contexts[] = { 4096, 131072, 1048576 };
    for (int p = 0; p < 3; p++) {
        const char *at = past(text, panels[p].title);
        const struct axis axis = axis_of(at);
        for (int i = 0; i < 3; i++) {
            at = past(at, "<circle class=\"dot\"");
            double value = panels[p].values[i];
            ck_assert_msg(fabs(number_after(at, "cx=\"") - (64 + 560 * log2(contexts[i] / 1024) / 10)) < 0.011,
                          "%s: %.17g is at %.40s", panels[p].title, contexts[i], at);
            ck_assert_msg(fabs(number_after(at, "cy=\"") - (axis.base + axis.slope * value / panels[p].unit)) < 0.03,
                          "%s: %.17g is at %.60s", panels[p].title, value, at);
            ck_assert(number_after(at, "context ") == contexts[i]);
            ck_assert(number_after(past(at, "context "), ": ") == value);
        }
    }
}

/* Heights of the areas at the last context, from the bottom, in GFLOP: the first point of the lower edge of each is
 * where it turns back. */
static void check_stack(const char *text)
{
    static const struct {
        const char *name;
        double giga;
    } parts[] = {
        { "mixture of experts", 32.364822528 },
        { "dense MLP", 1.358954496 },
        { "projections q, k, v, o", 12.83457024 },
        { "index projections", 0.44826624 },
        { "lm_head", 2.458386432 },
        { "chosen blocks", 3.825205248 },
        { "full attention", 103.079215104 },
        { "index scores", 61.203283968 },
    };
    const char *at = past(text, panels[0].title);
    const struct axis axis = axis_of(at);
    double below = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        at = past(at, "<path class=\"c");
        const char *end = past(at, "<title>"), *right = strstr(at, "L624.00 ");
        ck_assert_msg(strncmp(end, parts[i].name, strlen(parts[i].name)) == 0, "%.30s", end);
        double upper = strtod(right + 8, NULL), lower = number_after(right + 8, "L624.00 ");
        ck_assert(fabs(upper - (axis.base + axis.slope * (below + parts[i].giga))) < 0.03);
        ck_assert(fabs(lower - (axis.base + axis.slope * below)) < 0.03);
        below += parts[i].giga;
        char row[100];
        snprintf(row, sizeof row, ">%s</text>\n<text class=\"right\" x=\"944\"", parts[i].name);
        ck_assert_msg(strstr(text, row) != NULL, "no %s in the legend", parts[i].name);
    }
    /* At 64K, with full layers alone: 49,016,733,696 + 60 x 32,768 x 65,536. */
    at = past(text, "<path class=\"line\" clip-path=");
    ck_assert(fabs(number_after(at, "L400.00 ") - (axis.base + axis.slope * (49.016733696 + 128.84901888))) < 0.03);
}

TEST(released_model)
{
    ck_assert_int_eq(
        m3ref("estimate " M3 " --context 1M,4K,128K --gpu h200 --gpus 8 --chart %s --json", in_folder("a.svg")), 0);
    ck_assert_int_eq(entries(), 3);
    char *text = picture();
    ck_assert_int_gt(check_xml(text), 100);
    check_marks(text);
    check_stack(text);
    ck_assert(strstr(text, "prefers-color-scheme: dark"));
    ck_assert(strstr(text, "batch 1, weights bf16, keys and values bf16, index keys bf16, 8 x h200"));
    ck_assert(!strstr(text, "<script") && !strstr(text, "href") && !strstr(text, "@import"));
    char *address = strstr(text, "http");
    ck_assert(strncmp(address, "http://www.w3.org/2000/svg", 26) == 0 && !strstr(address + 4, "http"));

    /* The right axis: 1 ms is what eight cards read in it, 38.4 GB. */
    const char *at = past(text, panels[2].title);
    const struct axis axis = axis_of(at);
    at = past(past(past(at, "<text class=\"quiet\" x=\"632\""), "<text class=\"quiet\" x=\"632\""), "y=\"");
    ck_assert(fabs(strtod(at, NULL) - 4 - (axis.base + axis.slope * 38.4 * number_after(at, ">"))) < 0.03);
    free(text);
}

static const struct {
    const char *arguments;
    int panels, lines, dots;
} others[] = {
    { "golden/configs/llama-3-70b.json", 3, 0, 0 },
    { "golden/configs/llama-3-70b.json --context 1,8192,8K", 3, 0, 6 },
    { "golden/configs/llama-3-70b.json --context 1,1M --allow-long", 3, 0, 6 },
    { "golden/configs/nemotron-3-ultra.json --gpu b200", 3, 0, 0 },
    { "golden/configs/kimi-k2.5.json --context 3000 --gpu a100", 2, 0, 2 },
    { "golden/configs/nemotron-3-ultra.json --context 2K --batch 3", 2, 0, 2 },
    { "golden/tiny/model/config.json", 3, 1, 0 },
    { "golden/tiny/model --context 1,2,3,4,5", 3, 1, 15 },
    { M3 " --context 1 --batch 1M --gpu h200 --explain keys_main", 3, 2, 3 }, /* FLOPs bind: their line */
};

LOOP_TEST(other_models, sizeof others / sizeof others[0])
{
    ck_assert_int_eq(m3ref("estimate %s --chart %s", others[_i].arguments, in_folder("a.svg")), 0);
    char *text = picture();
    check_xml(text);
    ck_assert_int_eq(places(text, "class=\"head\""), others[_i].panels);
    ck_assert_int_eq(places(text, "class=\"line\" clip-path"), others[_i].lines);
    ck_assert_int_eq(places(text, "<circle"), others[_i].dots);
    ck_assert(!strstr(text, "nan") && !strstr(text, "inf") && !strstr(text, "=\"-"));
    free(text);
}

/* What XML cannot hold as it is. */
TEST(odd_title)
{
    copy(M3, in_folder("a<b>&\x01\xff\".json"));
    char name[600] = "";
    for (const char *c = in_folder("a<b>&\x01\xff\".json"); *c; c++)
        snprintf(name + strlen(name), 8, strchr("<>&\"", *c) ? "\\%c" : "%c", *c);
    ck_assert_int_eq(m3ref("estimate %s --chart %s", name, in_folder("a.svg")), 0);
    char *text = picture();
    check_xml(text);
    ck_assert(strstr(text, "a&lt;b&gt;&amp;??&quot;.json</title>"));
    free(text);
}

static const struct {
    const char *model, *name;
    int status;
    const char *says;
} wrong[] = {
    { M3, "no/such/folder/a.svg", 74, "cannot create a temporary file beside it" },
    { M3, "folder.svg", 74, "not a regular file" },
    { M3, "a.png", 64, "expected a name that ends in .svg" },
    { M3, "a.SVG", 64, "expected a name that ends in .svg" },
    { M3 " --batch 1,2", "a.svg", 64, "--chart: got 2 batches, expected one" },
    { M3 " --context 0", "a.svg", 64, "--context: got 0" },
    { "golden/configs/glm-5.1.json", "a.svg", 64,
      "--chart: got a model of which only parameters are known, expected "
      "one whose attention is given" },
    { M3 " --explain nosuch", "a.svg", 64, "--explain: got nosuch" },
    { "golden/configs/nemotron-3-ultra.json --batch 2048M --context 256K", "a.svg", 64, "beyond 2^63" },
};

/* An older picture stays, nothing else is left, and nothing is printed. */
LOOP_TEST(failures, sizeof wrong / sizeof wrong[0])
{
    ck_assert_int_eq(mkdir(in_folder("folder.svg"), 0700), 0);
    write_text(in_folder("a.svg"), "old");
    ck_assert_int_eq(m3ref("estimate %s --chart %s", wrong[_i].model, in_folder(wrong[_i].name)), wrong[_i].status);
    ck_assert(has("err", wrong[_i].says));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert_int_eq(entries(), 4);
    size_t count;
    free(read_bytes(in_folder("out"), &count));
    ck_assert_uint_eq(count, 0);
    char *text = picture();
    ck_assert_str_eq(text, "old");
    free(text);
    ck_assert_int_eq(m3ref("estimate " M3 " --chart %s", in_folder("a.svg")), 0);
    check_xml(text = picture());
    free(text);
}

/* A report that nobody can read: the older picture stays too. */
TEST(output_fails)
{
    char command[1000];
    const char *build = getenv("BUILD");
    write_text(in_folder("a.svg"), "old");
    snprintf(command, sizeof command, "%s/m3ref estimate " M3 " --chart %s >/dev/full 2>%s", build ? build : "build",
             in_folder("a.svg"), in_folder("err"));
    int status = system(command);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 74);
    ck_assert(has("err", "standard output: cannot be written"));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert_int_eq(entries(), 2);
    char *text = picture();
    ck_assert_str_eq(text, "old");
    free(text);
}
