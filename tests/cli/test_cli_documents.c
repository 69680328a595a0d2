/* What m3ref estimate tells of documents: the table of printed figures, marks after figures, the list below them.
 *
 * Seen to fail with: rows of another model printed; ours in base units; digits fewer; commas left out; decimals of a
 * whole number left out, or after one without unit; no errata in the table; the list left out, or headed without
 * marks; marks of a prefill left out, or twice; --documents beside --explain let through; models told apart by
 * parameters; a table that ends where a figure cannot be judged; a figure printed that differs without erratum, or
 * agrees despite one. */
#include "program.h"

TIMEOUT(60);
FIXTURE(make_folder, remove_folder);

#define CONFIGS "golden/configs/"
#define M3 CONFIGS "minimax-m3.json"

static int is_empty(const char *file)
{
    size_t count;
    free(read_bytes(in_folder(file), &count));
    return count == 0;
}

static int lacks(const char *file, const char *text)
{
    size_t count;
    unsigned char *bytes = read_bytes(in_folder(file), &count);
    int found = strstr((char *)bytes, text) != NULL;
    if (found) fprintf(stderr, "%s has \"%s\"\n", file, text);
    free(bytes);
    return !found;
}

/* config.json in the folder: that of a model, with the only `from` changed into `to`. */
static const char *changed(const char *model, const char *from, const char *to)
{
    size_t count, length = strlen(from);
    unsigned char *bytes = read_bytes(model, &count);
    char *at = strstr((char *)bytes, from);
    ck_assert_msg(at && !strstr(at + 1, from), "%s", from);
    FILE *out = fopen(in_folder("config.json"), "wb");
    ck_assert_ptr_nonnull(out);
    fprintf(out, "%.*s%s%s", (int)(at - (char *)bytes), (char *)bytes, to, at + length);
    ck_assert_int_eq(fclose(out), 0);
    free(bytes);
    return in_folder("config.json");
}

/* config.json in the folder: few numbers. */
static const char *few(const char *fields)
{
    FILE *out = fopen(in_folder("config.json"), "wb");
    ck_assert_ptr_nonnull(out);
    fprintf(out, "{ \"model_type\": \"m3ref_comparison\", \"source\": \"nobody\", %s }", fields);
    ck_assert_int_eq(fclose(out), 0);
    return in_folder("config.json");
}

static void is_no_model_of_documents(const char *path)
{
    ck_assert_int_eq(m3ref("estimate %s --documents", path), 64);
    ck_assert(has("err", "documents"));
    ck_assert(is_empty("out"));
}

static void has_no_marks(const char *path)
{
    ck_assert_int_eq(m3ref("estimate %s --context 1M", path), 0);
    ck_assert(lacks("out", "[E"));
    ck_assert(lacks("out", "documents print"));
}

#define NUMBERS "\"parameters\": 550000000000, \"active_parameters\": 55000000000"
#define ATTENTION(layers, heads, positions)                                                                            \
    ", \"attention_layers\": " layers ", \"num_attention_heads\": " heads                                              \
    ", \"num_key_value_heads\": 2, \"head_dim\": 128, \"max_position_embeddings\": " positions

TEST(models_of_few_numbers)
{
    static const char *const others[] = {
        "\"name\": \"Mine\", " NUMBERS ATTENTION("12", "64", "262144"),
        "\"name\": \"Nemotron 3 Ultra\", " NUMBERS ATTENTION("12", "32", "262144"),
        "\"name\": \"Nemotron 3 Ultra\", " NUMBERS ATTENTION("11", "64", "262144"),
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) is_no_model_of_documents(few(others[i]));
    has_no_marks(few("\"name\": \"Mine\", " NUMBERS ATTENTION("12", "32", "1048576")));
    is_no_model_of_documents(in_folder("config.json"));
    ck_assert_int_eq(m3ref("estimate %s --documents",
                           few("\"name\": \"Nemotron 3 Ultra\", " NUMBERS ATTENTION("12", "64", "262144"))),
                     0);
}

TEST(few_numbers_without_attention)
{
    is_no_model_of_documents(few("\"name\": \"Nemotron 3 Ultra\", " NUMBERS));
    is_no_model_of_documents(few("\"name\": \"Mine\", " NUMBERS));
}

TEST(models_of_other_sizes)
{
    static const char *const sizes[][2] = {
        { "\"sparse_topk_blocks\": 16", "\"sparse_topk_blocks\": 32" },
        { "\"sparse_block_size\": 128", "\"sparse_block_size\": 64" },
        { "\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 8" },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        has_no_marks(changed(M3, sizes[i][0], sizes[i][1]));
        is_no_model_of_documents(in_folder("config.json"));
    }
}

/* What tells no model from another, but is printed. */
TEST(figures_of_other_models)
{
    is_no_model_of_documents(changed(M3, "\"num_mtp_modules\": 7", "\"num_mtp_modules\": 5"));
    ck_assert(has("err", "MTP modules: got 5, expected 7"));
    is_no_model_of_documents(
        changed(CONFIGS "minimax-m3-mxfp8.json", "\"num_mtp_modules\": 1", "\"num_mtp_modules\": 7"));
    ck_assert(has("err", "MTP modules: got 7, expected another figure than 7"));
    is_no_model_of_documents(changed(M3, "\"vision_segment_max_frames\": 4", "\"vision_segment_max_frames\": 5"));
}

TEST(table_of_figures)
{
    ck_assert_int_eq(m3ref("estimate " CONFIGS "minimax-m3.json --documents"), 0);
    ck_assert(has("out", "| place | what | printed | ours | erratum |\n|---|---|---|---|---|\n| 000 "));
    ck_assert(has("out", "| 003 6.1 table | vocabulary | 200,064 | 200,064 | - |\n"));
    ck_assert(has("out", "| 003 6.2 experts | experts of all layers | 416.6B | 416.395B | E3-08 |\n"));
    ck_assert(has("out", "| 003 6.2 table | routed experts, share | 96.7% | 96.741% | - |\n"));
    ck_assert(has("out", "| 003 6.3.3 | Q K', full over main branch (T=1M) | 512x | 512x | - |\n"));
    ck_assert(has("out", "| 003 6.4 index | index keys (T=1M kv=bf16) | 15,300,329,472 bytes | 15,300,820,992 bytes | "
                         "E3-23 |\n"));
    ck_assert(has("out", "| 003 6.4 table | all of the cache (T=1M B=8 kv=bf16) | 1,153.1 GB | 1,153.199 GB | "
                         "E3-26 |\n"));
    ck_assert(has("out", "| 003 6.5 | memory (T=1M w=bf16 kv=bf16) | 995 GB | 1,003.60 GB | E3-27 |\n"));
    ck_assert(has("out", "| 003 6.1 table | side of a picture | 2016 | - | E3-04 |\n"));
    ck_assert(has("out", "| 0.027 ms | 0.02750 ms | - |\n"));
    ck_assert(has("out", "| 2.0 TB | 2.000 TB | - |\n"));
    ck_assert(has("out", "| 1.718e10 | 17,179,869,184 | - |\n"));
    ck_assert(has("out", "| 003 appendix C | a decoded token (T=1M) | ~2.2e11 | 217,572,704,256 | - |\n"));
    ck_assert(has("out", "| 000 2.2 text table | SwiGLU-OAI limit | 7.0 | 7 | - |\n"));
    ck_assert(has("out", "| 000 2.2 text table | epsilon of the norms, printed 1e-6 | 0.000001 | 0.00000100 | - |\n"));
    ck_assert(lacks("out", "| 744B |"));                    /* of GLM */
    ck_assert(lacks("out", "| E3-03 |"));                   /* of the MXFP8 release */
    ck_assert_int_eq(error_lines(), 0);

    ck_assert_int_eq(m3ref("estimate " CONFIGS "glm-5.1.json --documents"), 0);
    ck_assert(has("out", "| 744B | 744B | - |\n"));
    ck_assert(has("out", "| 32B | 40B | E3-62 |\n"));
    ck_assert(lacks("out", "428B"));
    ck_assert_int_eq(m3ref("estimate " CONFIGS "minimax-m3-mxfp8.json --documents"), 0);
    ck_assert(has("out", "| 003 6.1 table | MTP modules | 7 | 1 | E3-03 |\n"));
}

TEST(marks_and_list)
{
    ck_assert_int_eq(m3ref("estimate " CONFIGS "minimax-m3.json --context 1M --marks"), 0);
    ck_assert(has("out", "13,458,022,323,978,240  [E0-55]\n"));
    ck_assert(has("out", "54,043,247,068,053,504  [E0-51 E0-50]\n"));      /* of the prefill, of a decoded token */
    ck_assert(has("out", "GiB  [E3-27 E3-37]\n"));
    ck_assert(has("out", "512/17  [E0-53 E3-13]\n"));
    ck_assert(
        has("out", "\ndocuments print these figures differently (golden/documents/README.md, appendix B)\n  E0-"));
    ck_assert(has("out", "  E0-55  000 6.1 table: "));
    ck_assert(has("out", "  E3-18  003 6.3.8 table: total: printed ~215 G, here 217.57 G\n"));

    ck_assert_int_eq(m3ref("estimate " CONFIGS "minimax-m3.json --context 128K"), 0);
    ck_assert(lacks("out", "[E"));
    ck_assert_int_eq(m3ref("estimate " CONFIGS "minimax-m3.json --context 128K --marks"), 0);
    ck_assert(has("out", "  [E0-55]\n"));
    ck_assert(lacks("out", "E3-18"));

    ck_assert_int_eq(m3ref("estimate " CONFIGS "minimax-m3.json --context 128K,1M --marks"), 0);
    ck_assert(lacks("out", "[E"));
    ck_assert(lacks("out", "documents print"));
    ck_assert_int_eq(m3ref("estimate " CONFIGS "minimax-m3.json --json"), 0);
    ck_assert(lacks("out", "E0-"));

    ck_assert_int_eq(m3ref("estimate golden/tiny/model/config.json --marks"), 0);
    ck_assert(lacks("out", "documents print"));
}

TEST(errors)
{
    static const char *const wrong[] = {
        CONFIGS "minimax-m3.json --documents --json",
        CONFIGS "minimax-m3.json --documents --explain params_total",
        "golden/tiny/model/config.json --documents",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_int_eq(m3ref("estimate %s", wrong[i]), 64);
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(has("err", "documents"));
    }
    ck_assert_int_eq(m3ref("estimate --help"), 0);
    ck_assert(has("out", "--documents"));
}
