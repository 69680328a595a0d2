#include "oracle/judge/check/truth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/version.h"
#include "io/open.h"
#include "io/reading.h"
#include "io/temporary.h"
#include "model/files/dump.h"
#include "model/semantics.h"
#include "oracle/judge/companions/companions.h"
#include "oracle/judge/companions/companions_write.h"
#include "oracle/variants/rows_beside.h"

/* ---- reuse */

static int states(const struct m3_safetensors *file, const char *key, const char *value)
{
    const char *stated = m3_safetensors_metadata(file, key);
    return stated && value && strcmp(stated, value) == 0;
}

static int compare_reading(int *same, const struct m3_safetensors *file, const struct m3_semantics *semantics,
                           struct m3_error *error)
{
    char *expected = m3_semantics_json(semantics);
    *same = expected && states(file, "semantics", expected);
    free(expected);
    return expected ? M3_OK : m3_fail_memory(error, "the semantics", 0);
}

/* What the file says has written it: a run with as many honest implementations, over these layers, from this input. */
enum { COMMAND = 192 };
static int command_of(char command[COMMAND], const struct m3_envelope_plan *plan, struct m3_error *error)
{
    const size_t values = (size_t)(plan->c->T * plan->model->config.H);
    char hex[65] = "";
    struct m3_sha256 *hash = plan->hidden ? m3_sha256_new() : NULL;
    if (plan->hidden && !hash) return m3_fail_memory(error, "SHA-256", 1);
    if (hash) m3_sha256_add(hash, plan->hidden, values * sizeof *plan->hidden);
    if (hash && m3_sha256_end(hash, hex) != 0) return m3_fail(error, M3_INTERNAL, "SHA-256 failed");
    int n = snprintf(command, COMMAND, "m3ref check --row-runs %" PRId64, plan->row_runs);
    if (plan->end_layer > 0)
        n += snprintf(command + n, COMMAND - (size_t)n, " --layers %" PRId64 ":%" PRId64, plan->first_layer,
                      plan->end_layer);
    if (hash) snprintf(command + n, COMMAND - (size_t)n, " from %s", hex);
    return M3_OK;
}

static int has_profile(const struct m3_safetensors *file, const struct m3_envelope_plan *plan)
{
    return states(file, "command", plan->command) &&
           (plan->row_runs == 0 || states(file, "row_profile_sha256", m3_profile_sha256(plan->profile)));
}

/* The config, and the weights of every file that the pass reads: not those of files that are absent. */
static int has_model(int *same, const struct m3_safetensors *file, const struct m3_model *model, struct m3_error *error)
{
    char config[65];
    const char *weights = NULL;
    int status = m3_checkpoint_config_sha256(model->checkpoint, config, error);
    *same = !status && states(file, "config_sha256", config) && states(file, "arithmetic", M3_ARITHMETIC);
    if (*same) status = m3_checkpoint_weights_sha256(model->checkpoint, &weights, error);
    *same = *same && !status && states(file, "weights_sha256", weights);
    return status;
}

int m3_truth_is_of_run(const struct m3_safetensors *file)
{
    const char *command = m3_safetensors_metadata(file, "command");
    return command && strncmp(command, "m3ref run ", strlen("m3ref run ")) == 0 && m3_companions_in(file);
}

int m3_truth_check_seal(int *whole, const struct m3_safetensors *file, struct m3_error *notes, struct m3_error *error)
{
    struct m3_error why = { 0 };
    int status = m3_safetensors_check_seal(file, &why);
    *whole = !status;
    if (status == M3_BAD_INPUT && !m3_truth_is_of_run(file)) {
        m3_add_notes(notes, &why);
        status = M3_OK;
    } else if (status) {
        m3_fail_because(error, (enum m3_status)status, &why);
    }
    m3_error_free(&why);
    return status;
}

/* ---- truths that `run --precision f64 --bounds` wrote */

/* Options with which a run in double is that of the whole case all the same. */
static int is_of_whole_case(const char *command)
{
    static const char *const options[] = { "--case",      "--ids",    "--prompt",     "--chat",     "--image",
                                           "--video",     "--dump",   "--bounds",     "--profile",  "--runs",
                                           "--precision", "--linear", "--threads",    "--progress", "--set",
                                           "--resume",    "--top",    "--allow-long", "--cache-out" };
    for (const char *at = command; (at = strstr(at, " --")) != NULL;) {
        const size_t length = strcspn(++at, " =");
        int known = 0;
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            known |= strlen(options[i]) == length && strncmp(at, options[i], length) == 0;
        if (!known) return 0;
    }
    return 1;
}

/* Such a file is the user's: it is used or refused, never replaced. *fits 0: it lacks honest implementations. */
static int run_fits(int *fits, const struct m3_safetensors *file, const struct m3_envelope_plan *plan,
                    struct m3_error *error)
{
    const char *differs = NULL;
    const int has_rows = m3_safetensors_metadata(file, "row_profile_sha256") != NULL;
    int same = 0, status = compare_reading(&same, file, plan->semantics, error);
    if (!is_of_whole_case(m3_safetensors_metadata(file, "command")) || !states(file, "precision", "f64"))
        differs = "a run that is not of the whole case in double";
    else if (plan->end_layer > 0 || plan->hidden) differs = "a run of all layers";
    else if (!states(file, "case_sha256", plan->c->sha256)) differs = "another case";
    else if (!same) differs = "another reading";
    if (!status && !differs) {
        status = has_model(&same, file, plan->model, error);
        if (!same) differs = "another model or arithmetic";
    }
    if (!status && differs)
        return m3_fail(error, M3_BAD_INPUT, "%s: got %s, which m3ref run wrote, expected the truth of this check",
                       m3_safetensors_path(file), differs);
    *fits = plan->row_runs == 0 || states(file, "row_profile_sha256", m3_profile_sha256(plan->profile)) ||
            (plan->rows_are_spare && !has_rows);
    return status;
}

int m3_truth_fits(int *fits, const struct m3_safetensors *file, const struct m3_envelope_plan *plan,
                  struct m3_error *error)
{
    const char *path = m3_safetensors_path(file);
    const char *command = m3_safetensors_metadata(file, "command");
    *fits = 0;
    if (m3_truth_is_of_run(file)) return run_fits(fits, file, plan, error);
    if (!command || strncmp(command, "m3ref check", strlen("m3ref check")) != 0 || !m3_companions_in(file))
        return m3_fail(error, M3_BAD_INPUT, "%s: this is not a truth that m3ref check wrote, and is not replaced",
                       path);
    if (!states(file, "case_sha256", plan->c->sha256) || !has_profile(file, plan)) return M3_OK;
    int status = compare_reading(fits, file, plan->semantics, error);
    if (!status && *fits) status = has_model(fits, file, plan->model, error);
    return status;
}

/* ---- making it */

static int declare_rows(struct m3_rows_beside **rows, const struct m3_envelope_plan *plan,
                        const struct m3_companions_writer *companions, const char *path, struct m3_error *error)
{
    if (plan->row_runs == 0) return M3_OK;
    const int status = m3_rows_beside_make(rows, plan, path, error);
    return status ? status : m3_rows_beside_declare(*rows, m3_companions_file(companions), error);
}

static int make(const struct m3_envelope_plan *plan, const char *path, const struct m3_truth_pass *pass, int sealed,
                struct m3_error *error)
{
    const struct m3_engine *engine = m3_engine_f64();
    struct m3_request request = m3_envelope_request(plan);
    struct m3_dump *dump = NULL;
    struct m3_companions_writer *companions = NULL;
    struct m3_rows_beside *rows = NULL;
    struct m3_sink sink;
    int status =
        m3_dump_open(&dump, &sink, path, plan->taps, plan->model, engine, plan->c, &request, plan->command, error);
    if (!status)
        status = m3_companions_open(&companions, &sink, NULL, dump, plan->model, engine, plan->c, &request,
                                    plan->command, error);
    if (!status) status = declare_rows(&rows, plan, companions, path, error);
    if (!status && sealed) status = m3_writer_seal(m3_companions_file(companions), error);
    if (!status) status = m3_dump_begin(dump, error);
    if (!status) status = m3_companions_begin(companions, error);
    if (!status && rows) status = m3_rows_beside_write(rows, error);
    m3_rows_beside_free(rows);
    request.sink = &sink;
    if (!status) status = pass ? pass->run(pass->self, &request, error) : engine->forward(plan->model, &request, error);
    if (!status) {
        status = m3_companions_commit(companions, error);
        companions = NULL;
    }
    if (!status) return m3_dump_commit(dump, error);
    m3_companions_abandon(companions);
    m3_dump_abandon(dump);
    return status;
}

/* Writes a file without a name, and opens it. */
static int make_nameless(struct m3_truth *truth, const struct m3_envelope_plan *plan, const struct m3_truth_pass *pass,
                         struct m3_error *error)
{
    struct m3_nameless file;
    int status = m3_temporary_nameless(&file, NULL, error);
    if (!status) status = make(plan, file.path, pass, 0, error);
    if (!status) status = m3_safetensors_open_as(&truth->file, file.path, "the truth", error);
    m3_nameless_close(&file);
    return status;
}

/* Writes the file and opens it. Meanwhile another program may have put another at `path`, which is then left there: this
 * one judges by a truth of its own. */
static int make_kept(struct m3_truth *truth, const struct m3_envelope_plan *plan, const char *path,
                     const struct m3_truth_pass *pass, struct m3_error *notes, struct m3_error *error)
{
    struct m3_error why = { 0 };
    int is_own = 0, status = make(plan, path, pass, 1, error);
    if (status) return status;
    status = m3_safetensors_open(&truth->file, path, &why);
    if (!status) status = m3_truth_fits(&is_own, truth->file, plan, &why);
    if (status == M3_INTERNAL || status == M3_IO) m3_fail_because(error, (enum m3_status)status, &why);
    else status = M3_OK;
    m3_error_free(&why);
    if (status || is_own) return status;
    m3_truth_close(truth);
    m3_fail(notes, M3_OK, "%s: replaced by another program as soon as it was written, and not used", path);
    return make_nameless(truth, plan, NULL, error);
}

int m3_truth_open(struct m3_truth *truth, const struct m3_envelope_plan *given, const char *path,
                  const struct m3_truth_pass *pass, struct m3_error *notes, struct m3_error *error)
{
    char command[COMMAND];
    struct m3_envelope_plan own = *given;
    const struct m3_envelope_plan *plan = &own;
    own.command = command;
    *truth = (struct m3_truth){ 0 };
    int status = command_of(command, given, error);
    if (!status && !path) status = make_nameless(truth, plan, pass, error);
    int exists = 0;
    if (!status && path) status = m3_look_for(&exists, path, error);
    if (status || !path) return status;
    if (exists) {
        status = m3_safetensors_open(&truth->file, path, error);
        if (!status) status = m3_truth_fits(&truth->reused, truth->file, plan, error);
        if (!status && truth->reused) status = m3_truth_check_seal(&truth->reused, truth->file, notes, error);
        if (status || truth->reused) return status;
        const int is_of_run = m3_truth_is_of_run(truth->file);
        m3_truth_close(truth);
        if (is_of_run) {
            m3_fail(
                notes, M3_OK,
                "%s: the file holds no correct implementations of this profile, so the model is run again; the file is not "
                "changed",
                path);
            return make_nameless(truth, plan, pass, error);
        }
        status = m3_reading_forget(path, error);
        if (status) return status;
        m3_fail(notes, M3_OK,
                "%s: belongs to another model, case, reading, profile or arithmetic, or has changed, and is replaced",
                path);
    }
    return make_kept(truth, plan, path, pass, notes, error);
}

void m3_truth_close(struct m3_truth *truth)
{
    m3_safetensors_close(truth->file);
    truth->file = NULL;
}
