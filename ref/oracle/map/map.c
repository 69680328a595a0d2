#include "oracle/map/map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/temporary.h"
#include "oracle/judge/align.h"
#include "oracle/map/private/map.h"

enum { NAMES_IN_A_NOTE = 8 };

/* One tap to convert. */
struct job {
    char tap[M3_MAP_NAME];
    const struct m3_map_recipe *recipe;
    const struct m3_tensor **sources;       /* [count] */
    int count;
    int drops;                              /* the first dimension of each source, a batch of 1 */
    int rank;                               /* of the result, like its dtype and shape */
    int64_t shape[M3_MAX_RANK];
    enum m3_dtype dtype;
};

struct work {
    const struct m3_map *map;
    const struct m3_map_sizes *sizes;
    const struct m3_safetensors *foreign;
    struct job *jobs;
    int64_t count, room;
    unsigned char *used;                    /* [tensors of foreign] */
    unsigned char *met;                     /* [recipes] a tensor that it names is there */
    int64_t sizeless;                       /* taps left out because a size is unknown; the first of them */
    char first_sizeless[600];
    int is_part;                            /* of several files: shapes are not those of the taps */
    struct m3_error *notes, *error;
};

/* ---- tensors of a recipe */

/* The first part of what module `name` returns. In a list of modules NAME.0 is another module, with names below it. */
static const struct m3_tensor *find_first_part(const struct work *w, char *name, size_t size)
{
    const size_t length = strlen(name) + strlen(M3_MAP_FIRST);
    if (length + 2 > size) return NULL;
    const struct m3_tensor *tensor = m3_safetensors_find(w->foreign, strcat(name, M3_MAP_FIRST));
    for (int64_t i = 0; tensor && i < m3_safetensors_count(w->foreign); i++) {
        const char *other = m3_safetensors_at(w->foreign, i)->name;
        if (strncmp(other, name, length) == 0 && other[length] == '.') return NULL;
    }
    return tensor;
}

static const struct m3_tensor *find(const struct work *w, const char *pattern, int64_t number, int64_t part)
{
    for (int p = 0; p < w->map->prefix_count; p++) {
        char name[M3_MAP_NAME];
        if (m3_map_name_write(name, sizeof name, w->map->prefixes[p], pattern, number, part) != 0) continue;
        const struct m3_tensor *tensor = m3_safetensors_find(w->foreign, name);
        if (!tensor) tensor = find_first_part(w, name, sizeof name);
        if (tensor) return tensor;
    }
    return NULL;
}

/* The smallest {i} that exists, or -1. */
static int64_t first_part(const struct work *w, const char *pattern, int64_t number)
{
    int64_t least = -1;
    for (int64_t i = 0; i < m3_safetensors_count(w->foreign); i++)
        for (int p = 0; p < w->map->prefix_count; p++) {
            const char *name = m3_safetensors_at(w->foreign, i)->name, *prefix = w->map->prefixes[p];
            int64_t seen = number, part = -1;
            if (strncmp(name, prefix, strlen(prefix)) != 0 ||
                !m3_map_name_fits(pattern, name + strlen(prefix), &seen, &part))
                continue;
            if (part >= 0 && (least < 0 || part < least)) least = part;
        }
    return least;
}

/* ---- one tap */

static int fail_job(const struct work *w, const struct job *job, const char *why)
{
    return m3_fail(w->error, M3_NOT_COMPARABLE, "%s: %s of %s: %s: %s", w->map->path, job->tap,
                   m3_safetensors_path(w->foreign), job->sources[0]->name, why);
}

/* M3_OK with an empty result (rank -1) if a size is unknown, or the recipe does not apply. */
static int make(struct m3_array *result, struct work *w, const struct job *job, int with_data)
{
    struct m3_array *arrays = calloc((size_t)job->count, sizeof *arrays);
    struct m3_map_trouble trouble;
    int count = job->count, status = M3_OK;
    *result = (struct m3_array){ .rank = -1 };
    if (!arrays) return m3_fail_memory(w->error, job->tap, (size_t)job->count * sizeof *arrays);
    for (int k = 0; k < count; k++) {
        arrays[k] = m3_array_of(job->sources[k], with_data);
        if (job->drops) m3_array_drop_first(&arrays[k]);
    }
    for (int s = 0; !status && s < job->recipe->step_count; s++)
        status = m3_map_do(arrays, &count, &job->recipe->steps[s], w->sizes, &trouble);
    if (status == M3_INTERNAL) {
        m3_fail_memory(w->error, job->tap, 0);
    } else if (status && (trouble.unknown_size || trouble.not_meant)) {
        if (trouble.unknown_size && w->sizeless++ == 0)
            snprintf(w->first_sizeless, sizeof w->first_sizeless, "%s: %s", job->tap, trouble.text);
        status = M3_OK;
    } else if (status) {
        status = fail_job(w, job, trouble.text);
    } else if (count != 1) {
        status = fail_job(w, job, "got several tensors, expected a step that joins them");
    } else {
        *result = arrays[0];
        arrays[0].owned = NULL;
    }
    for (int k = 0; k < job->count; k++) m3_array_free(&arrays[k]);
    free(arrays);
    return status;
}

/* Letters of a tap's shape without those of rows, which may have any number. */
static const char *shape_of(const struct job *job)
{
    enum m3_tap tap;
    int64_t layer;
    return m3_tap_parse(job->tap, &tap, &layer) == 0 ? m3_tap_table[tap].shape : "R";
}

static int check_shape(const struct work *w, const struct job *job, const struct m3_array *result)
{
    const char *letters = shape_of(job);
    char want[120] = "[", got[160], why[400];
    int good = result->rank == (int)strlen(letters);
    for (int i = 0; letters[i]; i++) {
        int64_t size = i > 0 && letters[i] != 'B' ? w->sizes->of[(int)letters[i]] : 0;
        if (letters[i] == '2' || letters[i] == '3') size = letters[i] - '0';
        size_t used = strlen(want);
        if (size) snprintf(want + used, sizeof want - used, "%s%" PRId64, i ? "," : "", size);
        else snprintf(want + used, sizeof want - used, "%s%c", i ? "," : "", letters[i]);
        /* Columns after the vocabulary are the judge's to take or refuse. */
        if (good && size) good = result->shape[i] == size || (letters[i] == 'V' && result->shape[i] > size);
    }
    if (good) return M3_OK;
    snprintf(why, sizeof why, "got %s, expected %s]", m3_array_text(got, sizeof got, result), want);
    return fail_job(w, job, why);
}

/* Does the shape of the result depend on the numbers? */
static int needs_data(const struct m3_map_recipe *recipe)
{
    for (int s = 0; s < recipe->step_count; s++)
        if (recipe->steps[s].kind == M3_STEP_SCORES) return 1;
    return 0;
}

/* Computes the shape of the job's result. *good: the recipe can be used; otherwise the next one is tried. */
static int plan_as_is(int *good, struct work *w, struct job *job)
{
    struct m3_array result;
    int status = make(&result, w, job, needs_data(job->recipe));
    if (!status && result.rank >= 0 && !w->is_part) status = check_shape(w, job, &result);
    *good = !status && result.rank >= 0;
    if (*good) {
        job->rank = result.rank;
        job->dtype = result.dtype;
        memcpy(job->shape, result.shape, sizeof job->shape);
    }
    m3_array_free(&result);
    return status;
}

static int is_batch_of_one(const struct job *job)
{
    for (int k = 0; k < job->count; k++)
        if (job->sources[k]->rank < 2 || job->sources[k]->shape[0] != 1) return 0;
    return job->count > 0;
}

/* Is the result a tap with a row for each of the batch of 1? */
static int has_rows_of_batch(const struct job *job)
{
    return job->rank == (int)strlen(shape_of(job)) && job->rank > 0 && job->shape[0] == job->sources[0]->shape[1];
}

/* Recipes are for rows alone, [T,..], or for rows in a batch, [1,T,..] or [1,heads,T,..]. A dump may have the batch
 * although the recipe does not know of it: without it the recipe gives the rows that it has. */
static int plan(int *good, struct work *w, struct job *job)
{
    struct m3_error quiet = { 0 }, *const error = w->error;
    struct job without = *job;
    const int64_t sizeless = w->sizeless;
    *good = 0;
    if (is_batch_of_one(job)) {
        without.drops = 1;
        w->error = &quiet;
        const int status = plan_as_is(good, w, &without);
        w->error = error;
        w->sizeless = sizeless;
        m3_error_free(&quiet);
        if (status == M3_INTERNAL) return m3_fail_memory(error, job->tap, 0);
        if (*good && has_rows_of_batch(&without)) {
            *job = without;
            return M3_OK;
        }
    }
    return plan_as_is(good, w, job);
}

/* ---- which taps can be converted */

static int add_source(struct job *job, const struct m3_tensor *tensor)
{
    if (!tensor) return -1;
    job->sources[job->count++] = tensor;
    return 0;
}

/* All tensors of the recipe for this number. Returns how many of its names exist. */
static int gather(const struct work *w, struct job *job, int64_t number)
{
    int there = 0;
    for (int s = 0; s < job->recipe->source_count; s++) {
        const char *pattern = job->recipe->sources[s];
        if (!strstr(pattern, "{i}")) {
            there += add_source(job, find(w, pattern, number, -1)) == 0;
            continue;
        }
        int64_t part = first_part(w, pattern, number);
        there += part >= 0;
        while (part >= 0 && add_source(job, find(w, pattern, number, part)) == 0) part++;
    }
    return there;
}

static int is_made(const struct work *w, const char *tap)
{
    for (int64_t i = 0; i < w->count; i++)
        if (strcmp(w->jobs[i].tap, tap) == 0) return 1;
    return 0;
}

static void mark(struct work *w, const struct m3_tensor *tensor)
{
    w->used[tensor - m3_safetensors_at(w->foreign, 0)] = 1;
}

static struct job *new_job(struct work *w)
{
    if (w->count == w->room) {
        int64_t room = 2 * w->room + 64;
        struct job *jobs = realloc(w->jobs, (size_t)room * sizeof *jobs);
        if (!jobs) return NULL;
        w->jobs = jobs;
        w->room = room;
    }
    struct job *job = &w->jobs[w->count];
    size_t most = (size_t)m3_safetensors_count(w->foreign) * M3_MAP_SOURCES + 1; /* no name matches a tensor twice */
    *job = (struct job){ .sources = calloc(most, sizeof *job->sources) };
    return job->sources ? job : NULL;
}

/* One recipe for one number: adds a job if the tap has none yet and all tensors exist. */
static int try_tensors(struct work *w, const struct m3_map_recipe *recipe, int64_t number)
{
    struct job *job = new_job(w);
    if (!job) return m3_fail_memory(w->error, w->map->path, sizeof *job);
    job->recipe = recipe;
    int there = 0;
    if (m3_map_name_write(job->tap, sizeof job->tap, "", recipe->tap, number, -1) == 0 && !is_made(w, job->tap))
        there = gather(w, job, number);
    if (there > 0) w->met[recipe - w->map->recipes] = 1;
    for (int i = 0; i < job->count; i++) mark(w, job->sources[i]);
    int good = 0, status = M3_OK;
    if (there == recipe->source_count) {
        const struct m3_tensor **fewer = realloc(job->sources, (size_t)job->count * sizeof *fewer);
        if (fewer) job->sources = fewer;
        status = plan(&good, w, job);
        if (good) w->count++;
        if (good) return M3_OK;
        there = 0;
    }
    if (there > 0)
        m3_fail(w->notes, M3_OK, "%s: %s: left out: the candidate holds %d of its %d tensors", w->map->path, job->tap,
                there, recipe->source_count);
    free(job->sources);
    return status;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Tries a recipe for each number for which the file has the recipe's first tensor; number -1 if its name has none. */
static int try_recipe(struct work *w, const struct m3_map_recipe *recipe, int64_t *numbers)
{
    int64_t count = 0;
    for (int64_t i = 0; i < m3_safetensors_count(w->foreign); i++)
        for (int p = 0; p < w->map->prefix_count; p++) {
            const char *name = m3_safetensors_at(w->foreign, i)->name, *prefix = w->map->prefixes[p];
            int64_t number = -1, part = -1;
            if (strncmp(name, prefix, strlen(prefix)) != 0) continue;
            if (m3_map_name_fits(recipe->sources[0], name + strlen(prefix), &number, &part)) {
                numbers[count++] = number;
                break;
            }
        }
    qsort(numbers, (size_t)count, sizeof *numbers, by_number);
    int status = M3_OK;
    for (int64_t i = 0; !status && i < count; i++)
        if (i == 0 || numbers[i] != numbers[i - 1]) status = try_tensors(w, recipe, numbers[i]);
    return status;
}

static int is_of_rows(const char *name)
{
    static const char *const names[] = { "rows", "sequences", "tokens", M3_CACHE_ROWS, M3_CACHE_SEQUENCES };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return 0;
}

/* Numbers of rows, which are those of any map, and if the map has no recipes all tensors that are named after taps. */
static int find_taps(struct work *w)
{
    static const struct m3_map_recipe itself = { .source_count = 1 };
    int status = M3_OK, good;
    for (int64_t i = 0; !status && i < m3_safetensors_count(w->foreign); i++) {
        const struct m3_tensor *t = m3_safetensors_at(w->foreign, i);
        enum m3_tap tap;
        int64_t layer;
        const int is_number = is_of_rows(t->name);
        if (!is_number && (w->map->recipe_count > 0 || m3_tap_parse(t->name, &tap, &layer))) continue;
        if (strlen(t->name) >= M3_MAP_NAME || is_made(w, t->name)) continue;
        struct job *job = new_job(w);
        if (!job) return m3_fail_memory(w->error, w->map->path, sizeof *job);
        strcpy(job->tap, t->name);
        job->recipe = &itself;
        add_source(job, t);
        mark(w, t);
        status = plan(&good, w, job);
        if (!status) w->count++;
        else free(job->sources);
    }
    return status;
}

static int find_jobs(struct work *w)
{
    size_t room = (size_t)m3_safetensors_count(w->foreign) + 1;
    int64_t *numbers = calloc(room, sizeof *numbers);
    int status = numbers ? M3_OK : m3_fail_memory(w->error, w->map->path, room * sizeof *numbers);
    for (int64_t r = 0; !status && r < w->map->recipe_count; r++) status = try_recipe(w, &w->map->recipes[r], numbers);
    free(numbers);
    return status ? status : find_taps(w);
}

/* ---- the file of all taps */

static int is_text(const struct job *job) { return shape_of(job)[0] == 'T' && strncmp(job->tap, "mtp.", 4) != 0; }

/* Programs often have logits, and the taps before them, only for the last rows, but a dump has one set of rows. Logits
 * of the last row alone can be read all the same (batch/split.h). */
static void leave_short_ones(struct work *w)
{
    const int64_t B = w->sizes->of['B'], tokens = w->sizes->tokens;
    int64_t rows = 0, kept = 0;
    if (w->is_part) return;
    for (int64_t i = 0; i < w->count; i++) {
        if (strcmp(w->jobs[i].tap, "rows") == 0) {
            rows = w->jobs[i].shape[0];
            break;
        }
        if (is_text(&w->jobs[i]) && w->jobs[i].shape[0] > rows) rows = w->jobs[i].shape[0];
    }
    for (int64_t i = 0; i < w->count; i++) {
        struct job *job = &w->jobs[i];
        const int is_last = strcmp(job->tap, "logits") == 0 && (job->shape[0] == 1 || job->shape[0] == B);
        if (is_text(job) && job->shape[0] < rows && !is_last && job->shape[0] != tokens) {
            m3_fail(w->notes, M3_OK, "%s: %s: left out: %" PRId64 " rows, where others have %" PRId64, w->map->path,
                    job->tap, job->shape[0], rows);
            free(job->sources);
        } else {
            w->jobs[kept++] = *job;
        }
    }
    w->count = kept;
}

static int write_job(struct work *w, struct m3_writer *writer, const struct job *job)
{
    struct m3_array result;
    for (int k = 0; k < job->count; k++) m3_pages_ask(job->sources[k]->data, job->sources[k]->bytes);
    int status = make(&result, w, job, 1);
    if (!status && m3_array_pack(&result)) status = m3_fail_memory(w->error, job->tap, 0);
    uint64_t bytes = status ? 0 : (uint64_t)m3_array_count(&result) * m3_dtype_bytes(result.dtype);
    if (!status && bytes) status = m3_writer_write(writer, result.data, bytes, w->error);
    if (!status) m3_array_free(&result);
    for (int k = 0; k < job->count; k++) m3_pages_release(job->sources[k]->data, job->sources[k]->bytes);
    return status;
}

static int write_all(struct work *w, const char *path)
{
    static const char *const kept[] = { "model_sha256",   "config_sha256", "case_sha256",
                                        "weights_sha256", "semantics",     "producer" };
    struct m3_writer *writer;
    int status = m3_writer_new(&writer, path, w->error);
    if (status) return status;
    for (int64_t i = 0; !status && i < w->count; i++)
        status =
            m3_writer_tensor(writer, w->jobs[i].tap, w->jobs[i].dtype, w->jobs[i].rank, w->jobs[i].shape, w->error);
    for (size_t i = 0; !status && i < sizeof kept / sizeof *kept; i++) {
        const char *value = m3_safetensors_metadata(w->foreign, kept[i]);
        if (value) status = m3_writer_metadata(writer, kept[i], value, w->error);
    }
    if (!status) status = m3_writer_begin(writer, w->error);
    for (int64_t i = 0; !status && i < w->count; i++) status = write_job(w, writer, &w->jobs[i]);
    if (!status) return m3_writer_commit(writer, w->error);
    m3_writer_abandon(writer);
    return status;
}

/* Writes a file without a name, and opens it. */
static int convert(struct m3_safetensors **converted, struct work *w)
{
    struct m3_nameless file;
    int status = m3_temporary_nameless(&file, NULL, w->error);
    if (!status) status = write_all(w, file.path);
    if (!status) status = m3_safetensors_open_as(converted, file.path, m3_safetensors_path(w->foreign), w->error);
    m3_nameless_close(&file);
    return status;
}

/* ---- what is left over */

/* "3: a b c": a number of names, and the first of them. */
static void note_names(struct m3_error *notes, const char *map, const char *what, int64_t count,
                       const struct m3_error *names)
{
    char text[900] = "";
    size_t used = 0, length;
    const char *at = names->text, *line;
    while ((line = m3_next_line(&at, &length)) != NULL && used + length + 2 < sizeof text)
        used += (size_t)snprintf(text + used, sizeof text - used, " %.*s", (int)length, line);
    if (count > 0)
        m3_fail(notes, M3_OK, "%s: %s: %" PRId64 ":%s%s", map, what, count, text,
                count > NAMES_IN_A_NOTE ? " ..." : "");
}

static void list(struct m3_error *names, int64_t *count, const char *name)
{
    if (++*count <= NAMES_IN_A_NOTE) m3_fail(names, M3_OK, "%.100s", name);
}

static void list_unknown(struct m3_name_gaps *gaps, const struct work *w)
{
    for (int64_t i = 0; i < m3_safetensors_count(w->foreign); i++) {
        const char *name = m3_safetensors_at(w->foreign, i)->name;
        if (!w->used[i] && !m3_map_is_number(name, w->map)) list(&gaps->unknown_first, &gaps->unknown, name);
    }
}

/* Taps of pictures and of MTP modules are a part of the map that a dump may lack in whole: "vision.", "mtp.". */
static int is_same_part(const char *a, const char *b)
{
    static const char *const parts[] = { "vision.", "projector.", "mtp." };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const size_t length = strlen(parts[i]);
        const int in_a = strncmp(a, parts[i], length) == 0;
        if (in_a || strncmp(b, parts[i], length) == 0) return in_a && strncmp(b, parts[i], length) == 0;
    }
    return 1;
}

static int is_same_text(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* Does the dump hold a tensor that a recipe of the tap, or of the part that the tap is of, names? */
static int is_met(const struct work *w, const char *tap, int by_part)
{
    for (int64_t r = 0; r < w->map->recipe_count; r++)
        if (w->met[r] && (by_part ? is_same_part : is_same_text)(w->map->recipes[r].tap, tap)) return 1;
    return 0;
}

static void list_unmatched(struct m3_name_gaps *gaps, const struct work *w)
{
    const char *last = "";
    for (int64_t r = 0; r < w->map->recipe_count; r++) {
        const char *tap = w->map->recipes[r].tap;
        if (strcmp(tap, last) != 0 && !is_met(w, tap, 0) && is_met(w, tap, 1))
            list(&gaps->unmatched_first, &gaps->unmatched, tap);
        last = tap;
    }
}

void m3_name_gaps_free(struct m3_name_gaps *gaps)
{
    m3_error_free(&gaps->unknown_first);
    m3_error_free(&gaps->unmatched_first);
    *gaps = (struct m3_name_gaps){ 0 };
}

void m3_map_note_gaps(struct m3_error *notes, const char *map, const struct m3_name_gaps *gaps)
{
    note_names(notes, map, "taps of the map of which the candidate holds nothing", gaps->unmatched,
               &gaps->unmatched_first);
}

static void note_gaps(const struct work *w, struct m3_name_gaps *gaps)
{
    struct m3_name_gaps own = { 0 };
    if (!gaps) gaps = &own;
    list_unknown(gaps, w);
    list_unmatched(gaps, w);
    if (w->sizeless > 0)
        m3_fail(w->notes, M3_OK, "%s: taps left out because the reference does not state a size: %" PRId64 ", first %s",
                w->map->path, w->sizeless, w->first_sizeless);
    note_names(w->notes, w->map->path, "tensors of the candidate that no tap uses", gaps->unknown,
               &gaps->unknown_first);
    m3_name_gaps_free(&own);
}

int m3_map_convert(struct m3_safetensors **converted, const struct m3_map *map, const struct m3_map_sizes *sizes,
                   const struct m3_safetensors *foreign, int is_part, struct m3_name_gaps *gaps, struct m3_error *notes,
                   struct m3_error *error)
{
    *converted = NULL;
    struct work w = {
        .map = map, .sizes = sizes, .foreign = foreign, .is_part = is_part, .notes = notes, .error = error
    };
    w.used = calloc((size_t)m3_safetensors_count(foreign) + 1, 1);
    w.met = calloc((size_t)map->recipe_count + 1, 1);
    int status = w.used && w.met ? find_jobs(&w) : m3_fail_memory(error, map->path, (size_t)map->recipe_count);
    if (!status) leave_short_ones(&w);
    if (!status) note_gaps(&w, gaps);
    if (!status && w.count == 0)
        status = m3_fail(error, M3_NOT_COMPARABLE, "%s: nothing matched: got no tensor that %s names",
                         m3_safetensors_path(foreign), map->path);
    if (!status) status = convert(converted, &w);
    for (int64_t i = 0; i < w.count; i++) free(w.jobs[i].sources);
    free(w.jobs);
    free(w.used);
    free(w.met);
    return status;
}

int m3_map_apply(struct m3_safetensors **converted, const struct m3_map *map, const struct m3_map_sizes *sizes,
                 const struct m3_safetensors *foreign, struct m3_error *notes, struct m3_error *error)
{
    return m3_map_convert(converted, map, sizes, foreign, 0, NULL, notes, error);
}

int m3_map_put(struct m3_safetensors **candidate, const char *name, const struct m3_map_sizes *sizes,
               struct m3_error *notes, struct m3_error *error)
{
    int64_t length = sizes->of['T'], before = 0;
    const struct m3_layout one = { .count = 1, .lengths = &length, .before = &before };
    struct m3_map *map;
    struct m3_safetensors *converted, *view = NULL;
    int status = m3_map_open(&map, name, error);
    if (status) return status;
    status = m3_map_number(&view, map, &one, *candidate, error);
    if (!status) status = m3_map_apply(&converted, map, sizes, view ? view : *candidate, notes, error);
    m3_safetensors_close(view);
    m3_map_close(map);
    if (status) return status;
    m3_safetensors_close(*candidate);
    *candidate = converted;
    return M3_OK;
}
