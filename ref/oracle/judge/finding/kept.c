#include "oracle/judge/finding/kept.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "io/open.h"
#include "io/reading.h"
#include "model/engine.h"
#include "model/resume/identity.h"
#include "oracle/variants/mistakes.h"

/* As it is stored: what the finding points to stands beside it. */
struct record {
    struct m3_finding finding;
    char tap[96], blind_to[64], mistake[64];    /* "": none */
    int64_t budget;
};

struct m3_kept {
    char *path;
    struct m3_resume_identity identity;
    struct record *records;     /* [count], those of the file first; never moved, because findings point into them */
    int64_t read, count, room;
};

/* ---- what it belongs to */

/* Names, shapes and bytes of its tensors: a map may have made them. */
static int label_candidate(struct m3_resume_identity *identity, const struct m3_safetensors *file,
                           struct m3_error *error)
{
    char hex[65];
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, m3_safetensors_path(file), 0);
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        const int64_t head[] = { (int64_t)t->dtype, t->rank };
        m3_sha256_add(hash, t->name, strlen(t->name) + 1);
        m3_sha256_add(hash, head, sizeof head);
        m3_sha256_add(hash, t->shape, (size_t)t->rank * sizeof *t->shape);
        m3_sha256_add(hash, t->data, t->bytes);
    }
    if (m3_sha256_end(hash, hex)) return m3_fail(error, M3_INTERNAL, "--resume: SHA-256 failed");
    return m3_resume_label(identity, "candidate_sha256", hex, error);
}

static int identify(struct m3_kept *k, const struct m3_setting *s, const struct m3_safetensors *candidate,
                    struct m3_error *error)
{
    struct m3_request request = m3_case_request(s->the_case);
    const struct m3_resume_run run = {
        .model = s->model, .engine = m3_engine_f64(), .c = s->the_case, .request = &request, .companions = "none"
    };
    request.semantics = s->semantics;
    request.first_layer = s->part.first;
    request.end_layer = s->part.end;
    request.hidden = s->part.hidden;
    request.linear = s->ctx->linear;
    int status = m3_resume_identify(&k->identity, &run, error);
    if (!status) status = m3_resume_label_file(&k->identity, "program_sha256", "/proc/self/exe", error);
    if (!status)
        status =
            m3_resume_label(&k->identity, "profile_sha256", s->profile ? m3_profile_sha256(s->profile) : "none", error);
    return status ? status : label_candidate(&k->identity, candidate, error);
}

/* ---- the file */

static int make_room(struct m3_kept *k, int64_t room, struct m3_error *error)
{
    k->records = calloc((size_t)room + 1, sizeof *k->records);
    k->room = room;
    return k->records ? M3_OK : m3_fail_memory(error, k->path, (size_t)room * sizeof *k->records);
}

static int read_records(struct m3_kept *k, struct m3_error *error)
{
    struct m3_safetensors *file = NULL;
    int status = m3_safetensors_open(&file, k->path, error);
    if (!status) status = m3_resume_identity_check(&k->identity, file, error);
    if (!status) status = m3_safetensors_check_seal(file, error);
    const struct m3_tensor *t = status ? NULL : m3_safetensors_find(file, "findings");
    const uint64_t most = (uint64_t)k->room * sizeof *k->records;
    if (!status && (!t || t->bytes % sizeof *k->records != 0 || t->bytes > most))
        status =
            m3_fail(error, M3_BAD_INPUT, "%s: findings: got %" PRIu64 " bytes, expected records of %zu, up to %" PRIu64,
                    k->path, t ? t->bytes : 0, sizeof *k->records, most);
    if (!status && t->bytes > 0) memcpy(k->records, t->data, t->bytes);
    if (!status) k->read = k->count = (int64_t)(t->bytes / sizeof *k->records);
    m3_safetensors_close(file);
    return status;
}

int m3_kept_open(struct m3_kept **kept, struct m3_resume_folder *folder, int64_t sequence,
                 const struct m3_setting *setting, const struct m3_safetensors *candidate, struct m3_error *error)
{
    struct m3_kept *k = *kept = calloc(1, sizeof *k);
    int exists = 0;
    if (!k) return m3_fail_memory(error, "--resume", sizeof *k);
    int status = m3_resume_name(&k->path, folder, sequence, "findings", error);
    if (!status) status = make_room(k, m3_safetensors_count(candidate), error);
    if (!status) status = identify(k, setting, candidate, error);
    if (!status) status = m3_look_for(&exists, k->path, error);
    return status || !exists ? status : read_records(k, error);
}

void m3_kept_close(struct m3_kept *k)
{
    if (!k) return;
    m3_resume_identity_free(&k->identity);
    free(k->records);
    free(k->path);
    free(k);
}

int64_t m3_kept_count(const struct m3_kept *k) { return k->read; }

static int save(struct m3_kept *k, struct m3_error *error)
{
    struct m3_writer *writer;
    const int64_t bytes = k->count * (int64_t)sizeof *k->records;
    int status = m3_reading_forget(k->path, error);
    if (!status) status = m3_writer_new(&writer, k->path, error);
    if (status) return status;
    status = m3_resume_identity_write(&k->identity, writer, error);
    if (!status) status = m3_writer_tensor(writer, "findings", M3_U8, 1, &bytes, error);
    if (!status) status = m3_writer_seal(writer, error);
    if (!status) status = m3_writer_begin(writer, error);
    if (!status && bytes > 0) status = m3_writer_write(writer, k->records, (uint64_t)bytes, error);
    if (!status) return m3_writer_commit(writer, error);
    m3_writer_abandon(writer);
    return status;
}

/* ---- findings */

int m3_kept_find(struct m3_finding *finding, int64_t *budget, const struct m3_kept *k)
{
    const struct record *found = NULL;
    for (int64_t i = 0; k && i < k->read && !found; i++)
        if (strcmp(k->records[i].tap, finding->tap) == 0) found = &k->records[i];
    if (!found) return 0;
    const struct m3_finding begun = *finding;
    *finding = found->finding;
    finding->tap = begun.tap;
    finding->letters = begun.letters;
    finding->reference = begun.reference;
    finding->candidate = begun.candidate;
    finding->logits = begun.logits;
    finding->made_by = begun.made_by;
    finding->section = begun.section;
    finding->blind_to = found->blind_to[0] ? found->blind_to : NULL;
    finding->mistake = found->mistake[0] ? m3_mistake_named(found->mistake) : NULL;
    *budget = found->budget;
    return 1;
}

int m3_kept_add(struct m3_kept *k, const struct m3_finding *finding, int64_t budget, struct m3_error *error)
{
    if (!k) return M3_OK;
    if (k->count == k->room) return m3_fail(error, M3_INTERNAL, "%s: got more findings than tensors", k->path);
    struct record *record = &k->records[k->count++];
    *record = (struct record){ .finding = *finding, .budget = budget };
    snprintf(record->tap, sizeof record->tap, "%s", finding->tap);
    snprintf(record->blind_to, sizeof record->blind_to, "%s", finding->blind_to ? finding->blind_to : "");
    snprintf(record->mistake, sizeof record->mistake, "%s", finding->mistake ? finding->mistake->id : "");
    return save(k, error);
}
