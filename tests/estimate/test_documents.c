/* Every figure that the documents print: reproduced by the calculator, or an erratum; and the readers below it: the
 * formula, the printed number, the setting, against cases worked out by hand.
 *
 * Seen to fail with: - and / grouped from the right; ^ from the left; a minus sign above ^; max for min; a letter for
 * its neighbour; half a unit that is a whole one; GiB that is GB; a power of ten lost; a comma anywhere; K of a
 * setting decimal; card before GPU lost; the default of ikv; a verdict by a negated comparison, so that NaN passes;
 * tail of a formula ignored; a printed figure of each document changed in its last digit; an erratum taken away; one
 * added; one of another document; models told apart by parameters alone; a size,
 * the name or the kinds of the layers not read; marks for another context, batch or number of modules, for a sum
 * of keys, or twice. */
#include "estimates.h"

#include "estimate/documents.h"
#include "estimate/foreign.h"

/* ---- models by the names of settings */

static const struct {
    const char *name, *path;
} models[] = {
    { "m3", M3 },
    { "m3-mxfp8", M3_MXFP8 },
    { "m2.7", "golden/configs/minimax-m2.7.json" },
    { "m2", "golden/configs/minimax-m2.json" },
    { "llama-3-70b", "golden/configs/llama-3-70b.json" },
    { "llama-3-70b-rounded", "golden/configs/llama-3-70b-rounded.json" },
    { "nemotron-3-ultra", "golden/configs/nemotron-3-ultra.json" },
    { "kimi-k2.5", "golden/configs/kimi-k2.5.json" },
    { "glm-5.1", "golden/configs/glm-5.1.json" },
    { "qwen3.5-moe", "golden/configs/qwen3.5-moe.json" },
    { "mimo-v2-flash", "golden/configs/mimo-v2-flash.json" },
};

enum { MODELS = sizeof models / sizeof models[0] };

static struct {
    struct m3_config own;
    struct m3_census census;
    struct m3_foreign foreign;
    struct m3_subject subject;
} loaded[MODELS];

static void load(void)
{
    for (int i = 0; i < MODELS; i++) {
        struct m3_error notes = { 0 }, error = { 0 };
        int is_foreign, status = m3_foreign_read(&loaded[i].foreign, &is_foreign, models[i].path, &notes, &error);
        if (is_foreign) {
            loaded[i].subject =
                (struct m3_subject){ &loaded[i].foreign.config, &loaded[i].foreign.census, &loaded[i].foreign };
        } else {
            status = m3_config_read(&loaded[i].own, models[i].path, &notes, &error);
            m3_census_of_config(&loaded[i].census, &loaded[i].own, 0, M3_MTP_CONCAT);
            loaded[i].subject = (struct m3_subject){ &loaded[i].own, &loaded[i].census, NULL };
        }
        if (status) m3_error_print(&error, stderr);
        ck_assert_int_eq(status, M3_OK);
        m3_error_free(&notes);
    }
}

static void unload(void)
{
    for (int i = 0; i < MODELS; i++) {
        m3_config_free(&loaded[i].own);
        m3_foreign_free(&loaded[i].foreign);
    }
}

/* Which model a row is about; its setting has to be readable. */
static int model_of(const struct m3_printed *row)
{
    struct m3_error error = { 0 };
    struct m3_document_setting setting;
    int status = m3_document_setting_parse(&setting, row->setting, &error);
    if (status) m3_error_print(&error, stderr);
    ck_assert_msg(status == M3_OK, "%s: %s: setting %s", row->place, row->what, row->setting);
    for (int i = 0; i < MODELS; i++)
        if (strcmp(models[i].name, setting.model) == 0) return i;
    ck_abort_msg("%s: no such model", setting.model);
}

static struct m3_judgement judge(const struct m3_printed *row, int model)
{
    struct m3_judgement judgement;
    struct m3_error error = { 0 };
    int status = m3_printed_judge(&judgement, row, &loaded[model].subject, &error);
    if (status) m3_error_print(&error, stderr);
    m3_error_free(&error);
    ck_assert_msg(status == M3_OK, "%s: %s: %s", row->place, row->what, row->formula ? row->formula : "-");
    return judgement;
}

/* ---- the documents */

static int agrees(const struct m3_document *document, const struct m3_printed *row, int model)
{
    struct m3_judgement judgement = judge(row, model);
    int good = row->formula ? judgement.verdict == (row->erratum ? M3_REPRODUCTION_DIFFERS : M3_REPRODUCTION_REPRODUCED)
                            : row->erratum != NULL;
    if (good) return 1;
    fprintf(stderr, "%s %s: %s: printed %s, ours %.12g (%.8g of its unit), erratum %s\n", document->name, row->place,
            row->what, row->printed, judgement.ours, judgement.ours / judgement.printed.scale,
            row->erratum ? row->erratum : "none");
    return 0;
}

START_TEST(every_printed_figure)
{
    const struct m3_document *document = &m3_documents[_i];
    int wrong = 0;
    load();
    ck_assert_int_gt(document->count, 0);
    for (int i = 0; i < document->count; i++)
        wrong += !agrees(document, &document->rows[i], model_of(&document->rows[i]));
    ck_assert_msg(wrong == 0, "document %s: %d of %d rows", document->name, wrong, document->count);
    unload();
}
END_TEST

/* "E3-07" of document 003. */
static int is_erratum(const char *text, char document)
{
    return strlen(text) == 5 && text[0] == 'E' && text[1] == document && text[2] == '-' && text[3] >= '0' &&
           text[3] <= '9' && text[4] >= '0' && text[4] <= '9';
}

START_TEST(rows_are_filled_in)
{
    const struct m3_document *document = &m3_documents[_i];
    for (int i = 0; i < document->count; i++) {
        const struct m3_printed *row = &document->rows[i];
        ck_assert(row->place && *row->place && row->what && *row->what && row->printed);
        ck_assert_msg(!strpbrk(row->place, "|\n") && !strpbrk(row->what, "|\n"), "%s: %s", row->place, row->what);
        ck_assert_msg(!row->erratum || is_erratum(row->erratum, document->name[2]), "%s: %s: %s", row->place, row->what,
                      row->erratum);
        for (int j = 0; j < i; j++)
            ck_assert_msg(strcmp(row->place, document->rows[j].place) || strcmp(row->what, document->rows[j].what) ||
                              strcmp(row->setting, document->rows[j].setting) ||
                              strcmp(row->printed, document->rows[j].printed),
                          "twice: %s: %s", row->place, row->what);
    }
}
END_TEST

/* A figure that is two units of its last digit away is not reproduced; ours, printed with more digits, is. */
START_TEST(every_figure_matters)
{
    const struct m3_document *document = &m3_documents[_i];
    load();
    for (int i = 0; i < document->count; i++) {
        struct m3_printed row = document->rows[i];
        int model = model_of(&row);
        if (!row.formula) continue;
        struct m3_judgement judgement = judge(&row, model);
        struct m3_printed_number *printed = &judgement.printed;
        char text[128];
        row.printed = text;
        for (int way = -1; way <= 1 && !row.erratum; way += 2) {
            double moved = (printed->value + way * 4 * printed->half) / printed->scale;
            if (moved < 0) continue;
            snprintf(text, sizeof text, "%.*f %s", printed->decimals, moved, printed->unit);
            ck_assert_msg(judge(&row, model).verdict == M3_REPRODUCTION_DIFFERS, "%s: %s: %s", row.place, row.what,
                          text);
        }
        if (!isfinite(judgement.ours) || judgement.ours < 0) continue;
        snprintf(text, sizeof text, "%.9f %s", judgement.ours / printed->scale, printed->unit);
        ck_assert_msg(judge(&row, model).verdict == M3_REPRODUCTION_REPRODUCED, "%s: %s: %s", row.place, row.what,
                      text);
    }
    unload();
}
END_TEST

START_TEST(models_by_their_sizes)
{
    load();
    for (int i = 0; i < MODELS; i++) {
        struct m3_estimate_request r = request(1, 1, "bf16", "bf16");
        r.foreign = loaded[i].subject.foreign;
        if (r.foreign) r.config = loaded[i].subject.census;
        struct m3_estimate e = estimate(loaded[i].subject.config, &r);
        ck_assert_pstr_eq(m3_document_model(&e), models[i].name);
        if (i > 0) continue;
        r.mtp_modules = 2;
        e = estimate(&loaded[i].own, &r);
        ck_assert_pstr_eq(m3_document_model(&e), models[i].name);
        loaded[i].own.max_positions--;
        ck_assert_ptr_null(m3_document_model(&e));
    }
    unload();
}
END_TEST

/* One more of any size, or a layer of the other kind, is another model; the estimate with its parameters stays. */
START_TEST(models_of_other_sizes)
{
    load();
    for (int i = 0; i < MODELS; i++) {
        struct m3_foreign *foreign = loaded[i].subject.foreign ? &loaded[i].foreign : NULL;
        struct m3_config *c = foreign ? &foreign->config : &loaded[i].own;
        struct m3_estimate_request r = request(1, 1, "bf16", "bf16");
        r.foreign = foreign;
        r.config = loaded[i].subject.census;
        struct m3_estimate e = estimate(c, &r);
        int few = foreign && foreign->few;
        /* clang-format off */
        int64_t *const sizes[] = { &c->layers, &c->max_positions, &c->Q, &c->G, &c->D, &c->H, &c->X, &c->V, &c->N,
                                   &c->block, &c->K, &c->E, &c->F, &c->dense_intermediate, &c->shared_intermediate,
                                   &c->R };
        /* clang-format on */
        for (size_t j = 0; j < (few ? 5 : sizeof sizes / sizeof sizes[0]); j++) {
            ++*sizes[j];
            ck_assert_msg(!m3_document_model(&e), "%s: size %zu", models[i].name, j);
            --*sizes[j];
        }
        int64_t *const numbers[] = { &loaded[i].foreign.parameters, &loaded[i].foreign.active,
                                     &loaded[i].foreign.cached_numbers };
        for (int j = 0; few && j < 3; j++) {
            ++*numbers[j];
            ck_assert_msg(!m3_document_model(&e), "%s: number %d", models[i].name, j);
            --*numbers[j];
        }
        if (few) loaded[i].foreign.name[0]++;
        else c->rope_theta++;
        ck_assert_ptr_null(m3_document_model(&e));
        if (few) loaded[i].foreign.name[0]--;
        else c->rope_theta--;
        for (int64_t l = 0; !few && l < c->layers; l++) {
            c->sparse[l] ^= 1;
            ck_assert_ptr_null(m3_document_model(&e));
            c->sparse[l] ^= 1;
            c->moe[l] ^= 1;
            ck_assert_ptr_null(m3_document_model(&e));
            c->moe[l] ^= 1;
        }
        ck_assert_pstr_eq(m3_document_model(&e), models[i].name);
    }
    unload();
}
END_TEST

/* ---- printed numbers */

/* clang-format off */
static const struct {
    const char *text;
    double value, half, scale;
    int decimals;
} numbers[] = {
    { "0", 0, 0.5, 1, 0 },
    { "512x", 512, 0.5, 1, 0 },
    { "1,048,576", 1048576, 0.5, 1, 0 },
    { "12,345.60", 12345.6, 0.005, 1, 2 },
    { "9.8x", 9.8, 0.05, 1, 1 },
    { "96.6 %", 0.966, 0.0005, 0.01, 1 },
    { "17%", 0.17, 0.005, 0.01, 0 },
    { "413.13B", 413.13e9, 0.005e9, 1e9, 2 },
    { "~206 G", 206e9, 0.5e9, 1e9, 0 },
    { "=6.1 E", 6.1e18, 0.05e18, 1e18, 1 },
    { "18.0 P", 18e15, 0.05e15, 1e15, 1 },
    { "2T", 2e12, 0.5e12, 1e12, 0 },
    { "3.9M", 3.9e6, 0.05e6, 1e6, 1 },
    { "200K", 200e3, 0.5e3, 1e3, 0 },
    { "14.3 GiB", 15354508083.2, 53687091.2, 1073741824, 1 },
    { "14.3 GB", 14.3e9, 0.05e9, 1e9, 1 },
    { "1.13 TiB", 1.13 * 1099511627776, 0.005 * 1099511627776, 1099511627776, 2 },
    { "1.5 TB", 1.5e12, 0.05e12, 1e12, 1 },
    { "32 KiB", 32768, 512, 1024, 0 },
    { "4 MiB", 4194304, 524288, 1048576, 0 },
    { "4 MB", 4e6, 0.5e6, 1e6, 0 },
    { "4 KB", 4e3, 0.5e3, 1e3, 0 },
    { "1 PB", 1e15, 0.5e15, 1e15, 0 },
    { "15,300,820,992 bytes", 15300820992, 0.5, 1, 0 },
    { "3 B", 3e9, 0.5e9, 1e9, 0 },
    { "2.4 ms", 2.4e-3, 0.05e-3, 1e-3, 1 },
    { "27 us", 27e-6, 0.5e-6, 1e-6, 0 },
    { "324 s", 324, 0.5, 1, 0 },
    { "1.2e15", 1.2e15, 0.05e15, 1, 1 },
    { "1e-6", -1, 0, 0, 0 },            /* negative powers, and what follows: refused */
    { "", -1, 0, 0, 0 }, { "~", -1, 0, 0, 0 }, { "B", -1, 0, 0, 0 }, { "-3", -1, 0, 0, 0 }, { "1,04", -1, 0, 0, 0 },
    { "1048,576", -1, 0, 0, 0 }, { ",576", -1, 0, 0, 0 }, { "1,,576", -1, 0, 0, 0 }, { "1.", -1, 0, 0, 0 },
    { "1.5.2", -1, 0, 0, 0 }, { "3 gb", -1, 0, 0, 0 }, { "3  GB", -1, 0, 0, 0 }, { "3 GB ", -1, 0, 0, 0 },
    { "~~3", -1, 0, 0, 0 }, { "nan", -1, 0, 0, 0 }, { "0x10", -1, 0, 0, 0 }, { "3 -", -1, 0, 0, 0 },
    { "1e", -1, 0, 0, 0 }, { "1e100", -1, 0, 0, 0 },
    { "1111111111111111111111111111111111111111", -1, 0, 0, 0 },
};
/* clang-format on */

static int close_to(double got, double expected) { return fabs(got - expected) <= 1e-12 * fabs(expected); }

START_TEST(printed_numbers)
{
    struct m3_error error = { 0 };
    struct m3_printed_number n;
    int status = m3_printed_parse(&n, numbers[_i].text, &error);
    m3_error_free(&error);
    ck_assert_msg(status == (numbers[_i].value < 0 ? M3_BAD_INPUT : M3_OK), "%s: %d", numbers[_i].text, status);
    if (status) return;
    ck_assert_msg(close_to(n.value, numbers[_i].value) && close_to(n.half, numbers[_i].half) &&
                      close_to(n.scale, numbers[_i].scale) && n.decimals == numbers[_i].decimals,
                  "%s: value %.15g half %.15g scale %.15g decimals %d", numbers[_i].text, n.value, n.half, n.scale,
                  n.decimals);
}
END_TEST

/* ---- settings */

START_TEST(settings)
{
    struct m3_error error = { 0 };
    struct m3_document_setting s;
    ck_assert_int_eq(m3_document_setting_parse(&s, "m3", &error), M3_OK);
    ck_assert_str_eq(s.model, "m3");
    ck_assert_int_eq(s.named, 0);
    ck_assert(s.request.context == 0 && s.request.batch == 1 && s.request.gpus == 1 && !s.request.gpu);
    ck_assert(s.request.activation_bytes == 5368709120 && s.request.mtp_modules == 0 && !s.request.weights_asked);
    ck_assert_str_eq(s.request.weights->name, "bf16");
    ck_assert_str_eq(s.request.index_kv->name, "bf16");

    static const char all[] = "m2.7 T=128K B=4 w=int4 kv=fp8 card=reported gpu=h200 gpus=8 act=0 mtp=3";
    ck_assert_int_eq(m3_document_setting_parse(&s, all, &error), M3_OK);
    ck_assert_str_eq(s.model, "m2.7");
    ck_assert(s.request.context == 131072 && s.request.batch == 4 && s.request.gpus == 8);
    ck_assert(s.request.activation_bytes == 0 && s.request.mtp_modules == 3 && s.request.weights_asked);
    ck_assert_int_eq(s.request.card_bytes, 150754820096);
    ck_assert_str_eq(s.request.weights->name, "int4");
    ck_assert_str_eq(s.request.kv->name, "fp8");
    ck_assert_str_eq(s.request.index_kv->name, "fp8");
    ck_assert_str_eq(s.request.gpu->name, "h200");
    ck_assert_uint_eq(s.named, 1023 & ~M3_NAMES_INDEX_KV);

    ck_assert_int_eq(m3_document_setting_parse(&s, "m3 T=1M ikv=fp8 gpu=h100", &error), M3_OK);
    ck_assert(s.request.context == 1048576 && s.request.card_bytes == 80000000000);
    ck_assert_str_eq(s.request.kv->name, "bf16");
    ck_assert_str_eq(s.request.index_kv->name, "fp8");
    ck_assert_uint_eq(s.named, M3_NAMES_CONTEXT | M3_NAMES_INDEX_KV | M3_NAMES_GPU);
    ck_assert_int_eq(m3_document_setting_parse(&s, "m3 T=4097 gpu=a100 card=123456789", &error), M3_OK);
    ck_assert(s.request.context == 4097 && s.request.card_bytes == 123456789);

    /* clang-format off */
    static const char *const refused[] = {
        "", "m4", "M3", "m3 ", "m3  T=1", "m3 T", "m3 T=", "m3 T=0", "m3 T=-1", "m3 T=1G", "m3 T=1MM", "m3 T=1.5",
        "m3 T=1 T=1", "m3 T=99999999999999999999", "m3 T=8589934592M", "m3 B=0", "m3 w=bf17", "m3 kv=", "m3 gpu=v100",
        "m3 gpus=8", "m3 card=vendor", "m3 gpu=b200 card=reported", "m3 gpu=h200 card=big", "m3 gpu=h200 card=0",
        "m3 act=-1", "m3 mtp=17", "m3 t=1", "m3 =1", "T=1 m3",
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        ck_assert_msg(m3_document_setting_parse(&s, refused[i], &error) == M3_BAD_INPUT, "\"%s\"", refused[i]);
    m3_error_free(&error);
}
END_TEST

/* ---- formulas, over M3 at T = 2^20 in bf16, batch 2, 8 x H200 */

/* clang-format off */
static const struct {
    const char *formula;
    double value;
} formulas[] = {
    { "2 + 3 * 4", 14 }, { "(2 + 3) * 4", 20 }, { "10 - 4 - 3", 3 }, { "100 / 10 / 5", 2 }, { "2*6/3*2", 8 },
    { "2^3^2", 512 }, { "-2^2", -4 }, { "2^-1", 0.5 }, { "--3", 3 }, { " 7 ", 7 }, { "1.5e3", 1500 }, { "1e-2", 0.01 },
    { "0.25", 0.25 }, { "ceil(7 / 2)", 4 }, { "floor(7/2)", 3 }, { "floor(-7/2)", -4 }, { "ceil(4)", 4 },
    { "min(3, 2)", 2 }, { "min(2, 3)", 2 }, { "max(3, 2)", 3 }, { "max(2,3)", 3 }, { "min(1 + 1, max(1, 5))", 2 },
    { "H", 6144 }, { "Q", 64 }, { "G", 4 }, { "D", 128 }, { "X", 128 }, { "V", 200064 }, { "N", 16 }, { "K", 4 },
    { "E", 128 }, { "F", 3072 }, { "I", 12288 }, { "J", 3072 }, { "W", 1280 }, { "A", 16 }, { "U", 80 }, { "L", 5120 },
    { "Y", 6144 }, { "Z", 24576 }, { "C", 1176 }, { "R", 64 }, { "T", 1048576 }, { "batch", 2 }, { "layers", 60 },
    { "full", 3 }, { "sparse", 57 }, { "dense", 3 }, { "moe", 57 }, { "cached", 60 }, { "indexed", 57 },
    { "block", 128 }, { "keys", 2048 }, { "max_positions", 1048576 }, { "theta", 5e6 }, { "eps", 1e-6 },
    { "scaling", 2 }, { "alpha", 1.702 }, { "limit", 7 }, { "patch", 14 }, { "merge", 2 }, { "temporal_patch", 2 },
    { "channels", 3 }, { "segment", 4 }, { "vision_layers", 32 }, { "vision_theta", 10000 }, { "image_token", 200025 },
    { "video_token", 200026 }, { "vision", 1 }, { "local_blocks", 1 }, { "init_blocks", 0 }, { "modules", 7 },
    { "mtp", 0 }, { "params_mtp", 0 },
    { "weight_bits", 16 }, { "kv_bits", 16 }, { "index_bits", 16 }, { "gpus", 8 }, { "card", 141e9 },
    { "peak", 989e12 }, { "bandwidth", 4.8e12 }, { "act", 5368709120 },
    { "57 * 2*G*X*T", 61203283968 }, { "kv_bytes_per_sequence.index", 15300820992 }, { "kv_bytes.index", 30601641984 },
    { "flops_decode.full_attention / full", 34359738368 }, { "ratios.main_branch", 512 },
    { "ratios.layer_attention * 17", 512 }, { "params_total", 427040140160 }, { "context", 1048576 },
    { "expert_spread.p_fullest.0 + expert_spread.p_fullest.1 + expert_spread.p_fullest.2 + "
      "expert_spread.p_fullest.3", 1 },
    { "params_by_component.moe_routed / (57 * 128)", 56623104 },
};
/* clang-format on */

/* clang-format off */
static const char *const bad_formulas[] = {
    "", " ", "1 +", "(1", "1)", "()", "1 2", "2T", "* 2", "nosuch", "kv_bytes", "kv_bytes.", "kv_bytes.nosuch", "gpu",
    "bound", "weight_bytes_stored", "ceil 2", "ceil(", "ceil()", "ceil(1, 2)", "min(1)", "min(1, 2, 3)", "0x10", "1..2",
    ".5", "1,000", "1 % 2", "H.G", "T()", "1 + (2 * (3 - )",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "1111111111111111111111111111111111111111111111111111111111111111111111111111111111",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((1",
    "--------------------------------------------------------------------------------1",
    "2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2"
    "^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2",
};
/* clang-format on */

START_TEST(formulas_by_hand)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 2, "bf16", "bf16");
    r.gpu = m3_gpu_named("h200");
    r.gpus = 8;
    r.card_bytes = 141000000000;
    struct m3_estimate e = estimate(&config, &r);
    json_t *summary = m3_estimate_json(&e);
    struct m3_error error = { 0 };
    double value;
    for (size_t i = 0; i < sizeof formulas / sizeof formulas[0]; i++) {
        ck_assert_msg(m3_figure_value(&value, formulas[i].formula, &e, &error) == M3_OK, "%s", formulas[i].formula);
        ck_assert_msg(close_to(value, formulas[i].value), "%s: got %.17g", formulas[i].formula, value);
    }
    for (size_t i = 0; i < sizeof bad_formulas / sizeof bad_formulas[0]; i++) {
        value = 1;
        ck_assert_msg(m3_figure_value(&value, bad_formulas[i], &e, &error) == M3_BAD_INPUT && isnan(value), "%s",
                      bad_formulas[i]);
    }
    m3_error_free(&error);
    json_decref(summary);
    m3_config_free(&config);
}
END_TEST

/* ---- verdicts */

START_TEST(verdicts)
{
    /* clang-format off */
    static const struct {
        const char *printed, *formula;
        enum m3_reproduction verdict;
    } rows[] = {
        { "14.2 GiB", "kv_bytes.index", M3_REPRODUCTION_REPRODUCED },        /* 14.25 GiB: exactly half a unit either way */
        { "14.3 GiB", "kv_bytes.index", M3_REPRODUCTION_REPRODUCED },
        { "14.1 GiB", "kv_bytes.index", M3_REPRODUCTION_DIFFERS },
        { "14.3 GB", "kv_bytes.index", M3_REPRODUCTION_DIFFERS },
        { "15.3 GB", "kv_bytes.index", M3_REPRODUCTION_REPRODUCED },
        { "15,300,820,992 bytes", "kv_bytes.index", M3_REPRODUCTION_REPRODUCED },
        { "15,300,820,993 bytes", "kv_bytes.index", M3_REPRODUCTION_DIFFERS },
        { "100", "100.5", M3_REPRODUCTION_REPRODUCED }, { "100", "100.51", M3_REPRODUCTION_DIFFERS }, { "100", "99.49", M3_REPRODUCTION_DIFFERS },
        { "0", "0/0", M3_REPRODUCTION_NOT_COMPUTABLE }, { "0", "1/0", M3_REPRODUCTION_NOT_COMPUTABLE }, { "0", "-1/0", M3_REPRODUCTION_NOT_COMPUTABLE },
        { "0", NULL, M3_REPRODUCTION_NOT_COMPUTABLE },
    };
    /* clang-format on */
    load();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct m3_printed row = { "here", "by hand", "m3 T=1M", rows[i].printed, rows[i].formula, NULL };
        ck_assert_msg(judge(&row, 0).verdict == rows[i].verdict, "%s against %s", rows[i].printed, rows[i].formula);
    }
    static const struct m3_printed bad[] = {
        { "here", "no number", "m3", "many", "1", NULL },
        { "here", "no model", "m4", "1", "1", NULL },
        { "here", "no formula", "m3", "1", "1 +", NULL },
        { "here", "no figure", "m3 T=1M B=2147483648", "1", "flops_decode_step", NULL },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct m3_error error = { 0 };
        struct m3_judgement judgement;
        struct m3_subject subject = { &loaded[0].own, NULL, NULL };
        int status = m3_printed_judge(&judgement, &bad[i], &subject, &error);
        m3_error_free(&error);
        ck_assert_msg(status == M3_BAD_INPUT && judgement.verdict == M3_REPRODUCTION_NOT_COMPUTABLE, "%s", bad[i].what);
    }
    unload();
}
END_TEST

/* ---- marks */

static struct m3_mark marks[M3_MOST_MARKS];

/* Of M3, as `r` asks; -1 if a mark is about a figure of another value than the estimate's. */
static int marks_for(const struct m3_estimate_request *r)
{
    struct m3_error error = { 0 };
    struct m3_estimate e = estimate(&loaded[0].own, r);
    json_t *summary = m3_estimate_json(&e);
    int count, status = m3_estimate_marks(marks, &count, &e, summary, &error);
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
    for (int i = 0; i < count; i++) {
        const json_t *value = m3_estimate_value(summary, marks[i].key), *quotient = json_object_get(value, "value");
        double here = json_number_value(quotient ? quotient : value);
        int whole = !strchr(marks[i].row->formula, '/');
        ck_assert_msg(here > 0 && (!whole || fabs(marks[i].judgement.ours - here) <= 1e-12 * here), "%s: %.17g, %.17g",
                      marks[i].key, here, marks[i].judgement.ours);
        ck_assert_int_eq(marks[i].judgement.verdict, M3_REPRODUCTION_DIFFERS);
    }
    json_decref(summary);
    return count;
}

static int marked(int count, const char *erratum, const char *key)
{
    int found = 0;
    for (int i = 0; i < count; i++)
        found += strcmp(marks[i].row->erratum, erratum) == 0 && strcmp(marks[i].key, key) == 0;
    return found;
}

START_TEST(marks_of_a_request)
{
    load();
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    int count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E0-55", "flops_decode.projections"), 2);        /* a layer, all layers */
    ck_assert_int_eq(marked(count, "E3-18", "flops_decode.total"), 1);              /* printed again in 6.6, 7, 7.5 */
    ck_assert_int_eq(marked(count, "E3-10", "params_total"), 2);                    /* 427.2 and 428 */
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 1);                  /* a formula of one sequence */
    ck_assert_int_eq(marked(count, "E3-13", "ratios.layer_attention"), 1);
    ck_assert_int_eq(marked(count, "E3-48", "arithmetic_intensity"), 1);
    ck_assert_int_eq(marked(count, "E0-50", "flops_decode.msa_main"), 1);
    ck_assert_int_eq(marked(count, "E3-12", "flops_decode.full_attention"), 0);     /* its formula has no key */
    ck_assert_int_eq(marked(count, "E3-46", "decode_read_bytes.kv_full"), 0);       /* a sum of three */
    ck_assert_int_eq(marked(count, "E3-32", "max_batch"), 0);

    r.context = 128 * K;                                                            /* T is another */
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E0-55", "flops_decode.projections"), 2);
    ck_assert_int_eq(marked(count, "E3-18", "flops_decode.total"), 0);
    ck_assert_int_eq(marked(count, "E0-50", "flops_decode.msa_main"), 0); /* though the figure is the same */
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);

    r = request(M, 2, "bf16", "bf16"); /* two sequences */
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes_per_sequence.total"), 1);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);
    ck_assert_int_eq(marked(count, "E3-48", "arithmetic_intensity"), 0);
    ck_assert_int_eq(marked(count, "E3-47", "decode_read_bytes.weights"), 0);

    r = request(M, 1, "int4", "fp8"); /* other formats, cards */
    r.gpu = m3_gpu_named("h200");
    r.gpus = 8;
    r.card_bytes = 141000000000;
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);
    ck_assert_int_eq(marked(count, "E3-23", "kv_bytes.total"), 1); /* in FP8 */
    ck_assert_int_eq(marked(count, "E3-32", "max_batch"), 1);
    ck_assert_int_eq(marked(count, "E3-10", "weight_bytes"), 0);
    r.card_bytes = 143771 * (int64_t)M;
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-32", "max_batch"), 0);

    r = request(M, 1, "bf16", "bf16"); /* not named, but it matters */
    r.mtp_modules = 1;
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-10", "params_total"), 0);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);
    ck_assert_int_eq(marked(count, "E3-18", "flops_decode.total"), 1);
    unload();
}
END_TEST

START_TEST(no_marks_of_other_models)
{
    load();
    loaded[0].own.max_positions--;
    struct m3_estimate_request r = request(4096, 1, "bf16", "bf16");
    ck_assert_int_eq(marks_for(&r), 0);
    unload();
}
END_TEST

Suite *m3_suite(void)
{
    Suite *suite = suite_create("documents");
    TCase *cases = tcase_create("documents");
    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, every_printed_figure, 0, M3_DOCUMENTS);
    tcase_add_loop_test(cases, rows_are_filled_in, 0, M3_DOCUMENTS);
    tcase_add_loop_test(cases, every_figure_matters, 0, M3_DOCUMENTS);
    tcase_add_test(cases, models_by_their_sizes);
    tcase_add_test(cases, models_of_other_sizes);
    tcase_add_loop_test(cases, printed_numbers, 0, sizeof numbers / sizeof numbers[0]);
    tcase_add_test(cases, settings);
    tcase_add_test(cases, formulas_by_hand);
    tcase_add_test(cases, verdicts);
    tcase_add_test(cases, marks_of_a_request);
    tcase_add_test(cases, no_marks_of_other_models);
    suite_add_tcase(suite, cases);
    return suite;
}
