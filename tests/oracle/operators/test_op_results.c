/* What `op --run` writes equals formulas of the tests (op_witness.h), within the tolerance that it states; and false
 * results never pass `op --check`. Every operator and composite. */
#include "op_witness.h"

#include "model/engine.h"
#include "slice.h"

TIMEOUT(60);
FIXTURE(make_folder, remove_folder);

/* Equal shapes whatever the seed: results for one seed are the stale results of another. */
static const char all_sizes[] = "T=5,H=12,Q=4,G=2,D=8,X=8,V=31,E=6,K=2,F=10,I=14,J=10,N=3,b=4,P=16,A=2,U=12,L=14,W=12,"
                                "M=2,n=1,r=3";
static const struct m3_make_options tiny = { .sizes = M3_SIZES_TINY, .seed = 1, .random = 2, .dtype = M3_F32 };

static const char *cases_path, *results_path;

static void open_set(struct op_set *set, const char *op, uint64_t seed)
{
    struct m3_make_options options = tiny;
    char sizes[256];
    options.given = op_sizes(sizes, op, all_sizes);
    options.seed = seed;
    cases_path = in_folder(seed == 1 ? "cases" : "others");
    results_path = in_folder("results");
    op_make(op, cases_path, &options);
    op_open(set, cases_path);
    witness_all(op, set);
}

/* ---- what the reference gives */

static double largest(const struct op_values *v)
{
    double most = 0;
    for (int64_t i = 0; i < v->count; i++)
        if (isfinite(v->x[i])) most = fmax(most, fabs(v->x[i]));
    return most;
}

/* Each value of `got` (a file of --run) within `share` of the largest of its output plus, with `by_bounds`, within
 * what is allowed; ids are equal. */
static void compare_run(const char *op, struct op_set *set, const char *path, const char *bounds_path, double share)
{
    struct m3_safetensors *file, *bounds;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_safetensors_open(&file, path, &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&bounds, bounds_path, &error), M3_OK);
    for (int64_t i = 0; i < set->count; i++)
        for (int k = 0; k < set->cases[i].output_count; k++) {
            const struct op_values *want = &set->cases[i].outputs[k];
            char name[80];
            snprintf(name, sizeof name, "%s.allowed", want->name);
            struct op_values got = op_tensor(file, set->cases[i].number, want->name);
            struct op_values allowed = op_tensor(bounds, set->cases[i].number, name);
            ck_assert_int_eq(got.count, want->count);
            ck_assert_int_eq(want->is_ids, allowed.x == NULL);
            const double room = share * largest(want);
            for (int64_t e = 0; e < got.count; e++) {
                /* A gradient may cancel to nothing: in double its error is 2^-29 of what is allowed in float. */
                const double least = strstr(op, "_backward") && share > 0 ? 0x1p-28 * allowed.x[e] : 0;
                const double most = want->is_ids ? 0 : fmin(share > 0 ? fmax(room, least) : INFINITY, allowed.x[e]);
                if (got.x[e] == want->x[e] || fabs(got.x[e] - want->x[e]) <= most) continue;
                ck_abort_msg("%s %d.%s [%d]: got %.17g, want %.17g, allowed %g", op, (int)set->cases[i].number,
                             want->name, (int)e, got.x[e], want->x[e], most);
            }
            free(got.x);
            free(allowed.x);
        }
    m3_safetensors_close(file);
    m3_safetensors_close(bounds);
}

/* Goal:  --run gives the operator's results in both precisions, and states a tolerance that is neither too small for
 *        the float engine nor useless.
 * Claim: double: 1e-12 of the output's largest value, and within the tolerance; float: within the tolerance; in drawn
 *        cases the tolerance is below 1e-4 of the output's largest value.
 * Seen to fail with the cached places of every case left out (p0 0). */
LOOP_TEST(runs, m3_operator_rows())
{
    const char *op = m3_operator_at(_i)->name, *doubles = in_folder("doubles"), *floats = in_folder("floats");
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    struct op_set set;
    open_set(&set, op, 1);
    op_run(op, cases_path, doubles, m3_engine_f64());
    op_run(op, cases_path, floats, m3_engine_f32());
    /* an angle of a million turns by 2^-52 of itself (SPEC 5.5) */
    compare_run(op, &set, doubles, doubles, strstr(op, "rope") ? 3e-10 : 1e-12);
    compare_run(op, &set, floats, doubles, 0);
    ck_assert_int_eq(m3_safetensors_open(&file, doubles, &error), M3_OK);
    for (int64_t i = set.count - tiny.random; i < set.count; i++)
        for (int k = 0; k < set.cases[i].output_count; k++) {
            const struct op_values *want = &set.cases[i].outputs[k];
            char name[80];
            snprintf(name, sizeof name, "%s.allowed", want->name);
            struct op_values allowed = op_tensor(file, set.cases[i].number, name);
            for (int64_t e = 0; allowed.x && e < allowed.count; e++)
                ck_assert_msg(allowed.x[e] <= 1e-4 * largest(want), "%s %d.%s: allowed %g, values up to %g", op,
                              (int)set.cases[i].number, want->name, allowed.x[e], largest(want));
            free(allowed.x);
        }
    m3_safetensors_close(file);
    op_close(&set);
}

/* ---- false results */

static void must_fail(const char *op, struct op_set *set, const char *what)
{
    op_write(set, results_path, M3_F32, NULL);
    const struct op_verdict v = op_check(op, cases_path, results_path, "fp32");
    ck_assert_msg(v.status == 1, "%s: %s: status %d: %s", op, what, v.status, v.notes);
}

/* The divergence is this element of this output. */
static void must_name(const char *op, struct op_set *set, const struct op_case *c, const struct op_values *v,
                      int64_t at, const char *what)
{
    char name[96];
    op_write(set, results_path, M3_F32, NULL);
    const struct op_verdict verdict = op_check(op, cases_path, results_path, "fp32");
    snprintf(name, sizeof name, "%d.%s", (int)c->number, v->name);
    ck_assert_msg(verdict.status == 1 && strcmp(verdict.divergence, name) == 0, "%s: %s in %s [%d]: status %d at %s",
                  op, what, name, (int)at, verdict.status, verdict.divergence);
    if (v->is_ids) return;                      /* a choice is named by its row */
    for (int d = v->rank - 1; d >= 0; at /= v->shape[d--])
        ck_assert_msg(verdict.index[d] == at % v->shape[d], "%s: %s in %s: place %d of dimension %d, expected %d", op,
                      what, name, (int)verdict.index[d], d, (int)(at % v->shape[d]));
}

/* Goal:  a single wrong element of any output of a drawn case is found and named.
 * Given: an element four times its tolerance away, then NaN; an id that was not chosen.
 * Seen to fail with p0 0 (another element is named), and while tolerances of --run were narrower than those of the
 *        profile fp32, by which --check judges: angles. A slice has half of the operators. */
LOOP_TEST(single_elements, m3_operator_rows())
{
    if (!in_slice(_i, 2)) return;
    const char *op = m3_operator_at(_i)->name, *doubles = in_folder("doubles");
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    struct op_set set;
    open_set(&set, op, 1);
    op_run(op, cases_path, doubles, m3_engine_f64());
    ck_assert_int_eq(m3_safetensors_open(&file, doubles, &error), M3_OK);
    struct op_case *c = &set.cases[set.count - 1];
    for (int k = 0; k < c->output_count; k++) {
        struct op_values *v = &c->outputs[k];
        char name[80];
        snprintf(name, sizeof name, "%s.allowed", v->name);
        struct op_values allowed = op_tensor(file, c->number, name);
        for (int form = 0; form < 2; form++) {
            int64_t at = (2 * v->count / 3 + form) % v->count;
            while (!v->is_ids && !isfinite(v->x[at])) at = (at + 1) % v->count;
            const double right = v->x[at];
            if (v->is_ids) v->x[at] = form ? 1000 : -7;
            else v->x[at] = form ? NAN : right + 4 * allowed.x[at] + 1e-6 * (fabs(right) + 1e-3);
            must_name(op, &set, c, v, at, form ? "NaN" : "a wrong element");
            v->x[at] = right;
        }
        free(allowed.x);
    }
    m3_safetensors_close(file);
    op_close(&set);
}

/* Goal:  results that a broken kernel leaves are found: zeros; the row before in place of each row of a drawn case. */
LOOP_TEST(idle_and_shifted, m3_operator_rows())
{
    const char *op = m3_operator_at(_i)->name;
    struct op_set set;
    open_set(&set, op, 1);
    struct op_case *c = &set.cases[set.count - 1];
    for (int k = 0; k < c->output_count; k++) {
        struct op_values *v = &c->outputs[k];
        const int64_t width = v->count / v->shape[0];
        memmove(v->x + width, v->x, (size_t)(v->count - width) * sizeof *v->x);
    }
    must_fail(op, &set, "shifted rows");
    for (int64_t i = 0; i < set.count; i++)
        for (int k = 0; k < set.cases[i].output_count; k++)
            memset(set.cases[i].outputs[k].x, 0, (size_t)set.cases[i].outputs[k].count * sizeof(double));
    must_fail(op, &set, "zeros");
    op_close(&set);
}

/* Goal:  an operand that is copied to an output of its shape, and the results of another call, are found.
 * The operands of rope_table do not depend on the seed: its results are never stale in this way. A slice has the other
 * half of the operators. */
LOOP_TEST(copied_and_stale, m3_operator_rows())
{
    if (!in_slice(_i + 1, 2)) return;
    const struct m3_operator_row *row = m3_operator_at(_i);
    struct op_set set, others;
    int copied = 0;
    open_set(&others, row->name, 2);
    open_set(&set, row->name, 1);
    op_write(&others, results_path, M3_F32, NULL);
    const struct op_verdict v = op_check(row->name, cases_path, results_path, "fp32");
    if (strcmp(row->name, "rope_table") != 0) ck_assert_msg(v.status == 1, "%s: stale: status %d", row->name, v.status);
    for (int64_t i = 0; i < set.count; i++) {
        struct op_case *c = &set.cases[i];
        for (int k = 0; k < c->output_count; k++)
            for (int o = 0; o < M3_OPERATOR_OPERANDS && row->operands[o].role != M3_ROLE_NONE; o++) {
                struct op_values x = op_tensor(c->file, c->number, row->operands[o].name);
                const int fits = x.count == c->outputs[k].count && x.is_ids == c->outputs[k].is_ids;
                if (fits) memcpy(c->outputs[k].x, x.x, (size_t)x.count * sizeof *x.x);
                copied |= fits;
                free(x.x);
                if (fits) break;
            }
    }
    if (copied) must_fail(row->name, &set, "a copied operand");
    op_close(&set);
    op_close(&others);
}
