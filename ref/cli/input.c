#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/words.h"
#include "io/processors.h"
#include "model/files/batch.h"
#include "model/engine.h"
#include "model/semantics.h"

/* Reads one of two words: 0 or 1. */
static int choose(int *second, const char *flag, const char *text, const char *a, const char *b, struct m3_error *error)
{
    *second = strcmp(text, b) == 0;
    if (*second || strcmp(text, a) == 0) return M3_OK;
    return m3_fail(error, M3_USAGE, "%s: got %s, expected %s or %s", flag, text, a, b);
}

static int take_image(void *arguments, const char *value, struct m3_error *error)
{
    struct m3_cli_input *in = arguments;
    (void)error;
    in->images[in->image_count++] = value;
    return M3_OK;
}

static int take_video(void *arguments, const char *value, struct m3_error *error)
{
    struct m3_cli_input *in = arguments;
    (void)error;
    in->videos[in->video_count++] = value;
    return M3_OK;
}

static int take_precision(void *arguments, const char *value, struct m3_error *error)
{
    struct m3_cli_input *in = arguments;
    int second = 0;
    const int status = choose(&second, "--precision", value, "f32", "f64", error);
    in->engine = second ? m3_engine_f64() : m3_engine_f32();
    return status;
}

static int take_linear(void *arguments, const char *value, struct m3_error *error)
{
    struct m3_cli_input *in = arguments;
    int second = 0;
    const int status = choose(&second, "--linear", value, "blas", "ordered", error);
    in->linear = second ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS;
    return status;
}

static int take_set(void *arguments, const char *value, struct m3_error *error)
{
    struct m3_cli_input *in = arguments;
    for (const char *at = value; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (in->sets == M3_CLI_MOST_SETS)
            return m3_fail(error, M3_USAGE, "--set: got too many, expected at most %d", M3_CLI_MOST_SETS);
        char *one = strndup(at, strcspn(at, ","));
        if (!one) return m3_fail_memory(error, "--set", strlen(at));
        in->set[in->sets++] = one;
    }
    return M3_OK;
}

#define AT(field) .at = offsetof(struct m3_cli_input, field)
static const struct m3_cli_option shared[] = {
    { .name = "case", .kind = M3_CLI_TEXT, AT(case_path) },
    { .name = "ids", .kind = M3_CLI_TEXT, AT(ids) },
    { .name = "prompt", .kind = M3_CLI_TEXT, AT(prompt) },
    { .name = "chat", .kind = M3_CLI_TEXT, AT(chat) },
    { .name = "image", .kind = M3_CLI_TAKE, .take = take_image },
    { .name = "video", .kind = M3_CLI_TAKE, .take = take_video },
    { .name = "allow-long", .kind = M3_CLI_FLAG, AT(allow_long) },
    { .name = "progress", .kind = M3_CLI_FLAG, AT(progress) },
    { .name = "ops", .kind = M3_CLI_TEXT, AT(ops.name) },
    { .name = "ops-guard", .kind = M3_CLI_FLAG, AT(ops.guard_all) },
    { .name = "timeout", .kind = M3_CLI_NUMBER, AT(ops.timeout), .low = 1, .high = 1000000 },
    { .name = "threads", .kind = M3_CLI_NUMBER, AT(threads), .low = 1, .high = 1024 },
    { .name = "precision", .kind = M3_CLI_TAKE, .take = take_precision },
    { .name = "linear", .kind = M3_CLI_TAKE, .take = take_linear },
    { .name = "set", .kind = M3_CLI_TAKE, .take = take_set },
};
#undef AT

const struct m3_cli_option *m3_cli_input_option(const char *name)
{
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (strcmp(shared[i].name, name) == 0) return &shared[i];
    return NULL;
}

int m3_cli_input_begin(struct m3_cli_input *in, int argc, struct m3_error *error)
{
    *in = (struct m3_cli_input){ .images = malloc((size_t)argc * sizeof *in->images),
                                 .videos = malloc((size_t)argc * sizeof *in->videos),
                                 .engine = m3_engine_f32(),
                                 .threads = m3_processors() };
    if (!in->images || !in->videos) return m3_fail_memory(error, "the command line", 0);
    return M3_OK;
}

int m3_cli_input_semantics(struct m3_semantics *semantics, const struct m3_cli_input *in,
                           const struct m3_config *config, struct m3_error *error)
{
    int status = M3_OK;
    *semantics = config->semantics;
    for (int i = 0; !status && i < in->sets; i++) status = m3_semantics_set_one(semantics, in->set[i], error);
    return status;
}

int m3_cli_input_check(struct m3_cli_input *in, const char *model, const char *command, struct m3_error *error)
{
    const int given = !!in->case_path + !!in->ids + !!in->prompt + !!in->chat;
    if (m3_cli_ops_plain(&in->ops)) in->linear = M3_LINEAR_ORDERED;     /* the only sums that they have */
    if (given > 1 && (in->prompt || in->chat))
        return m3_fail(error, M3_USAGE, "%s: got %d of --case, --ids, --prompt and --chat, expected one", command,
                       given);
    if (given != 1)
        return m3_fail(error, M3_USAGE, "%s: got %s, expected either --case or --ids", command,
                       given ? "both" : "neither");
    if (in->case_path && in->image_count + in->video_count > 0)
        return m3_fail(error, M3_USAGE, "%s: --image and --video need --ids: a case file holds its own pictures",
                       command);
    return m3_cli_words(in, model, error);
}

int m3_cli_input_model(const char **model, struct m3_cli_input *in, int argc, char **argv, struct m3_error *error)
{
    if (argc - optind != 1)
        return m3_fail(error, M3_USAGE, "%s: got %d model directories, expected one", argv[0], argc - optind);
    *model = argv[optind];
    return m3_cli_input_check(in, *model, argv[0], error);
}

/* The id at `s`: a number, or a word that stands for one. Sets *end after it, or to `s` if there is none. */
static int64_t parse_id(const char *s, char **end, const struct m3_vision_config *vision)
{
    const struct {
        const char *word;
        int64_t id;
    } words[] = { { "<image>", vision->image_token }, { "<video>", vision->video_token } };
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(words[i].word);
        if (strncmp(s, words[i].word, length) != 0) continue;
        *end = (char *)(uintptr_t)s + (words[i].id < 0 ? 0 : length);
        return words[i].id;
    }
    return strtoll(s, end, 10);
}

/* The ids of a file may be many: the message names the place. */
static int refuse_id(const struct m3_cli_input *in, const char *at, int64_t place,
                     const struct m3_vision_config *vision, struct m3_error *error)
{
    const char *image = vision->image_token < 0 ? "" : ", <image>", *video = vision->video_token < 0 ? "" : ", <video>";
    if (!in->text)
        return m3_fail(error, M3_USAGE, "--ids: got %s, expected numbers%s%s separated by commas", in->ids, image,
                       video);
    const size_t word = *at ? 1 + strcspn(at + 1, ", \t\r\n\v\f") : 7, length = word < 20 ? word : 20;
    return m3_fail(error, M3_BAD_INPUT,
                   "%s: id %" PRId64 ": got %.*s, expected numbers%s%s separated by commas or white space",
                   in->ids_name, place, (int)length, *at ? at : "the end", image, video);
}

/* "1,2,3" into *ids, to be freed; in a file, or from words, white space separates too. */
static int parse_ids(int64_t **ids, int64_t *T, const struct m3_cli_input *in, const struct m3_vision_config *vision,
                     struct m3_error *error)
{
    const char *blanks = in->text ? " \t\r\n\v\f" : "", *s = in->ids + strspn(in->ids, blanks);
    *T = 0;
    *ids = malloc((strlen(s) / 2 + 1) * sizeof **ids);
    if (!*ids) return m3_fail_memory(error, in->ids_name, strlen(s));
    if (in->text && !*s) return m3_fail(error, M3_BAD_INPUT, "%s: got no ids, expected at least one", in->ids_name);
    while (*s) {
        char *end;
        errno = 0;
        (*ids)[(*T)++] = parse_id(s, &end, vision);
        const char *next = end + strspn(end, blanks);
        const int comma = *next == ',';
        if (errno || end == s || (*next && next == end && !comma)) return refuse_id(in, s, *T - 1, vision, error);
        next += comma;
        next += strspn(next, blanks);
        if (comma && !*next) return refuse_id(in, next, *T, vision, error);
        s = next;
    }
    return M3_OK;
}

int m3_cli_ids(int32_t **ids, int64_t *count, const char *flag, const char *text, int64_t V, struct m3_error *error)
{
    *count = 0;
    *ids = malloc((strlen(text) / 2 + 1) * sizeof **ids);
    if (!*ids) return m3_fail_memory(error, flag, strlen(text));
    for (const char *s = text;; s++) {
        char *end;
        long long id = strtoll(s, &end, 10);
        if (end == s || (*end && *end != ',') || id < 0 || id >= V)
            return m3_fail(error, M3_USAGE, "%s: got %s, expected ids from 0 to %" PRId64 " separated by commas", flag,
                           text, V - 1);
        (*ids)[(*count)++] = (int32_t)id;
        if (!*(s = end)) return M3_OK;
    }
}

static void print_picture(const char *kind, const char *path, const struct m3_picture_size *s)
{
    printf("%s: %s, ", kind, path);
    if (s->frames > 1) printf("%" PRId64 " frames of ", s->frames);
    printf("%" PRId64 " x %" PRId64 " pixels -> %" PRId64 " x %" PRId64 ", grid %" PRId64 " x %" PRId64 " x %" PRId64
           ", %" PRId64 " tokens\n",
           s->width, s->height, s->new_width, s->new_height, s->grid[0], s->grid[1], s->grid[2], s->tokens);
}

/* Reads the pictures of --image, then those of --video. */
static int read_pictures(struct m3_pictures *pictures, const struct m3_cli_input *in, const struct m3_config *config,
                         struct m3_error *error)
{
    struct m3_picture_size size;
    int status = M3_OK;
    if (in->image_count + in->video_count > 0 && !config->vision.present)
        return m3_fail(error, M3_USAGE, "%s: got pictures, expected none: the model has no vision part",
                       in->image_count ? "--image" : "--video");
    for (int64_t i = 0; !status && i < in->image_count; i++) {
        status = m3_pictures_add_image(pictures, &size, in->images[i], &config->vision, error);
        if (!status && !in->quiet) print_picture("image", in->images[i], &size);
    }
    for (int64_t i = 0; !status && i < in->video_count; i++) {
        status = m3_pictures_add_video(pictures, &size, in->videos[i], &config->vision, error);
        if (!status && !in->quiet) print_picture("video", in->videos[i], &size);
    }
    return status;
}

int m3_cli_input_read(struct m3_case *c, const struct m3_cli_input *in, const struct m3_config *config, int64_t p0,
                      struct m3_error *error)
{
    struct m3_pictures pictures = { 0 };
    int64_t *ids = NULL, T;
    int status;
    if (in->case_path) {
        status = m3_case_read(c, in->case_path, config, error);
    } else {
        status = parse_ids(&ids, &T, in, &config->vision, error);
        if (!status) status = read_pictures(&pictures, in, config, error);
        if (!status) status = m3_case_from_ids(c, ids, T, &pictures, config, error);
        m3_pictures_free(&pictures);
        free(ids);
    }
    if (status) return status;
    m3_case_continue(c, p0);
    return m3_case_check(c, config, in->allow_long, in->case_path ? in->case_path : in->ids_name,
                         in->case_path || in->text ? M3_BAD_INPUT : M3_USAGE, error);
}

int m3_cli_input_read_batch(struct m3_batch *batch, const struct m3_cli_input *in, const struct m3_config *config,
                            const struct m3_semantics *semantics, int64_t p0, struct m3_error *error)
{
    struct m3_case one = { 0 };
    *batch = (struct m3_batch){ 0 };
    int status = in->case_path ? m3_batch_read(batch, in->case_path, config, error) : M3_OK;
    if (!status && batch->is_several) {
        status = m3_batch_check(batch, config, in->allow_long, in->case_path, M3_BAD_INPUT, error);
        return status ? status : m3_batch_anchor(batch, semantics->block_anchor, error);
    }
    m3_batch_free(batch);
    if (!status) status = m3_cli_input_read(&one, in, config, p0, error);
    if (!status) status = m3_batch_of_case(batch, &one, error);
    m3_case_free(&one);
    return status;
}

void m3_cli_input_end(struct m3_cli_input *in)
{
    m3_cli_ops_close(&in->ops);
    free(in->images);
    free(in->videos);
    free(in->text);
    for (int i = 0; i < in->sets; i++) free(in->set[i]);
}
