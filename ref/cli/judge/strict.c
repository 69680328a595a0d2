#include "cli/judge/strict.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/open.h"

enum { ROOM = 4096 };

/* The word after `before` in a command line, or the first word after "m3ref run" if `before` is NULL. */
static int word_after(char word[ROOM], const char *line, const char *before)
{
    const char *at = strstr(line, before ? before : "m3ref run ");
    if (!at) return 0;
    at += strlen(before ? before : "m3ref run ");
    const size_t length = strcspn(at, " ");
    if (length == 0 || length >= ROOM || (!before && *at == '-')) return 0;
    snprintf(word, ROOM, "%.*s", (int)length, at);
    return 1;
}

struct looking {
    struct m3_error *error;
    int status;             /* M3_IO: a file could not be looked for */
};

static int is_readable(struct looking *l, const char *path)
{
    if (access(path, R_OK) == 0) return 1;
    if (errno == EIO || errno == ENOMEM)
        l->status = m3_fail(l->error, m3_status_of(errno), "%s: cannot be looked for: %s", path, strerror(errno));
    return 0;
}

static int is_model(struct looking *l, const char *folder)
{
    char path[ROOM + 16];
    snprintf(path, sizeof path, "%s/config.json", folder);
    return is_readable(l, path);
}

/* The model and the case beside a golden: model and case.safetensors, or X_case.safetensors beside X.safetensors. */
static void look_beside(struct looking *l, char model[ROOM], char input[ROOM], const char *reference)
{
    const char *slash = strrchr(reference, '/'), *name = slash ? slash + 1 : reference;
    const int folder = (int)(name - reference), stem = (int)strcspn(name, ".");
    char path[ROOM];
    if (snprintf(path, ROOM, "%.*smodel", folder, reference) < ROOM && is_model(l, path)) strcpy(model, path);
    if (snprintf(path, ROOM, "%.*s%.*s_case.safetensors", folder, reference, stem, name) < ROOM && is_readable(l, path))
        strcpy(input, path);
    else if (snprintf(path, ROOM, "%.*scase.safetensors", folder, reference) < ROOM && is_readable(l, path))
        strcpy(input, path);
}

/* The words of the command; their number. Placeholders stand for what is not known. */
static int list_words(char *words[16], char model[ROOM], char input[ROOM], const struct m3_cli_strict *of,
                      struct looking *l)
{
    const char *made_by = m3_safetensors_metadata(of->dump, "command");
    int count = 0;
    strcpy(model, "MODEL");
    strcpy(input, "F");
    if (made_by && (!word_after(model, made_by, NULL) || !is_model(l, model))) strcpy(model, "MODEL");
    if (made_by && (!word_after(input, made_by, " --case ") || !is_readable(l, input))) strcpy(input, "F");
    if (strcmp(model, "MODEL") == 0) look_beside(l, model, input, of->reference);
    const char *const all[] = { "check", model,       of->candidate, "--case",
                                input,   "--profile", of->profile,   of->map ? "--map" : NULL,
                                of->map };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) words[count++] = (char *)(uintptr_t)all[i];
    return count;
}

int m3_cli_say_stricter(struct m3_judgement *result, const struct m3_cli_strict *of, struct m3_error *error)
{
    char *words[16], *model = malloc(ROOM), *input = malloc(ROOM), *line = NULL;
    struct looking looking = { .error = error };
    int64_t lax = 0;
    int status = model && input ? M3_OK : m3_fail_memory(error, "a note", (size_t)2 * ROOM);
    for (int64_t i = 0; i < result->count; i++) lax += m3_finding_is_lax(&result->findings[i]);
    if (lax > 0 && !status) {
        const int count = list_words(words, model, input, of, &looking);
        status = looking.status ? looking.status : m3_cli_shell_line(&line, count, words, error);
    }
    if (line)
        m3_fail(&result->notes, M3_OK,
                "%" PRId64 " of %" PRId64 " stages were judged together with the errors that they inherit, so that a "
                "small mistake can hide there; for a strict verdict: %s",
                lax, result->count, line);
    free(line);
    free(model);
    free(input);
    return status;
}
