#include "oracle/operators/plans/sizes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "oracle/operators/parameters.h"

/* By letter: tiny, small, real. The released sizes where they are not too large for a file of cases. */
static const struct {
    char letter;
    int64_t size[3];
} sizes[] = {
    { 'T', { 5, 33, 64 } },  { 'H', { 12, 96, 6144 } }, { 'Q', { 4, 8, 64 } },      { 'G', { 2, 4, 4 } },
    { 'D', { 8, 32, 128 } }, { 'X', { 8, 32, 128 } },   { 'V', { 31, 211, 4096 } }, { 'E', { 6, 16, 128 } },
    { 'K', { 2, 4, 4 } },    { 'F', { 10, 40, 3072 } }, { 'I', { 14, 80, 12288 } }, { 'J', { 10, 40, 3072 } },
    { 'N', { 3, 4, 16 } },   { 'b', { 4, 16, 128 } },   { 'P', { 16, 48, 256 } },   { 'A', { 2, 4, 16 } },
    { 'U', { 12, 30, 80 } }, { 'L', { 14, 64, 5120 } }, { 'W', { 12, 120, 1280 } }, { 'M', { 2, 8, 16 } },
    { 'n', { 1, 2, 2 } },    { 'r', { 3, 8, 32 } },
};

/* Parameters that are sizes: so many times the size of the letter. */
static const struct parameter_size {
    const char *name;
    char letter;
    int64_t factor;
} by_parameter[] = { { "R", 'r', 2 }, { "block", 'b', 1 }, { "N", 'N', 1 }, { "K", 'K', 1 } };
enum { BY_PARAMETER = sizeof by_parameter / sizeof by_parameter[0] };

struct choosing {
    const struct m3_operator_row *op;
    int64_t *d;                 /* the sizes by letter */
    unsigned char given[128];
    int is_strict;              /* the list names sizes of this operator alone; plans are shared */
    struct m3_error *error;
};

int64_t m3_size_of_parameter(const char *name, const int64_t dims[128])
{
    for (int i = 0; i < BY_PARAMETER; i++)
        if (strcmp(by_parameter[i].name, name) == 0)
            return by_parameter[i].factor * dims[(unsigned char)by_parameter[i].letter];
    return 0;
}

/* ---- which sizes an operator has */

static int has_parameter(const struct m3_operator_row *op, const char *name)
{
    const struct m3_call_parameter *p;
    for (int i = 0; (p = m3_parameter_in(NULL, op->parameters, i)); i++)
        if (strcmp(p->name, name) == 0) return 1;
    return 0;
}

static int is_size(char letter)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].letter == letter) return 1;
    return letter == 'S' || letter == 'B';
}

/* Drawn cases with a grid have one picture. */
static int has_size(const struct m3_operator_row *op, char letter)
{
    if (letter == 'n' && has_parameter(op, "merge")) return 0;
    if (letter == 'r' && has_parameter(op, "R")) return 1;
    if (letter == 'b') return has_parameter(op, "block");
    return m3_operator_has(op, letter);
}

/* "T, H, R or block": every size of the operator, in the order of its operands. */
struct names {
    char text[160];
    char last[8];
    unsigned char seen[128];
};

static void add_name(struct names *names, char letter)
{
    const size_t n = strlen(names->text);
    if (names->seen[(unsigned char)letter]++) return;
    if (names->last[0]) snprintf(names->text + n, sizeof names->text - n, "%s%s", n > 0 ? ", " : "", names->last);
    if (letter == 'r' || letter == 'b') snprintf(names->last, sizeof names->last, "%s", letter == 'r' ? "R" : "block");
    else snprintf(names->last, sizeof names->last, "%c", letter);
}

static void name_sizes(struct names *names, const struct m3_operator_row *op)
{
    *names = (struct names){ .text = "" };
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        for (const char *at = op->operands[i].letters; *at; at++)
            if (is_size(*at) && has_size(op, *at)) add_name(names, *at);
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && op->outputs[i].role != M3_ROLE_NONE; i++)
        for (const char *at = op->outputs[i].letters; *at; at++)
            if (is_size(*at) && has_size(op, *at)) add_name(names, *at);
    if (has_size(op, 'r')) add_name(names, 'r');
    if (has_size(op, 'b')) add_name(names, 'b');
    const size_t n = strlen(names->text);
    snprintf(names->text + n, sizeof names->text - n, "%s%s", n > 0 ? " or " : "", names->last);
}

/* ---- lists of sizes */

/* The letter that a name stands for, and of how many of it one is; 0: there is no such size. */
static char letter_of(int64_t *factor, const struct choosing *c, const char *name, size_t length)
{
    char letter = length == 1 ? name[0] : '\0';
    *factor = 1;
    for (int i = 0; i < BY_PARAMETER; i++)
        if (strlen(by_parameter[i].name) == length && strncmp(by_parameter[i].name, name, length) == 0) {
            letter = by_parameter[i].letter;
            *factor = by_parameter[i].factor;
        }
    if (!is_size(letter)) return '\0';
    return !c->is_strict || has_size(c->op, letter) ? letter : '\0';
}

static int refuse_name(const struct choosing *c, const char *item, int length, int is_assigned)
{
    struct names names;
    name_sizes(&names, c->op);
    return m3_fail(c->error, M3_USAGE, "sizes: got %.*s, expected %s%s for %s", length, item,
                   is_assigned ? "" : "tiny, small, real or LETTER=SIZE with ", names.text, c->op->name);
}

/* NAME=SIZE. There may be no rows to scatter. */
static int take_item(struct choosing *c, const char *item, size_t length)
{
    if (length == 0) return refuse_name(c, "nothing", 7, 0);
    const size_t name = strcspn(item, "=,");
    const int is_assigned = item[name] == '=', shown = (int)length;
    int64_t factor, size = -1;
    char *end = NULL;
    const char letter = letter_of(&factor, c, item, name);
    if (!is_assigned || !letter) return refuse_name(c, item, shown, is_assigned);
    const int64_t least = letter == 'M' ? 0 : factor, most = letter == 'r' && factor == 1 ? INT32_MAX / 2 : INT32_MAX;
    if (item[name + 1] >= '0' && item[name + 1] <= '9') size = strtoll(item + name + 1, &end, 10);
    if (size < least || size > most || size % factor || end != item + length)
        return m3_fail(c->error, M3_USAGE, "sizes: got %.*s, expected %s number from %" PRId64 " to %" PRId64, shown,
                       item, factor == 2 ? "an even" : "a", least, most / factor * factor);
    if (c->given[(unsigned char)letter]++)
        return m3_fail(c->error, M3_USAGE, "sizes: got %.*s for a size that is given already, expected it once", shown,
                       item);
    c->d[(unsigned char)letter] = size / factor;
    return M3_OK;
}

static int take_list(struct choosing *c, const char *list)
{
    int status = M3_OK;
    for (const char *at = list; !status && *at; at += strcspn(at, ","), at += *at == ',' && at[1])
        status = take_item(c, at, strcspn(at, ","));
    return status;
}

/* ---- sizes of a class */

/* Random cases have sizes around those of their class; relations between them are kept. */
static void vary(int64_t *d, uint64_t key)
{
    static const char varied[] = "THDXVEFIJPLWMr";
    for (const char *letter = varied; *letter; letter++) {
        int64_t *size = &d[(unsigned char)*letter];
        if (*size > 1) *size = m3_max(1, *size / 2 + (int64_t)m3_draw(key, (uint64_t)*letter, (uint64_t)*size + 1));
    }
    d['Q'] = d['G'] * (1 + (int64_t)m3_draw(key, 'Q', 3));
    d['P'] = m3_max(1, d['P'] / 8) * 8;
    d['U'] = d['U'] / 6 * 6 + (int64_t)m3_draw(key, 'U', 2) * 2;
}

/* Each of three axes turns a third of the channels. */
static int is_in_thirds(const struct m3_operator_row *op) { return op->operands[0].role == M3_ROLE_PLACES; }

static void take_class(struct choosing *c, enum m3_size_class class, int is_varied, uint64_t key)
{
    int64_t *d = c->d;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        d[(unsigned char)sizes[i].letter] = sizes[i].size[class];
    if (is_varied && class != M3_SIZES_REAL) vary(d, key);
    /* Attention over a long context: the rows are sampled, but all rows of a derivative are judged. */
    if (class == M3_SIZES_REAL && m3_operator_has(c->op, 'S')) d['T'] = c->op->derivative ? 512 : 65536;
    if (is_in_thirds(c->op)) d['r'] = 3 * m3_max(1, d['r'] / 3);
}

/* Parameters of a plan that are sizes at the same time. */
static void take_plan_parameters(struct choosing *c, const struct m3_plan *plan, int64_t *p0)
{
    char text[M3_PARAMETER_TEXT];
    for (int i = 0; i < BY_PARAMETER; i++) {
        const struct parameter_size *p = &by_parameter[i];
        m3_listed_value(text, sizeof text, plan->parameters, p->name);
        if (text[0]) c->d[(unsigned char)p->letter] = strtoll(text, NULL, 10) / p->factor;
    }
    m3_listed_value(text, sizeof text, plan->parameters, "p0");
    *p0 = text[0] ? strtoll(text, NULL, 10) : 0;
}

/* ---- sizes that follow from others */

/* There are at most as many of `small` as of `large`: the one that is not given follows. */
static int keep_order(struct choosing *c, char small, char large)
{
    int64_t *a = &c->d[(unsigned char)small], *b = &c->d[(unsigned char)large];
    const int has_small = c->given[(unsigned char)small], has_large = c->given[(unsigned char)large];
    if (*a <= *b) return M3_OK;
    if (has_small && has_large)
        return m3_fail(c->error, M3_USAGE, "sizes: got %c=%" PRId64 " with %c=%" PRId64 ", expected at most %" PRId64,
                       small, *a, large, *b, *b);
    if (has_small) *b = *a;
    else *a = *b;
    return M3_OK;
}

/* A number of blocks that is given says how many places there are, unless that is given, too. */
static int settle_places(struct choosing *c, int64_t *p0, int is_drawn)
{
    int64_t *d = c->d;
    const int64_t asked = c->given['B'] ? d['B'] : 0;
    int64_t keys = asked * d['b'];
    int status = M3_OK;
    if (keys > INT32_MAX)
        return m3_fail(c->error, M3_USAGE,
                       "sizes: got B=%" PRId64 " blocks of %" PRId64 " keys, expected at most %d keys", asked, d['b'],
                       INT32_MAX);
    if (c->given['T']) keys = m3_max(keys, d['T']);
    if (m3_operator_has(c->op, 'S')) {
        if (!c->given['S']) d['S'] = asked ? keys : d['T'];
        status = keep_order(c, 'T', 'S');
        *p0 = d['S'] - d['T'];
    } else if (is_drawn && asked) {
        d['T'] = m3_min(d['T'], keys);
        *p0 = keys - d['T'];
    }
    d['B'] = (*p0 + d['T'] + d['b'] - 1) / d['b'];
    if (!status && asked && d['B'] != asked)
        status = m3_fail(c->error, M3_USAGE,
                         "sizes: got B=%" PRId64 ", expected B=%" PRId64 " blocks of %" PRId64 " keys for %" PRId64
                         " places",
                         asked, d['B'], d['b'], *p0 + d['T']);
    return status;
}

/* The groups divide the heads. */
static int settle_heads(struct choosing *c)
{
    int64_t *Q = &c->d['Q'], *G = &c->d['G'];
    if (*Q % *G && !c->given['Q']) *Q = m3_max(1, *Q / *G) * *G;
    if (*Q % *G && !c->given['G'])
        for (*G = m3_min(*G, *Q); *Q % *G;) --*G;
    if (*Q % *G == 0) return M3_OK;
    return m3_fail(c->error, M3_USAGE,
                   "sizes: got Q=%" PRId64 " heads with G=%" PRId64 ", expected a multiple of %" PRId64, *Q, *G, *G);
}

/* Rotated channels are channels of a head. */
static int settle_rotation(struct choosing *c)
{
    int64_t *r = &c->d['r'], *D = &c->d['D'];
    if (is_in_thirds(c->op) && *r % 3)
        return m3_fail(c->error, M3_USAGE, "sizes: got R=%" PRId64 ", expected a multiple of 6 for %s", 2 * *r,
                       c->op->name);
    if (m3_operator_has(c->op, 'D') && *D < 2)
        return m3_fail(c->error, M3_USAGE, "sizes: got D=%" PRId64 ", expected at least 2", *D);
    if (!m3_operator_has(c->op, 'D') || !has_size(c->op, 'r') || 2 * *r <= *D) return M3_OK;
    if (!c->given['r']) *r = m3_max(1, *D / 2);
    else if (!c->given['D']) *D = 2 * *r;
    if (2 * *r <= *D) return M3_OK;
    return m3_fail(c->error, M3_USAGE,
                   "sizes: got R=%" PRId64 " rotated channels with D=%" PRId64 ", expected at most %" PRId64, 2 * *r,
                   *D, *D);
}

/* A picture of 4 rows whose patches are merged 2 by 2; each of three axes turns at least 2 channels. */
static int settle_picture(struct choosing *c)
{
    const int64_t P = c->d['P'], U = c->d['U'];
    if (!has_parameter(c->op, "merge")) return M3_OK;
    if (P % 8)
        return m3_fail(c->error, M3_USAGE, "sizes: got P=%" PRId64 ", expected a multiple of 8 for %s", P, c->op->name);
    if (U < 6)
        return m3_fail(c->error, M3_USAGE, "sizes: got U=%" PRId64 ", expected at least 6 for %s", U, c->op->name);
    return M3_OK;
}

int m3_sizes_choose(int64_t dims[128], int64_t *p0, const struct m3_operator_row *op, const struct m3_plan *plan,
                    const struct m3_make_options *o, uint64_t key, struct m3_error *error)
{
    struct choosing c = { .op = op, .d = dims, .is_strict = !plan, .error = error };
    const char *list = plan ? plan->sizes : o->given;
    memset(dims, 0, 128 * sizeof *dims);
    *p0 = 0;
    /* Edges are those of the plan, whatever the class. */
    take_class(&c, plan ? M3_SIZES_TINY : o->sizes, !plan, key);
    int status = list ? take_list(&c, list) : M3_OK;
    if (status) return status;
    if (plan) take_plan_parameters(&c, plan, p0);
    status = settle_places(&c, p0, !plan);
    if (!status) status = settle_heads(&c);
    if (!status) status = settle_rotation(&c);
    if (!status) status = settle_picture(&c);
    if (!status) status = keep_order(&c, 'K', 'E');
    if (!status) status = keep_order(&c, 'M', 'T');
    if (!status) status = keep_order(&c, 'n', 'P');
    const int is_one_picture = plan ? c.given['P'] && !c.given['n'] : has_parameter(op, "merge");
    if (is_one_picture) dims['n'] = 1;
    return status;
}
