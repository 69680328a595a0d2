#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/private/parts.h"

/* The state of reading a formula. The first error is kept; reading continues to the end of the level. */
struct reader {
    const char *formula, *at;
    m3_name_value name_value;
    void *self;
    struct m3_error *error;
    int status, depth;
};

enum { MOST_DEPTH = 64, MOST_NAME = 128 };

/* Exact parts stay below this, so that their sums fit; beyond it they continue as doubles. */
#define MOST_EXACT ((m3_wide)1 << 125)

static const struct m3_value unknown = { .kind = M3_VALUE_UNKNOWN };

static struct m3_value sum(struct reader *r);

static m3_wide magnitude(m3_wide x) { return x < 0 ? -x : x; }

struct m3_value m3_exact(m3_wide over, m3_wide under)
{
    const int whole = over % under == 0;
    const m3_wide sign = under < 0 ? -1 : 1;
    return (struct m3_value){ .kind = M3_VALUE_EXACT,
                              .over = whole ? over / under : sign * over,
                              .under = whole ? 1 : sign * under };
}

static struct m3_value inexact(double x) { return (struct m3_value){ .kind = M3_VALUE_REAL, .real = x }; }

double m3_value_double(const struct m3_value *value)
{
    if (value->kind == M3_VALUE_EXACT) return (double)value->over / (double)value->under;
    return value->kind == M3_VALUE_REAL ? value->real : NAN;
}

static struct m3_value wrong(struct reader *r, const char *expected)
{
    if (!r->status)
        r->status = m3_fail(r->error, M3_BAD_INPUT, "formula %s: at %td: got %s, expected %s", r->formula,
                            r->at - r->formula, *r->at ? r->at : "its end", expected);
    return unknown;
}

static void skip_blanks(struct reader *r)
{
    while (*r->at == ' ') r->at++;
}

static int take(struct reader *r, char c)
{
    skip_blanks(r);
    if (*r->at != c) return 0;
    r->at++;
    return 1;
}

/* Digits, a fraction, a power: no hexadecimal, which strtod would accept. */
static struct m3_value number(struct reader *r)
{
    static const char digits[] = "0123456789";
    const char *end = r->at + strspn(r->at, digits);
    if (*end == '.') end += 1 + strspn(end + 1, digits);
    if (*end == 'e') {
        const char *power = end + 1 + (end[1] == '+' || end[1] == '-');
        if (isdigit((unsigned char)*power)) end = power + strspn(power, digits);
    }
    char text[64];
    size_t length = (size_t)(end - r->at);
    if (length >= sizeof text) return wrong(r, "a shorter number");
    memcpy(text, r->at, length);
    text[length] = '\0';
    r->at = end;
    double x = strtod(text, NULL);
    return x == floor(x) && x < 0x1p53 ? m3_exact((m3_wide)x, 1) : inexact(x);
}

size_t m3_name_length(const char *text)
{
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || (text[n] == '.' && isalnum((unsigned char)text[n + 1])))
        n++;
    return n;
}

static struct m3_value round_to_whole(struct m3_value x, int up)
{
    if (x.kind == M3_VALUE_REAL) return inexact(up ? ceil(x.real) : floor(x.real));
    if (x.kind != M3_VALUE_EXACT || x.under == 1) return x;
    return m3_exact(x.over / x.under + (up && x.over > 0) - (!up && x.over < 0), 1);
}

static int is_less(struct m3_value x, struct m3_value y)
{
    if (x.kind == M3_VALUE_EXACT && y.kind == M3_VALUE_EXACT && x.under == 1 && y.under == 1) return x.over < y.over;
    return m3_value_double(&x) < m3_value_double(&y);
}

static int is_known(struct m3_value x) { return x.kind == M3_VALUE_EXACT || x.kind == M3_VALUE_REAL; }

static struct m3_value call(struct reader *r, const char *name)
{
    const int two = name[0] == 'm';
    struct m3_value x = sum(r), y = x;
    if (two && !take(r, ',')) return wrong(r, "a comma");
    if (two) y = sum(r);
    if (!take(r, ')')) return wrong(r, "a closing parenthesis");
    if (!is_known(x) || !is_known(y)) return unknown;
    if (two) return (strcmp(name, "min") == 0) == is_less(x, y) ? x : y;
    return round_to_whole(x, strcmp(name, "ceil") == 0);
}

static struct m3_value named(struct reader *r)
{
    char name[MOST_NAME];
    const char *begin = r->at;
    size_t length = m3_name_length(begin);
    struct m3_value value;
    if (length >= sizeof name) return wrong(r, "a shorter name");
    memcpy(name, begin, length);
    name[length] = '\0';
    r->at += length;
    if (strcmp(name, "ceil") == 0 || strcmp(name, "floor") == 0 || strcmp(name, "min") == 0 || strcmp(name, "max") == 0)
        return take(r, '(') ? call(r, name) : wrong(r, "a parenthesis");
    if (r->name_value(&value, r->self, name)) return value;
    r->at = begin;
    return wrong(r, "a name, or a key of the summary with a number");
}

static struct m3_value atom(struct reader *r)
{
    skip_blanks(r);
    if (isdigit((unsigned char)*r->at)) return number(r);
    if (isalpha((unsigned char)*r->at)) return named(r);
    if (!take(r, '(')) return wrong(r, "a number, a name or a parenthesis");
    struct m3_value value = sum(r);
    return take(r, ')') ? value : wrong(r, "a closing parenthesis");
}

/* (over / under) (real_over / real_under), the first exact. */
struct factors {
    m3_wide over, under;
    double real_over, real_under;
    int is_real, is_known;
};

static int times(m3_wide *x, m3_wide y)
{
    if (y && magnitude(*x) > MOST_EXACT / magnitude(y)) return 0;
    *x *= y;
    return 1;
}

static void take_factor(struct factors *f, struct m3_value x, int divide)
{
    m3_wide over = f->over, under = f->under;
    f->is_known &= is_known(x);
    if (x.kind == M3_VALUE_EXACT && !(divide && x.over == 0) && times(&over, divide ? x.under : x.over) &&
        times(&under, divide ? x.over : x.under)) {
        struct m3_value reduced = m3_exact(over, under);
        f->over = reduced.over;
        f->under = reduced.under;
        return;
    }
    f->is_real = 1;
    *(divide ? &f->real_under : &f->real_over) *= m3_value_double(&x);
}

static struct m3_value product_of(const struct factors *f)
{
    if (!f->is_known) return unknown;
    if (!f->is_real) return m3_exact(f->over, f->under);
    return inexact(f->real_over * (double)f->over / (f->real_under * (double)f->under));
}

static const struct factors one = { 1, 1, 1, 1, 0, 1 };

static struct m3_value raised(struct m3_value x, struct m3_value y)
{
    struct factors f = one;
    if (!is_known(x) || !is_known(y)) return unknown;
    const int whole = y.kind == M3_VALUE_EXACT && y.under == 1 && y.over >= 0 && y.over < 128;
    for (int i = 0; whole && i < y.over; i++) take_factor(&f, x, 0);
    if (whole && !f.is_real) return product_of(&f);
    return inexact(pow(m3_value_double(&x), m3_value_double(&y)));
}

static struct m3_value power(struct reader *r)
{
    struct m3_value value = unknown;
    if (++r->depth > MOST_DEPTH) wrong(r, "fewer levels");
    else if (take(r, '-')) {
        value = power(r);
        value.over = -value.over;
        value.real = -value.real;
    } else {
        value = atom(r);
        if (!r->status && take(r, '^')) value = raised(value, power(r));
    }
    r->depth--;
    return value;
}

static struct m3_value product(struct reader *r)
{
    struct factors f = one;
    int divide = 0;
    do take_factor(&f, power(r), divide);
    while (!r->status && ((divide = take(r, '/')) || take(r, '*')));
    return product_of(&f);
}

/* An exact part and a double. */
struct terms {
    struct m3_value exact;
    double real;
    int is_real, is_known;
};

static void take_term(struct terms *t, struct m3_value x, int sign)
{
    const struct m3_value *all = &t->exact;
    m3_wide over = all->over, more = x.over, under = all->under;
    t->is_known &= is_known(x);
    if (x.kind == M3_VALUE_EXACT && times(&over, x.under == under ? 1 : x.under) &&
        times(&more, x.under == under ? 1 : under) && times(&under, x.under == under ? 1 : x.under) &&
        magnitude(over + sign * more) <= MOST_EXACT) {
        t->exact = m3_exact(over + sign * more, under);
        return;
    }
    t->is_real = 1;
    t->real += sign * m3_value_double(&x);
}

static struct m3_value sum(struct reader *r)
{
    struct terms t = { .exact = m3_exact(0, 1), .is_known = 1 };
    int minus = 0;
    do take_term(&t, product(r), minus ? -1 : 1);
    while (!r->status && ((minus = take(r, '-')) || take(r, '+')));
    if (!t.is_known) return unknown;
    return t.is_real ? inexact(t.real + m3_value_double(&t.exact)) : t.exact;
}

int m3_formula_value(struct m3_value *value, const char *formula, m3_name_value name_value, void *self,
                     struct m3_error *error)
{
    struct reader r = { .formula = formula, .at = formula, .name_value = name_value, .self = self, .error = error };
    *value = sum(&r);
    skip_blanks(&r);
    if (!r.status && *r.at) wrong(&r, "an operator or the end");
    if (r.status) *value = unknown;
    return r.status;
}
