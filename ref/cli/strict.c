#include "cli/strict.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

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

static int is_model(const char *folder)
{
    char path[ROOM + 16];
    snprintf(path, sizeof path, "%s/config.json", folder);
    return access(path, R_OK) == 0;
}

/* The model and the case beside a golden: model and case.safetensors, or X_case.safetensors beside X.safetensors. */
static void look_beside(char model[ROOM], char input[ROOM], const char *reference)
{
    const char *slash = strrchr(reference, '/'), *name = slash ? slash + 1 : reference;
    const int folder = (int)(name - reference), stem = (int)strcspn(name, ".");
    char path[ROOM];
    if (snprintf(path, ROOM, "%.*smodel", folder, reference) < ROOM && is_model(path)) strcpy(model, path);
    if (snprintf(path, ROOM, "%.*s%.*s_case.safetensors", folder, reference, stem, name) < ROOM &&
        access(path, R_OK) == 0)
        strcpy(input, path);
    else if (snprintf(path, ROOM, "%.*scase.safetensors", folder, reference) < ROOM && access(path, R_OK) == 0)
        strcpy(input, path);
}

/* The words of the command; their number. Placeholders stand for what is not known. */
static int list_words(char *words[16], char model[ROOM], char input[ROOM], const struct m3_cli_strict *of)
{
    const char *made_by = m3_safetensors_metadata(of->dump, "command");
    int count = 0;
    strcpy(model, "MODEL");
    strcpy(input, "F");
    if (made_by && (!word_after(model, made_by, NULL) || !is_model(model))) strcpy(model, "MODEL");
    if (made_by && (!word_after(input, made_by, " --case ") || access(input, R_OK) != 0)) strcpy(input, "F");
    if (strcmp(model, "MODEL") == 0) look_beside(model, input, of->reference);
    const char *const all[] = { "check", model,       of->candidate, "--case",
                                input,   "--profile", of->profile,   of->map ? "--map" : NULL,
                                of->map };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) words[count++] = (char *)(uintptr_t)all[i];
    return count;
}

void m3_cli_say_stricter(struct m3_comparison *result, const struct m3_cli_strict *of)
{
    char *words[16], *model = malloc(ROOM), *input = malloc(ROOM), *line = NULL;
    int64_t lax = 0;
    for (int64_t i = 0; i < result->count; i++) lax += m3_stage_is_lax(&result->stages[i]);
    if (lax > 0 && model && input) {
        const int count = list_words(words, model, input, of);
        line = m3_cli_shell_line(count, words);
    }
    if (line)
        m3_fail(&result->notes, M3_OK,
                "%" PRId64 " of %" PRId64 " stages were judged together with the errors that they inherit, so that a "
                "small mistake can hide there; for a strict verdict: %s",
                lax, result->count, line);
    free(line);
    free(model);
    free(input);
}
