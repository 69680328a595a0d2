#include "oracle/operators/make.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/version.h"
#include "io/json.h"
#include "io/new_file.h"
#include "io/reading.h"
#include "oracle/operators/plans/planned.h"
#include "oracle/operators/plans/sizes.h"
#include "oracle/operators/which.h"

/* Cases up to this size are tried with every mistake; larger ones are written in pieces. */
static const uint64_t small_bytes = 16u << 20;
enum { PIECE = 1 << 18 };

struct making {
    const struct m3_operator_row *op;
    const struct m3_make_options *options;
    struct m3_make_summary *summary;
    struct m3_planned_case *cases;
    json_t **catches;           /* [count] of each case */
    unsigned char *are_of;      /* [mistakes] of this operator */
    unsigned char *caught;      /* [mistakes] by any case; then whether it has an effect in any */
    int64_t count;
    int64_t written, to_write;  /* bytes */
    struct m3_evaluation before; /* the right results of the case before */
    struct m3_profile *profile; /* fp32, by which results are judged */
    struct m3_ctx ctx;
    struct m3_error *error;
};

/* ---- what false results the cases catch */

struct finding {
    const struct m3_planned_case *c;
};

static int find(void *self, const char *operand, struct m3_tensor *tensor)
{
    const struct m3_planned_case *c = ((const struct finding *)self)->c;
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->operands[i].row->name, operand) == 0) {
            *tensor = c->operands[i].tensor;
            return 1;
        }
    return 0;
}

static int call_of(struct m3_fragment **call, const struct making *m, const struct m3_planned_case *c)
{
    char name[224];
    struct finding finding = { c };
    snprintf(name, sizeof name, "case %" PRId64 " (%s)", c->number, c->what);
    const struct m3_operand_source source = { &finding, find, c->parameters, name, NULL };
    return m3_fragment_make(call, c->op, &source, m->error);
}

/* Does the verdict on these results say that they are wrong? */
static int is_wrong(int *wrong, struct making *m, const struct m3_fragment *call, const struct m3_results *results)
{
    struct m3_finding stages[M3_OPERATOR_OUTPUTS];
    int count = 0;
    int status = m3_check_call(stages, &count, call, results, m->profile, &m->ctx, m->error);
    *wrong = 0;
    for (int i = 0; !status && i < count; i++) *wrong |= stages[i].candidate && stages[i].verdict != M3_VERDICT_PASS;
    return status;
}

static struct m3_results results_of(const struct m3_evaluation *values, const struct m3_planned_case *c)
{
    struct m3_results results = { .rows = c->row_count ? c->rows : NULL, .count = c->row_count };
    memcpy(results.outputs, values->outputs, sizeof results.outputs);
    return results;
}

/* Which idle results some case catches; those that every case lets pass would pass the whole set. */
struct idle {
    int zeros, copies, stale;
    int copied;                 /* an output of some case has the shape of an operand */
    int repeated;               /* some case comes after another one */
};

/* Zeros, and for outputs of the shape of an operand its values: what a kernel that does nothing may leave. */
static int try_idle(struct idle *idle, struct making *m, const struct m3_fragment *call, const struct m3_results *right,
                    int copied)
{
    struct m3_results results = { .rows = right->rows, .count = right->count };
    void *owned[M3_OPERATOR_OUTPUTS] = { 0 };
    int status = M3_OK, applies = !copied, caught = 0;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && right->outputs[i].rank > 0; i++) {
        struct m3_tensor *t = &results.outputs[i];
        *t = right->outputs[i];
        t->data = owned[i] = calloc((size_t)t->bytes + 1, 1);
        if (!owned[i]) status = m3_fail_memory(m->error, t->name, t->bytes);
        for (int k = 0; copied && k < M3_OPERATOR_OPERANDS; k++) {
            const struct m3_tensor *x = &call->operands[k];
            if (x->rank != t->rank || x->count != t->count || (x->dtype == M3_I32) != (t->dtype == M3_I32)) continue;
            *t = *x;
            applies = 1;
            break;
        }
    }
    if (!status && applies) status = is_wrong(&caught, m, call, &results);
    if (copied) idle->copied |= applies, idle->copies |= caught;
    else idle->zeros |= caught;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS; i++) free(owned[i]);
    return status;
}

/* The results of the case before, as a buffer holds them that nobody wrote to: of other sizes, their first elements
 * again and again. */
static int try_stale(struct idle *idle, struct making *m, const struct m3_fragment *call,
                     const struct m3_results *right)
{
    struct m3_results results = { .rows = right->rows, .count = right->count };
    void *owned[M3_OPERATOR_OUTPUTS] = { 0 };
    int status = M3_OK, caught = 0;
    if (m->before.outputs[0].rank == 0) return M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS && right->outputs[i].rank > 0; i++) {
        const struct m3_tensor *from = &m->before.outputs[i];
        struct m3_tensor *t = &results.outputs[i];
        const size_t size = m3_dtype_bytes(from->dtype);
        *t = right->outputs[i];
        t->data = owned[i] = calloc((size_t)t->bytes + 1, 1);
        if (!owned[i]) status = m3_fail_memory(m->error, t->name, t->bytes);
        for (int64_t k = 0; !status && from->count > 0 && k < t->count; k++)
            memcpy((char *)owned[i] + (size_t)k * size, (const char *)from->data + (size_t)(k % from->count) * size,
                   size);
    }
    if (!status) status = is_wrong(&caught, m, call, &results);
    idle->repeated = 1;
    idle->stale |= caught;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS; i++) free(owned[i]);
    return status;
}

/* Every profile permits angles that are formed in float: no case can show them. */
static int is_permitted(const struct m3_mistake *mistake)
{
    return mistake->reading && strcmp(mistake->reading, "rope_angle=f32") == 0;
}

static int try_mistakes(struct making *m, int64_t at, const struct m3_fragment *call, const struct m3_evaluation *right)
{
    const struct m3_planned_case *c = &m->cases[at];
    const struct m3_results truth = results_of(right, c);
    const int all = m3_operator_mistakes();
    int status = M3_OK;
    for (int k = 0; !status && k < all; k++) {
        const struct m3_mistake *mistake = m3_operator_mistake_at(k);
        struct m3_evaluation values;
        int applies, wrong = 0;
        if (!m->are_of[k] || is_permitted(mistake)) continue;
        status = m3_mistake_evaluate(&values, &applies, call, mistake, truth.rows, truth.count, m->error);
        const double effect = !status && applies ? m3_results_distance(&truth, &values) : 0;
        if (effect > 1e-6) {
            const struct m3_results results = results_of(&values, c);
            m->caught[all + k] = 1;
            status = is_wrong(&wrong, m, call, &results);
            m->caught[k] |= wrong != 0;
            if (wrong && json_array_append_new(m->catches[at], json_string(mistake->id))) status = M3_INTERNAL;
        }
        m3_evaluation_free(&values);
    }
    return status;
}

static int try_case(struct making *m, int64_t at, struct idle *caught)
{
    struct m3_planned_case *c = &m->cases[at];
    const struct m3_evaluation_how how = { .engine = m3_engine_f64(),
                                           .threads = m->ctx.threads,
                                           .linear = M3_LINEAR_ORDERED,
                                           .rows = c->row_count ? c->rows : NULL,
                                           .count = c->row_count };
    struct m3_fragment *call = NULL;
    struct m3_evaluation right = { 0 };
    int status = m3_planned_generate(c, m->error);
    if (!status) status = call_of(&call, m, c);
    /* Nobody but the user chose these sizes. */
    if (status == M3_BAD_INPUT) status = m->error->status = M3_USAGE;
    if (!status) status = m3_evaluate(&right, call, &how, m->error);
    const struct m3_results truth = results_of(&right, c);
    if (!status) status = try_idle(caught, m, call, &truth, 0);
    if (!status) status = try_idle(caught, m, call, &truth, 1);
    if (!status) status = try_stale(caught, m, call, &truth);
    if (!status) status = try_mistakes(m, at, call, &right);
    m3_evaluation_free(&m->before);
    m->before = right;
    m3_fragment_free(call);
    return status;
}

/* A case too large to be tried is still checked as a call: what its lists and ids say must fit. */
static int check_large(struct making *m, struct m3_planned_case *c)
{
    struct m3_fragment *call = NULL;
    void *made[M3_OPERATOR_OPERANDS] = { 0 };
    int status = M3_OK;
    for (int i = 0; !status && i < c->count; i++) {
        struct m3_planned_operand *x = &c->operands[i];
        const enum m3_dtype dtype = x->tensor.dtype;
        x->tensor.data = x->row;        /* only shapes are read of reals */
        if (dtype != M3_I32 && dtype != M3_I64 && dtype != M3_U8) continue;
        made[i] = malloc((size_t)x->tensor.bytes + 1);
        if (!made[i]) status = m3_fail_memory(m->error, x->row->name, x->tensor.bytes);
        else m3_planned_piece(made[i], x, 0, x->tensor.count);
        x->tensor.data = made[i];
    }
    if (!status) status = call_of(&call, m, c);
    if (status == M3_BAD_INPUT) status = m->error->status = M3_USAGE;
    m3_fragment_free(call);
    for (int i = 0; i < c->count; i++) {
        c->operands[i].tensor.data = NULL;
        free(made[i]);
    }
    return status;
}

static int refuse_weak(struct making *m, const struct idle *idle)
{
    const int all = m3_operator_mistakes();
    for (int k = 0; k < all; k++) {
        m->summary->mistakes += m->caught[all + k];
        m->summary->caught += m->caught[all + k] && m->caught[k];
        if (m->caught[all + k] && !m->caught[k])
            return m3_fail(m->error, M3_WRONG, "%s: refused: the mistake %s would pass these cases", m->op->name,
                           m3_operator_mistake_at(k)->id);
    }
    if (!idle->zeros)
        return m3_fail(m->error, M3_WRONG, "%s: refused: results of zeros would pass these cases", m->op->name);
    if (idle->copied && !idle->copies)
        return m3_fail(m->error, M3_WRONG, "%s: refused: a copied operand would pass these cases", m->op->name);
    if (idle->repeated && !idle->stale)
        return m3_fail(m->error, M3_WRONG, "%s: refused: the results of the case before would pass these cases",
                       m->op->name);
    return M3_OK;
}

/* ---- the file */

static json_t *described(const struct making *m, int64_t at)
{
    const struct m3_planned_case *c = &m->cases[at];
    json_t *outputs = m3_planned_outputs(c), *rows = c->row_count ? json_array() : json_null();
    for (int64_t i = 0; i < c->row_count; i++) json_array_append_new(rows, json_integer(c->rows[i]));
    json_t *entry =
        json_pack("{s:I, s:s, s:O, s:o, s:o, s:O, s:b}", "case", (json_int_t)c->number, "what", c->what, "params",
                  c->parameters, "outputs", outputs, "rows", rows, "catches", m->catches[at], "exact", c->exact);
    int status;
    json_t *drawn = m3_planned_drawn(c, &status);
    if (status || (drawn && json_object_set(entry, "drawn", drawn))) {
        json_decref(entry);
        entry = NULL;
    }
    json_decref(drawn);
    return entry;
}

static int declare(struct making *m, struct m3_writer *writer)
{
    json_t *list = json_array();
    int status = list ? M3_OK : M3_INTERNAL;
    for (int64_t i = 0; !status && i < m->count; i++) {
        const struct m3_planned_case *c = &m->cases[i];
        json_t *entry = described(m, i);
        if (!entry || json_array_append_new(list, entry)) status = M3_INTERNAL;
        for (int k = 0; !status && k < c->count; k++) {
            const struct m3_tensor *t = &c->operands[k].tensor;
            char name[96];
            if (c->operands[k].is_drawn) continue;
            snprintf(name, sizeof name, "%" PRId64 ".%s", c->number, t->name);
            status = m3_writer_tensor(writer, name, t->dtype, t->rank, t->shape, m->error);
        }
    }
    char *text = status ? NULL : m3_json_dump(list, JSON_COMPACT);
    if (!status && !text) status = m3_fail_memory(m->error, "cases", 0);
    if (!status) status = m3_writer_metadata(writer, "format", "m3ref-cases", m->error);
    if (!status) status = m3_writer_metadata(writer, "format_version", "1", m->error);
    if (!status) status = m3_writer_metadata(writer, "producer", M3_PRODUCER, m->error);
    if (!status) status = m3_writer_metadata(writer, "operator", m->op->name, m->error);
    if (!status) status = m3_writer_metadata(writer, "arithmetic", M3_ARITHMETIC, m->error);
    if (!status) status = m3_writer_metadata(writer, "cases", text, m->error);
    if (!status) status = m3_writer_seal(writer, m->error);
    free(text);
    json_decref(list);
    return status;
}

/* Pieces are generated by all threads, many at a time: on a busy machine threads that wait for each other often spin. */
static int write_operand(struct making *m, struct m3_writer *writer, const struct m3_planned_operand *x)
{
    const size_t size = m3_dtype_bytes(x->tensor.dtype);
    const int64_t room = m3_min((int64_t)m->ctx.threads * 8 * PIECE, x->tensor.count);
    int status = M3_OK;
    if (x->owned) return m3_writer_write(writer, x->owned, x->tensor.bytes, m->error);
    char *pieces = malloc((size_t)room * size + 1);
    if (!pieces) return m3_fail_memory(m->error, x->row->name, (size_t)room * size);
    for (int64_t first = 0; !status && first < x->tensor.count; first += room) {
        const int64_t n = m3_min(room, x->tensor.count - first);
#pragma omp parallel for schedule(dynamic, 1) num_threads(m3_team(&m->ctx, n * 16))
        for (int64_t at = 0; at < n; at += PIECE)
            m3_planned_piece(pieces + (size_t)at * size, x, first + at, m3_min(PIECE, n - at));
        status = m3_writer_write(writer, pieces, (uint64_t)n * size, m->error);
        m->written += n * (int64_t)size;
        m3_tell(&m->options->progress, "bytes written", m->written, m->to_write);
    }
    free(pieces);
    return status;
}

static int is_written_in_pieces(const struct m3_planned_operand *x) { return !x->is_drawn && !x->owned; }

static int write_file(struct making *m, const char *path)
{
    struct m3_writer *writer = NULL;
    int status = m3_writer_new(&writer, path, m->error);
    if (!status) status = declare(m, writer);
    if (!status) status = m3_writer_begin(writer, m->error);
    for (int64_t i = 0; i < m->count; i++)
        for (int k = 0; k < m->cases[i].count; k++)
            if (is_written_in_pieces(&m->cases[i].operands[k]))
                m->to_write += (int64_t)m->cases[i].operands[k].tensor.bytes;
    for (int64_t i = 0; !status && i < m->count; i++)
        for (int k = 0; !status && k < m->cases[i].count; k++)
            if (!m->cases[i].operands[k].is_drawn) status = write_operand(m, writer, &m->cases[i].operands[k]);
    if (!status) return m3_writer_commit(writer, m->error);
    m3_writer_abandon(writer);
    return status;
}

/* ---- the whole */

static void count_case(struct m3_make_summary *set, const struct m3_planned_case *c, int is_structured)
{
    set->cases++;
    set->structured += is_structured;
    set->bytes += c->stored;
    for (int i = 0; i < c->count; i++) set->drawn += c->operands[i].is_drawn ? c->operands[i].tensor.bytes : 0;
}

/* Sizes are checked where there is no case of drawn values, too. */
static int check_sizes(const struct making *m)
{
    int64_t dims[128], p0;
    if (m->options->random > 0) return M3_OK;
    return m3_sizes_choose(dims, &p0, m->op, NULL, m->options, 0, m->error);
}

static int plan_all(struct making *m)
{
    const struct m3_plan *plans = m->options->plans ? m->options->plans : m3_plans;
    const int64_t count = m->options->plans ? m->options->plan_count : m3_plan_count;
    const int64_t most = count + m->options->random;
    m->cases = calloc((size_t)most + 1, sizeof *m->cases);
    m->catches = calloc((size_t)most + 1, sizeof *m->catches);
    m->caught = calloc(2 * (size_t)m3_operator_mistakes() + 1, 1);
    if (!m->cases || !m->catches || !m->caught) return m3_fail_memory(m->error, "cases", (size_t)most);
    int status = check_sizes(m);
    if (!status) status = m3_mistakes_of(&m->are_of, m->op, m->error);
    for (int64_t i = 0; !status && i < most; i++) {
        const struct m3_plan *plan = i < count ? &plans[i] : NULL;
        if (plan && !m3_plan_is_of(plan, m->op->name)) continue;
        status = m3_plan_case(&m->cases[m->count], m->op, plan, m->count, m->options, m->error);
        m->catches[m->count] = json_array();
        count_case(m->summary, &m->cases[m->count], plan != NULL);
        m->count++;
    }
    return status;
}

/* Before a large set is tried, which takes a while, and before the first byte is written. */
static int announce(const struct making *m, const char *path)
{
    if (m->options->announce) m->options->announce(m->op, m->summary);
    return m3_new_file_room(path, m->summary->bytes, m->error);
}

/* Whoever was told of the set is not told of its file again. */
static int write_quietly(struct making *m, const char *path)
{
    struct m3_reading own;
    m3_reading_begin(&own);
    const int status = write_file(m, path);
    m3_reading_end(&own);
    return status;
}

int m3_make_cases(const struct m3_operator_row *op, const char *path, const struct m3_make_options *options,
                  struct m3_make_summary *summary, struct m3_error *error)
{
    struct making m = { .op = op, .options = options, .summary = summary, .error = error };
    struct idle idle = { 0 };
    *summary = (struct m3_make_summary){ 0 };
    if (m3_ctx_init(&m.ctx, 2, M3_LINEAR_ORDERED)) return m3_fail_memory(error, "a context", sizeof m.ctx);
    int status = m3_profile_open(&m.profile, "fp32", error);
    if (!status) status = plan_all(&m);
    const int is_large = summary->bytes + summary->drawn >= M3_LARGE_SET;
    if (!status && is_large) status = announce(&m, path);
    for (int64_t i = 0; !status && i < m.count; i++)
        status = m.cases[i].bytes <= small_bytes ? try_case(&m, i, &idle) : check_large(&m, &m.cases[i]);
    if (!status) status = refuse_weak(&m, &idle);
    if (!status) status = is_large && options->announce ? write_quietly(&m, path) : write_file(&m, path);
    for (int64_t i = 0; i < m.count; i++) {
        m3_planned_free(&m.cases[i]);
        json_decref(m.catches[i]);
    }
    m3_evaluation_free(&m.before);
    free(m.cases);
    free(m.catches);
    free(m.caught);
    free(m.are_of);
    m3_profile_close(m.profile);
    m3_ctx_free(&m.ctx);
    return status;
}
