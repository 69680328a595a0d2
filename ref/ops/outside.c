#include "ops/outside.h"

#include <string.h>

#include "ops/operators.h"

static const enum m3_dtype real_dtype = sizeof(real) == sizeof(double) ? M3_F64 : M3_F32;

/* ---- what is in a call: the words of M3_CALL_name (operators.def) */

enum kind {
    /* Operands. */
    REALS,
    FLAT,                /* FLAT: n numbers, of whatever shape */
    IDS,
    PLACES,                /* int32_t, int64_t */
    MATRIX,
    EXPERTS,            /* struct m3_weight; struct m3_expert [E], three operands */
    KEY,                        /* 64 bits, which no parameter holds */
    /* Sizes; the COUNTs are parameters, too. HALF: the letter's size is half of it. */
    SIZE,
    COUNT,
    HALF,
    HALF_COUNT,
    SEGMENTS,                   /* of the ends that come before it */
    /* Parameters, and structs of sizes and parameters. */
    REAL,
    DOUBLE,
    ID,
    ANGLE,
    ATTEND,
    ATTEND_BLOCKS,
    SCORES,
    SELECTION,
    ACTIVATION,
    GATED,          /* of swiglu_oai; of experts, which may have either */
};

/* An argument of C, and where it stands. */
struct argument {
    enum kind kind;
    enum { AN_INPUT, AN_OUTPUT, MAY_BE_LEFT_OUT } use;
    const char *name, *letters;
    void *at;
};

/* Pointers of all types are stored alike. */
static void *pointer_at(const struct argument *a)
{
    void *pointer;
    memcpy(&pointer, a->at, sizeof pointer);
    return pointer;
}

static void point(const struct argument *a, const void *to) { memcpy(a->at, &to, sizeof to); }

/* ---- sizes by their letters */

struct sizes {
    int64_t of[128];
};

static void set_size(struct sizes *s, char letter, int64_t size) { s->of[(unsigned char)letter] = size; }

static void attend_sizes(struct sizes *s, const struct m3_attend *d)
{
    const int64_t all[] = { d->T, d->p0 + d->T, d->Q, d->G, d->D, d->N };
    for (int i = 0; i < 6; i++) set_size(s, "TSQGDN"[i], all[i]);
}

static void index_sizes(struct sizes *s, const struct m3_index *d)
{
    const int64_t all[] = { d->T, d->p0 + d->T, d->G, d->X, d->B, d->N };
    for (int i = 0; i < 6; i++) set_size(s, "TSGXBN"[i], all[i]);
}

static void take_size(struct sizes *s, const struct argument *a)
{
    const struct m3_weight *w;
    switch (a->kind) {
    case MATRIX:
    case EXPERTS:
        w = pointer_at(a); /* of an expert, its w1 */
        set_size(s, a->letters[a->kind == EXPERTS], w->rows);
        set_size(s, a->letters[1 + (a->kind == EXPERTS)], w->cols);
        break;
    case SIZE:
    case COUNT: set_size(s, *a->letters, *(const int64_t *)a->at); break;
    case HALF:
    case HALF_COUNT: set_size(s, *a->letters, *(const int64_t *)a->at / 2); break;
    case SEGMENTS:
        set_size(s, 'n', *(const int64_t *)a->at);
        set_size(s, 'P', ((const int64_t *)pointer_at(a - 1))[*(const int64_t *)a->at - 1]);
        break;
    case ATTEND:
    case ATTEND_BLOCKS: attend_sizes(s, pointer_at(a)); break;
    case SCORES:
    case SELECTION: index_sizes(s, pointer_at(a)); break;
    default: break;
    }
}

/* ---- operands by name */

/* An absent operand has no entry. */
static struct m3_outside_operand *add(struct m3_outside_call *c, const struct sizes *sizes, const char *name,
                                      enum m3_dtype dtype, void *data, const char *letters)
{
    struct m3_outside_operand *o = &c->operand[c->operands];
    c->operands += data != NULL;
    *o = (struct m3_outside_operand){ .name = name, .dtype = dtype, .data = data };
    for (; letters[o->rank]; o->rank++) {
        const char letter = letters[o->rank];
        o->shape[o->rank] = letter >= '0' && letter <= '9' ? letter - '0' : sizes->of[(unsigned char)letter];
    }
    return o;
}

static void add_weight(struct m3_outside_call *c, const struct sizes *sizes, const char *name,
                       const struct m3_weight *w, const char *letters)
{
    c->weight[c->operands] = w;
    add(c, sizes, name, real_dtype, (void *)(uintptr_t)w, letters)->data = NULL;
}

static void add_experts(struct m3_outside_call *c, const struct sizes *sizes, const struct m3_expert *all)
{
    add_weight(c, sizes, "w1", &all->w1, "EFH");
    add_weight(c, sizes, "w3", &all->w3, "EFH");
    add_weight(c, sizes, "w2", &all->w2, "EHF");
}

static void add_array(struct m3_outside_call *c, const struct sizes *sizes, const struct argument *a)
{
    const enum m3_dtype dtype = a->kind == IDS ? M3_I32 : a->kind == PLACES ? M3_I64 : real_dtype;
    struct m3_outside_operand *o = add(c, sizes, a->name, dtype, pointer_at(a), a->kind == FLAT ? "n" : a->letters);
    o->is_output = a->use != AN_INPUT;
    o->optional = a->use == MAY_BE_LEFT_OUT;
}

static void add_input(struct m3_outside_call *c, const struct sizes *sizes, const struct argument *a)
{
    switch (a->kind) {
    case REALS:
    case FLAT:
    case IDS:
    case PLACES: add_array(c, sizes, a); break;
    case MATRIX: add_weight(c, sizes, a->name, pointer_at(a), a->letters); break;
    case EXPERTS: add_experts(c, sizes, pointer_at(a)); break;
    case KEY: add(c, sizes, a->name, M3_I64, a->at, ""); break;
    case ATTEND:
    case ATTEND_BLOCKS:
        add(c, sizes, "seen", M3_U8, (void *)(uintptr_t)((const struct m3_attend *)pointer_at(a))->seen, "S");
        break;
    case SCORES:
        add(c, sizes, "seen", M3_U8, (void *)(uintptr_t)((const struct m3_index *)pointer_at(a))->seen, "S");
        break;
    default: break;
    }
}

/* ---- parameters by name */

static void number(struct m3_outside_call *c, const char *name, double value)
{
    c->parameter[c->parameters++] = (struct m3_outside_parameter){ .name = name, .number = value };
}

static void word(struct m3_outside_call *c, const char *name, const char *value)
{
    c->parameter[c->parameters++] = (struct m3_outside_parameter){ .name = name, .word = value };
}

static void selection_word(struct m3_outside_call *c, enum m3_selection selection)
{
    static const char *const words[] = { "group", "shared", "union" };
    word(c, "selection", words[selection]);
}

static void add_activation(struct m3_outside_call *c, const struct m3_activation *act)
{
    number(c, "alpha", act->alpha);
    number(c, "limit", act->limit);
    word(c, "gate_clamp", act->clamp == M3_GATE_CLAMP_BOTH ? "both" : "upper");
}

static void add_scoring(struct m3_outside_call *c, const struct m3_index *d)
{
    number(c, "block", (double)d->block);
    word(c, "pool", d->semantics->pool == M3_POOL_LSE ? "lse" : "max");
    word(c, "index_scale", d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? "rsqrt" : "1");
}

static void add_choosing(struct m3_outside_call *c, const struct m3_index *d)
{
    number(c, "block", (double)d->block);
    number(c, "N", (double)d->N);
    number(c, "p0", (double)d->p0);
    selection_word(c, d->semantics->selection);
    number(c, "init_blocks", (double)d->semantics->init_blocks);
    number(c, "local_blocks", (double)d->semantics->local_blocks);
    word(c, "local_rule", d->semantics->local_rule == M3_LOCAL_OWN ? "own" : "last");
}

static void add_parameter(struct m3_outside_call *c, const struct argument *a)
{
    const struct m3_attend *attend;
    const struct m3_activation *act;
    switch (a->kind) {
    case COUNT:
    case HALF_COUNT: number(c, a->name, (double)*(const int64_t *)a->at); break;
    case REAL: number(c, a->name, *(const real *)a->at); break;
    case DOUBLE: number(c, a->name, *(const double *)a->at); break;
    case ID: number(c, a->name, *(const int32_t *)a->at); break;
    case ANGLE: word(c, a->name, *(const enum m3_rope_angle *)a->at == M3_ANGLE_F32 ? "f32" : "f64"); break;
    case ATTEND_BLOCKS:
        attend = pointer_at(a);
        number(c, "block", (double)attend->block);
        selection_word(c, attend->selection);
        break;
    case SCORES: add_scoring(c, pointer_at(a)); break;
    case SELECTION: add_choosing(c, pointer_at(a)); break;
    case GATED:
        act = pointer_at(a);
        word(c, "activation", act->oai ? "swiglu_oai" : "swiglu");
        add_activation(c, act);
        break;
    case ACTIVATION: add_activation(c, pointer_at(a)); break;
    default: break;
    }
}

/* Inputs, what the function may leave out, the other outputs, parameters. */
static void describe(struct m3_outside_call *c, const struct argument *all, int count)
{
    struct sizes sizes = { 0 };
    for (int i = 0; i < count; i++) take_size(&sizes, &all[i]);
    for (int i = 0; i < count; i++)
        if (all[i].use == AN_INPUT) add_input(c, &sizes, &all[i]);
    for (int i = 0; i < count; i++)
        if (all[i].use == MAY_BE_LEFT_OUT) add_array(c, &sizes, &all[i]);
    for (int i = 0; i < count; i++)
        if (all[i].use == AN_OUTPUT) add_array(c, &sizes, &all[i]);
    for (int i = 0; i < count; i++) add_parameter(c, &all[i]);
}

/* ---- the call */

/* The matrices of a weight operand as numbers, in scratch memory: one, or that of every expert. NULL: no memory. */
static real *expanded(struct m3_ctx *ctx, const struct m3_outside_operand *operand, const struct m3_weight *w)
{
    const int64_t count = operand->rank == 3 ? operand->shape[0] : 1, size = w->rows * w->cols;
    real *to = m3_scratch_take(ctx, count * size, sizeof *to);
    for (int64_t e = 0; to && e < count; e++) {
        const char *at = (const char *)w + (size_t)e * sizeof(struct m3_expert);
        const struct m3_weight *one = (const struct m3_weight *)(const void *)at;
        for (int64_t row = 0; row < w->rows; row++) {
            real *y = to + e * size + row * w->cols;
            if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)y, one, row, 0, w->cols);
            else m3_expand_f32((float *)(void *)y, one, row, 0, w->cols);
        }
    }
    return to;
}

static int compute_outside(struct m3_ctx *ctx, struct m3_outside_call *c)
{
    const struct m3_outside *outside = c->outside;
    const size_t mark = m3_scratch_mark(ctx);
    for (int i = 0; i < c->operands; i++)
        if (c->weight[i] && !(c->operand[i].data = expanded(ctx, &c->operand[i], c->weight[i]))) return M3_INTERNAL;
    const int status = outside->function(outside->self, c);
    m3_scratch_release(ctx, mark);
    return status ? m3_fail_at(ctx, status, "the function that replaces the operator failed", -1, -1, -1) : M3_OK;
}

/* Either computes the operator, and *inner is NULL; or prepares the call of *inner. */
static int enter(struct m3_ctx *ctx, struct m3_outside_call *c, const struct m3_ops **inner)
{
    struct m3_outside *outside = c->outside = ctx->plugin;
    *inner = NULL;
    if (outside->function) return compute_outside(ctx, c);
    const int status = outside->before(outside->self, c);
    if (status) return m3_fail_at(ctx, status, "no memory to watch the operator", -1, -1, -1);
    *inner = outside->inner;
    ctx->plugin = outside->inner_state;
    return M3_OK;
}

static int leave(struct m3_ctx *ctx, struct m3_outside_call *c, int status)
{
    ctx->plugin = c->outside;
    return c->outside->after(c->outside->self, c, ctx, status);
}

/* Where the operator finds an operand. */
static void *moved(const struct m3_outside_call *c, const void *data)
{
    for (int i = 0; data && i < c->operands; i++)
        if (c->operand[i].data == data && c->moved[i]) return c->moved[i];
    return (void *)(uintptr_t)data;
}

/* A struct of sizes with `seen` where the operator finds it. */
union here {
    struct m3_attend attend;
    struct m3_index index;
};

/* Points the arguments to where the inner operator finds its operands. */
static void repoint(const struct argument *all, int count, union here *here, const struct m3_outside_call *c)
{
    for (const struct argument *a = all; a < all + count; a++) {
        switch (a->kind) {
        case REALS:
        case FLAT:
        case IDS:
        case PLACES: point(a, moved(c, pointer_at(a))); break;
        case ATTEND:
        case ATTEND_BLOCKS:
            here->attend = *(const struct m3_attend *)pointer_at(a);
            here->attend.seen = moved(c, here->attend.seen);
            point(a, &here->attend);
            break;
        case SCORES:
            here->index = *(const struct m3_index *)pointer_at(a);
            here->index.seen = moved(c, here->index.seen);
            point(a, &here->index);
            break;
        default: break;
        }
    }
}

static int left_out(const struct m3_outside_call *c)
{
    int any = 0;
    for (int i = 0; i < c->operands; i++) any |= c->operand[i].left_out;
    return any;
}

/* Puts scratch memory in the place of the outputs that the function has computed. M3_INTERNAL. */
static int keep_outputs(struct m3_ctx *ctx, const struct argument *all, int count, const struct m3_outside_call *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->operands; i++) {
        int64_t elements = c->operand[i].is_output;
        for (int d = 0; d < c->operand[i].rank; d++) elements *= c->operand[i].shape[d];
        most = elements > most ? elements : most;
    }
    real *unused = m3_scratch_take(ctx, most, sizeof *unused);
    for (int i = 0; i < count; i++)
        if (all[i].use == AN_OUTPUT) point(&all[i], unused);
    return unused ? M3_OK : M3_INTERNAL;
}

#define ARGUMENT_OUT(type, name, ...) , type name
#define ARGUMENT_MAYBE_OUT(type, name, ...) , type name
#define ARGUMENT_IN(type, name, ...) , type name
#define ARGUMENT_EXTRA(type, name, ...) , type name
#define ARGUMENT_VALUE(type, name, ...) , type name
#define ARGUMENT_ROW(...)

#define DESCRIBE_OUT(type, name, kind, letters, ...) { kind, AN_OUTPUT, #name, letters, &name },
#define DESCRIBE_MAYBE_OUT(type, name, kind, letters, ...) { kind, MAY_BE_LEFT_OUT, #name, letters, &name },
#define DESCRIBE_IN(type, name, kind, letters, ...) { kind, AN_INPUT, #name, letters, &name },
#define DESCRIBE_EXTRA(type, name, kind, letters) { kind, AN_INPUT, #name, letters, &name },
#define DESCRIBE_VALUE(type, name, kind, letters) { kind, AN_INPUT, #name, letters, &name },
#define DESCRIBE_ROW(...)

#define NAME_OUT(type, name, ...) , name
#define NAME_MAYBE_OUT(type, name, ...) , name
#define NAME_IN(type, name, ...) , name
#define NAME_EXTRA(type, name, ...) , name
#define NAME_VALUE(type, name, ...) , name
#define NAME_ROW(...)

#define NONE(...)

/* What the function leaves out, the reference computes. */
#define OPERATOR(entry, ...)                                                                                           \
    static int outside_##entry(struct m3_ctx *ctx M3_CALL_##entry(ARGUMENT_))                                          \
    {                                                                                                                  \
        struct m3_outside_call c = { .op = #entry };                                                                   \
        const struct argument all[] = { M3_CALL_##entry(DESCRIBE_) };                                                  \
        const int count = sizeof all / sizeof all[0];                                                                  \
        const struct m3_ops *inner;                                                                                    \
        union here here;                                                                                               \
        describe(&c, all, count);                                                                                      \
        int status = enter(ctx, &c, &inner);                                                                           \
        if (inner) {                                                                                                   \
            repoint(all, count, &here, &c);                                                                            \
            return leave(ctx, &c, inner->entry(ctx M3_CALL_##entry(NAME_)));                                           \
        }                                                                                                              \
        if (status || !left_out(&c)) return status;                                                                    \
        const size_t mark = m3_scratch_mark(ctx);                                                                      \
        status = keep_outputs(ctx, all, count, &c);                                                                    \
        if (!status) status = m3_fast_ops.entry(ctx M3_CALL_##entry(NAME_));                                           \
        m3_scratch_release(ctx, mark);                                                                                 \
        return status;                                                                                                 \
    }
M3_OPERATORS(OPERATOR, NONE)

/* ---- the table */

#define ENTRY(op, ...) .op = outside_##op,
static const struct m3_ops outside_ops = { .abi_version = M3_OPS_ABI,
                                           .real_bytes = sizeof(real),
                                           M3_OPERATORS(ENTRY, NONE) };

/* Names of the entries, in their order. */
#define TEXT(op, ...) #op,
static const char *const names[] = { M3_OPERATORS(TEXT, NONE) };

/* ---- the other way: from names to arguments */

static const struct m3_outside_operand *operand_named(const struct m3_outside_call *c, const char *name)
{
    for (int i = 0; i < c->operands; i++)
        if (strcmp(c->operand[i].name, name) == 0) return &c->operand[i];
    return NULL;
}

static const struct m3_outside_parameter *parameter_named(const struct m3_outside_call *c, const char *name)
{
    for (int i = 0; i < c->parameters; i++)
        if (strcmp(c->parameter[i].name, name) == 0) return &c->parameter[i];
    return NULL;
}

/* Sizes follow from the shapes of arrays. */
static void sizes_of(struct sizes *s, const struct argument *all, int count, const struct m3_outside_call *c)
{
    for (int i = 0; i < count; i++) {
        const struct m3_outside_operand *o = operand_named(c, all[i].name);
        int64_t n = 1;
        for (int d = 0; o && all[i].kind != FLAT && d < o->rank; d++) set_size(s, all[i].letters[d], o->shape[d]);
        for (int d = 0; o && d < o->rank; d++) n *= o->shape[d];
        if (o && all[i].kind == FLAT) set_size(s, 'n', n);
    }
}

static int take_argument(const struct argument *a, const struct sizes *sizes, const struct m3_outside_call *c)
{
    const struct m3_outside_operand *o = operand_named(c, a->name);
    const struct m3_outside_parameter *p = parameter_named(c, a->name);
    const int64_t size = a->letters[0] ? sizes->of[(unsigned char)a->letters[0]] : 0;
    switch (a->kind) {
    case REALS:
    case FLAT:
    case IDS:
    case PLACES: point(a, o ? o->data : NULL); return M3_OK;
    case SIZE:
    case COUNT: *(int64_t *)a->at = p ? (int64_t)p->number : size; return M3_OK;
    case HALF:
    case HALF_COUNT: *(int64_t *)a->at = p ? (int64_t)p->number : 2 * size; return M3_OK;
    case REAL: *(real *)a->at = p ? (real)p->number : 0; return M3_OK;
    case DOUBLE: *(double *)a->at = p ? p->number : 0; return M3_OK;
    case ID: *(int32_t *)a->at = p ? (int32_t)p->number : 0; return M3_OK;
    case ANGLE:
        *(enum m3_rope_angle *)a->at = p && p->word && strcmp(p->word, "f32") == 0 ? M3_ANGLE_F32 : M3_ANGLE_F64;
        return M3_OK;
    default: return M3_USAGE;
    }
}

static int take_arguments(const struct argument *all, int count, const struct m3_outside_call *c)
{
    struct sizes sizes = { 0 };
    int status = M3_OK;
    sizes_of(&sizes, all, count, c);
    for (int i = 0; !status && i < count; i++) status = take_argument(&all[i], &sizes, c);
    return status;
}

#define DECLARE_OUT(type, name, ...) type name = { 0 };
#define DECLARE_MAYBE_OUT(type, name, ...) type name = { 0 };
#define DECLARE_IN(type, name, ...) type name = { 0 };
#define DECLARE_EXTRA(type, name, ...) type name = { 0 };
#define DECLARE_VALUE(type, name, ...) type name = { 0 };
#define DECLARE_ROW(...)

#define CALL(entry, ...)                                                                                               \
    static int call_##entry(struct m3_ctx *ctx, const struct m3_ops *ops, const struct m3_outside_call *c)             \
    {                                                                                                                  \
        M3_CALL_##entry(DECLARE_);                                                                                     \
        const struct argument all[] = { M3_CALL_##entry(DESCRIBE_) };                                                  \
        const int status = take_arguments(all, sizeof all / sizeof all[0], c);                                         \
        return status ? status : ops->entry(ctx M3_CALL_##entry(NAME_));                                               \
    }
M3_OPERATORS(CALL, NONE)

#define CALLED(entry, ...) call_##entry,
static int (*const calls[])(struct m3_ctx *, const struct m3_ops *,
                            const struct m3_outside_call *) = { M3_OPERATORS(CALLED, NONE) };

int m3_call_by_name(struct m3_ctx *ctx, const struct m3_ops *ops, const struct m3_outside_call *call)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], call->op) == 0) return calls[i](ctx, ops, call);
    return M3_USAGE;
}

/* ---- entries that are replaced */

static void replace(struct m3_ops *ops, size_t at)
{
    memcpy((char *)ops + at, (const char *)&outside_ops + at, sizeof(void (*)(void)));
}

int m3_outside_replace(struct m3_ops *ops, const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) {
            replace(ops, offsetof(struct m3_ops, embed) + i * sizeof(void (*)(void)));
            return M3_OK;
        }
    return M3_USAGE;
}

int m3_outside_replace_changed(struct m3_ops *ops, const struct m3_ops *inner, const struct m3_ops *own)
{
    int changed = 0;
    for (size_t at = offsetof(struct m3_ops, embed); at < sizeof *ops; at += sizeof(void (*)(void)))
        if (memcmp((const char *)inner + at, (const char *)own + at, sizeof(void (*)(void))) != 0) {
            replace(ops, at);
            changed++;
        }
    return changed;
}
