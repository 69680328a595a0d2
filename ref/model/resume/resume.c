#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include "model/resume/resume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "io/open.h"
#include "io/reading.h"
#include "model/files/origin.h"
#include "model/resume/identity.h"
#include "model/resume/journal.h"

/* Where the bytes of a record go. */
enum { TO_DUMP, TO_COMPANIONS, TO_CACHE, TO_START, OUTPUT_FILES = 2 };

struct m3_resume_state {
    struct m3_resume_state *next;
    struct m3_resume_run run;           /* what it points to is gone after the pass */
    struct m3_resume_identity identity;
    char *path, *outputs, *command;     /* path: of the state */
    int has_outputs;                    /* is there an outputs file? */
    struct m3_safetensors *kept;        /* holds resume.hidden; NULL after that was used */
    uint64_t kept_bytes;                /* of the outputs file, that count */
    struct m3_resume resume;
    void *start;                        /* [T,H] the input of layer 0, if MTP modules read it; NULL: not known */
    struct m3_journal journal;
    struct follower {
        struct m3_resume_state *state;
        struct m3_writer *writer;       /* NULL: no such file */
        int to;
    } followers[OUTPUT_FILES];
};

struct m3_resume_folder {
    char *path;
    int lock;                   /* an open file of the folder */
    int is_made;                /* by this process, which has begun nothing in it */
    struct m3_resume_state *states;
    struct other {
        struct other *next;
        char *path;
    } *others;                  /* names that were given out */
};

/* ---- the folder */

/* Two runs at once would write one outputs file. Where folders cannot be locked, nothing is. */
static int lock(struct m3_resume_folder *f, struct m3_error *error)
{
    f->is_made = mkdir(f->path, 0777) == 0;
    if (!f->is_made && errno != EEXIST)
        return m3_fail(error, m3_status_of(errno), "--resume: %s: cannot be made: %s", f->path, strerror(errno));
    f->lock = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->lock < 0)
        return m3_fail(error, m3_status_of(errno), "--resume: %s: cannot be opened: %s", f->path, strerror(errno));
    if (flock(f->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return M3_OK;
    return m3_fail(error, M3_USAGE, "--resume: %s: got a folder that another run is using, expected another folder",
                   f->path);
}

int m3_resume_open(struct m3_resume_folder **folder, const char *path, struct m3_error *error)
{
    struct m3_resume_folder *f = *folder = calloc(1, sizeof *f);
    if (!f) return m3_fail_memory(error, path, sizeof *f);
    f->lock = -1;
    f->path = strdup(path);
    const int status = f->path ? lock(f, error) : m3_fail_memory(error, path, strlen(path));
    if (status) m3_resume_close(f);
    if (status) *folder = NULL;
    return status;
}

static void close_state(struct m3_resume_state *s)
{
    m3_safetensors_close(s->kept);
    m3_journal_close(&s->journal);
    m3_resume_identity_free(&s->identity);
    free(s->start);
    free(s->path);
    free(s->outputs);
    free(s->command);
    free(s);
}

void m3_resume_close(struct m3_resume_folder *f)
{
    if (!f) return;
    for (struct m3_resume_state *s = f->states, *next; s; s = next) {
        next = s->next;
        close_state(s);
    }
    for (struct other *o = f->others, *next; o; o = next) {
        next = o->next;
        free(o->path);
        free(o);
    }
    if (f->is_made) rmdir(f->path);
    if (f->lock >= 0) close(f->lock);
    free(f->path);
    free(f);
}

int m3_resume_name(char **path, struct m3_resume_folder *f, int64_t sequence, const char *kind, struct m3_error *error)
{
    struct other *o = calloc(1, sizeof *o);
    *path = NULL;
    if (!o || asprintf(path, "%s/%" PRId64 ".%s.safetensors", f->path, sequence, kind) < 0) {
        free(o);
        *path = NULL;
        return m3_fail_memory(error, f->path, 0);
    }
    o->path = strdup(*path);
    o->next = f->others;
    f->others = o;
    f->is_made = 0;
    return o->path ? M3_OK : m3_fail_memory(error, *path, strlen(*path));
}

int m3_resume_cached(int64_t *places, const struct m3_resume_folder *folder, struct m3_error *error)
{
    struct m3_safetensors *file = NULL;
    char *path;
    *places = -1;
    if (asprintf(&path, "%s/0.state.safetensors", folder->path) < 0) return m3_fail_memory(error, folder->path, 0);
    int exists, status = m3_look_for(&exists, path, error);
    if (!status && exists) status = m3_safetensors_open(&file, path, error);
    const char *text = file ? m3_safetensors_metadata(file, M3_RESUME_CACHED) : NULL;
    if (text) *places = strtoll(text, NULL, 10);
    m3_safetensors_close(file);
    free(path);
    return status;
}

/* ---- the state's file */

static uint64_t hidden_bytes(const struct m3_resume_state *s)
{
    return (uint64_t)(s->run.request->T * s->run.model->config.H) * s->run.engine->real_bytes;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int state_number(struct m3_writer *writer, const char *key, uint64_t number, struct m3_error *error)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    return m3_writer_metadata(writer, key, text, error);
}

/* hidden NULL: nothing has been done. */
static int save(const struct m3_resume_state *s, int64_t layer, const void *hidden, const char *outputs_sha256,
                struct m3_error *error)
{
    const struct m3_request *r = s->run.request;
    const enum m3_dtype dtype = s->run.engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32;
    struct m3_writer *writer;
    int status = m3_reading_forget(s->path, error);
    if (!status) status = m3_writer_new(&writer, s->path, error);
    if (status) return status;
    status = m3_resume_identity_write(&s->identity, writer, error);
    if (!status) status = m3_writer_metadata(writer, "command", s->command, error);
    if (!status) status = m3_writer_metadata(writer, "outputs", base_name(s->outputs), error);
    if (!status && hidden) status = state_number(writer, "layer", (uint64_t)layer, error);
    if (!status && hidden) status = state_number(writer, "outputs_bytes", s->journal.bytes, error);
    if (!status && hidden) status = m3_writer_metadata(writer, "outputs_sha256", outputs_sha256, error);
    if (!status && hidden)
        status = m3_writer_tensor(writer, "hidden", dtype, 2, (int64_t[]){ r->T, s->run.model->config.H }, error);
    if (!status) status = m3_writer_seal(writer, error);
    if (!status) status = m3_writer_begin(writer, error);
    if (!status && hidden) status = m3_writer_write(writer, hidden, hidden_bytes(s), error);
    if (!status) return m3_writer_commit(writer, error);
    m3_writer_abandon(writer);
    return status;
}

static int read_number(uint64_t *number, const struct m3_safetensors *file, const char *key, uint64_t most,
                       struct m3_error *error)
{
    const char *text = m3_safetensors_metadata(file, key);
    char *end = NULL;
    errno = 0;
    *number = text && *text != '-' ? strtoull(text, &end, 10) : 0;
    if (end && end != text && !*end && !errno && *number <= most) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected a number up to %" PRIu64, m3_safetensors_path(file),
                   key, text ? text : "none", most);
}

static int read_state(struct m3_resume_state *s, struct m3_error *error)
{
    const struct m3_request *r = s->run.request;
    const struct m3_safetensors *file = s->kept;
    uint64_t layer;
    const struct m3_tensor *t = m3_safetensors_find(file, "hidden");
    if (!t) return M3_OK;
    int status = read_number(&layer, file, "layer", (uint64_t)r->end_layer, error);
    if (!status) status = read_number(&s->kept_bytes, file, "outputs_bytes", INT64_MAX, error);
    if (!status && (int64_t)layer < r->first_layer)
        status = m3_fail(error, M3_BAD_INPUT, "%s: layer: got %" PRIu64 ", expected %" PRId64 " or more", s->path,
                         layer, r->first_layer);
    if (!status && (t->bytes != hidden_bytes(s) || (uintptr_t)t->data % sizeof(double) != 0))
        status = m3_fail(error, M3_BAD_INPUT, "%s: hidden: got %" PRIu64 " bytes, expected %" PRIu64 ", aligned",
                         s->path, t->bytes, hidden_bytes(s));
    if (status) return status;
    s->resume.hidden = t->data;
    s->resume.layer = (int64_t)layer;
    return M3_OK;
}

/* ---- begin */

static int reads_start(const struct m3_resume_run *run)
{
    return run->request->semantics->mtp_embed == M3_MTP_EMBED_FUSED && m3_request_modules(run->model, run->request) > 0;
}

/* A file that this run would write over, and that no state names, is not its own. */
static int check_free(const struct m3_resume_state *s, struct m3_error *error)
{
    int exists, status = m3_look_for(&exists, s->outputs, error);
    if (!status && exists)
        status = m3_fail(error, M3_USAGE, "--resume: %s: got a file without %s, expected neither", s->outputs,
                         base_name(s->path));
    return status;
}

static int continue_state(struct m3_resume_state *s, struct m3_error *error)
{
    int exists = 0, status = m3_safetensors_open(&s->kept, s->path, error);
    if (!status) status = m3_resume_identity_check(&s->identity, s->kept, error);
    if (!status) status = m3_safetensors_check_seal(s->kept, error);
    if (!status) status = m3_origin_require(s->kept, "outputs", base_name(s->outputs), error);
    if (!status) status = read_state(s, error);
    if (!status && s->resume.hidden && s->has_outputs) {
        status = m3_look_for(&exists, s->outputs, error);
        if (!status && !exists)
            status = m3_fail(error, M3_BAD_INPUT, "%s: got no such file, expected the outputs of %" PRId64 " layers",
                             s->outputs, s->resume.layer - s->run.request->first_layer);
    }
    const char *command = status ? NULL : m3_safetensors_metadata(s->kept, "command");
    if (!status && !command) status = m3_fail(error, M3_BAD_INPUT, "%s: command: got none, expected one", s->path);
    if (!status && !(s->command = strdup(command))) status = m3_fail_memory(error, s->path, strlen(command));
    return status;
}

static int begin_state(struct m3_resume_state *s, struct m3_error *error)
{
    int status = check_free(s, error);
    if (!status && !(s->command = strdup(s->run.command))) status = m3_fail_memory(error, s->path, 0);
    return status ? status : save(s, 0, NULL, NULL, error);
}

static int keep(void *self, int64_t layer, const void *hidden, struct m3_error *error);

int m3_resume_begin(struct m3_resume_state **state, struct m3_resume_folder *folder, const struct m3_resume_run *run,
                    struct m3_error *error)
{
    struct m3_resume_state *s = *state = calloc(1, sizeof *s);
    int exists = 0;
    if (!s) return m3_fail_memory(error, folder->path, sizeof *s);
    s->next = folder->states;
    folder->states = s;
    s->run = *run;
    s->has_outputs = run->dumps || run->request->cache || reads_start(run);
    s->journal.fd = -1;
    s->resume = (struct m3_resume){ .self = s, .keep = keep };
    if (asprintf(&s->path, "%s/%" PRId64 ".state.safetensors", folder->path, run->sequence) < 0) s->path = NULL;
    if (asprintf(&s->outputs, "%s/%" PRId64 ".outputs", folder->path, run->sequence) < 0) s->outputs = NULL;
    int status = s->path && s->outputs ? M3_OK : m3_fail_memory(error, folder->path, 0);
    if (!status) status = m3_look_for(&exists, s->path, error);
    if (!status) status = m3_resume_identify(&s->identity, run, error);
    if (!status) status = exists ? continue_state(s, error) : begin_state(s, error);
    if (!status) folder->is_made = 0;
    if (!status && s->has_outputs) status = m3_journal_open(&s->journal, s->outputs, error);
    return status;
}

const char *m3_resume_command(const struct m3_resume_state *state) { return state->command; }

const struct m3_resume *m3_resume_of(const struct m3_resume_state *state) { return &state->resume; }

/* ---- what the outputs file holds */

/* The rows of the run in tensor `index` % 3 of layer `index` / 3 of its cache: k, v, index_k. NULL: there is none. */
static void *cache_rows(uint64_t *bytes, const struct m3_resume_state *s, uint64_t index)
{
    const struct m3_request *r = s->run.request;
    const struct m3_config *c = &s->run.model->config;
    const uint64_t layer = index / 3, kind = index % 3;
    if (!r->cache || layer >= (uint64_t)c->layers || (kind == 2 && !m3_config_sparse(c, (int64_t)layer))) return NULL;
    const struct m3_cached *held = m3_cache_at(r->cache, (int64_t)layer);
    const uint64_t width = (uint64_t)(kind == 2 ? c->X : c->G * c->D) * s->run.engine->real_bytes;
    char *data = kind == 2 ? held->index_k : kind ? held->v : held->k;
    *bytes = (uint64_t)r->T * width;
    return data + (uint64_t)m3_cache_length(r->cache, M3_CACHE_MAIN) * width;
}

/* The memory in which a record is kept, if that is not a file. */
static void *place_of(uint64_t *bytes, struct m3_resume_state *s, const struct m3_record *record)
{
    if (record->to == TO_CACHE) return cache_rows(bytes, s, record->index);
    if (record->to != TO_START || record->index > 0 || !reads_start(&s->run)) return NULL;
    *bytes = hidden_bytes(s);
    if (!s->start) s->start = malloc(*bytes);
    return s->start;
}

static int take(void *self, const struct m3_record *record, uint64_t at, const void *bytes, uint64_t n,
                struct m3_error *error)
{
    struct m3_resume_state *s = self;
    uint64_t room = 0;
    struct m3_writer *writer = record->to < OUTPUT_FILES ? s->followers[record->to].writer : NULL;
    if (writer && record->index <= INT64_MAX && record->count <= INT64_MAX) {
        if (record->count - at <= m3_writer_left(writer, (int64_t)record->index))
            return m3_writer_append(writer, (int64_t)record->index, bytes, n, error);
    } else {
        char *place = place_of(&room, s, record);
        if (place && room == record->count) {
            memcpy(place + at, bytes, n);
            return M3_OK;
        }
        if (!place && record->to == TO_START && reads_start(&s->run)) return m3_fail_memory(error, s->outputs, room);
    }
    return m3_fail(error, M3_BAD_INPUT, "%s: got a record that is not of this run, expected its outputs", s->outputs);
}

static int written(void *self, int64_t index, const void *bytes, uint64_t count, struct m3_error *error)
{
    const struct follower *follower = self;
    const struct m3_record record = { (uint64_t)follower->to, (uint64_t)index, count };
    return m3_journal_add(&follower->state->journal, &record, bytes, error);
}

int m3_resume_follow(struct m3_resume_state *s, struct m3_writer *dump, struct m3_writer *companions,
                     struct m3_error *error)
{
    const struct m3_request *r = s->run.request;
    const char *sha256 = s->kept_bytes ? m3_safetensors_metadata(s->kept, "outputs_sha256") : NULL;
    int status = M3_OK;
    s->followers[TO_DUMP] = (struct follower){ s, dump, TO_DUMP };
    s->followers[TO_COMPANIONS] = (struct follower){ s, companions, TO_COMPANIONS };
    if (r->cache)
        status = m3_cache_reserve(r->cache, M3_CACHE_MAIN, m3_cache_length(r->cache, M3_CACHE_MAIN) + r->T, error);
    if (!status && s->has_outputs)
        status = m3_journal_read(&s->journal, s->kept_bytes, sha256 ? sha256 : "", take, s, error);
    for (int i = 0; !status && i < OUTPUT_FILES; i++)
        if (s->followers[i].writer)
            m3_writer_watch(s->followers[i].writer, &(struct m3_writer_watch){ &s->followers[i], written });
    s->resume.embedded = s->start;
    return status;
}

/* The rows that a layer has put into the cache. */
static int keep_cache(struct m3_resume_state *s, int64_t layer, struct m3_error *error)
{
    int status = M3_OK;
    for (uint64_t i = 3 * (uint64_t)layer; !status && i < 3 * (uint64_t)layer + 3; i++) {
        struct m3_record record = { TO_CACHE, i, 0 };
        const void *rows = cache_rows(&record.count, s, i);
        if (rows) status = m3_journal_add(&s->journal, &record, rows, error);
    }
    return status;
}

/* The state comes last: it says how much of the outputs file counts. */
static int keep(void *self, int64_t layer, const void *hidden, struct m3_error *error)
{
    struct m3_resume_state *s = self;
    const struct m3_record start = { TO_START, 0, hidden_bytes(s) };
    const int64_t first = s->run.request->first_layer;
    char sha256[65] = "none";
    int status = M3_OK;
    m3_safetensors_close(s->kept);
    s->kept = NULL;
    if (layer == first && reads_start(&s->run)) status = m3_journal_add(&s->journal, &start, hidden, error);
    if (!status && layer > first && s->run.request->cache) status = keep_cache(s, layer - 1, error);
    if (!status && s->has_outputs) status = m3_journal_sync(&s->journal, sha256, error);
    return status ? status : save(s, layer, hidden, sha256, error);
}

/* ---- end */

static int end_state(struct m3_resume_state *s, struct m3_error *error)
{
    int status = M3_OK;
    if (s->has_outputs) {
        status = save(s, 0, NULL, NULL, error);
        if (!status && unlink(s->outputs) != 0)
            status = m3_fail(error, M3_IO, "%s: cannot be removed after the run: %s", s->outputs, strerror(errno));
    }
    if (!status && unlink(s->path) != 0)
        status = m3_fail(error, M3_IO, "%s: cannot be removed after the run: %s", s->path, strerror(errno));
    return status;
}

int m3_resume_end(struct m3_resume_folder *folder, struct m3_error *error)
{
    int status = M3_OK;
    for (struct m3_resume_state *s = folder->states; s && !status; s = s->next) status = end_state(s, error);
    for (struct other *o = folder->others; o && !status; o = o->next)
        if (unlink(o->path) != 0 && errno != ENOENT)
            status = m3_fail(error, M3_IO, "%s: cannot be removed after the run: %s", o->path, strerror(errno));
    return status;
}
