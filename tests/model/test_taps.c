/* Names of taps, their order, and the patterns that choose them. The list below is written out from the format's
 * dictionary, not from the table. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "model/taps.h"

/* In execution order, with shape, layers and what it holds. */
/* clang-format off */
static const struct { const char *name, *shape; enum m3_tap_where where; enum m3_tap_kind kind; } dictionary[] = {
    { "vision.pixels", "PC", M3_WHERE_BEFORE_VISION_LAYERS, 0 }, { "vision.grid", "O3", M3_WHERE_BEFORE_VISION_LAYERS, 2 },
    { "vision.patch_embed", "PW", M3_WHERE_BEFORE_VISION_LAYERS, 0 }, { "vision.pre_norm", "PW", M3_WHERE_BEFORE_VISION_LAYERS, 0 },
    { "vision.layers.7.norm1", "PW", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.q_proj", "PAU", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.k_proj", "PAU", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.v_proj", "PAU", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.q_rope", "PAU", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.k_rope", "PAU", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.attn", "PAU", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.attn_out", "PW", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.mid", "PW", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.norm2", "PW", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.fc1", "PL", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.act", "PL", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.mlp", "PW", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "vision.layers.7.out", "PW", M3_WHERE_EVERY_VISION_LAYER, 0 },
    { "projector.linear_1", "PY", M3_WHERE_AFTER_VISION_LAYERS, 0 }, { "projector.act_1", "PY", M3_WHERE_AFTER_VISION_LAYERS, 0 },
    { "projector.linear_2", "PH", M3_WHERE_AFTER_VISION_LAYERS, 0 }, { "projector.merged", "MZ", M3_WHERE_AFTER_VISION_LAYERS, 0 },
    { "projector.merge_linear_1", "MY", M3_WHERE_AFTER_VISION_LAYERS, 0 },
    { "projector.act_2", "MY", M3_WHERE_AFTER_VISION_LAYERS, 0 }, { "projector.out", "MH", M3_WHERE_AFTER_VISION_LAYERS, 0 },
    { "embed", "TH", M3_WHERE_BEFORE_LAYERS, 0 }, { "fused", "TH", M3_WHERE_BEFORE_LAYERS, 0 },
    { "mtp.7.embed_norm", "TH", M3_WHERE_EVERY_MTP_MODULE, 0 }, { "mtp.7.hidden_norm", "TH", M3_WHERE_EVERY_MTP_MODULE, 0 },
    { "mtp.7.eh_proj", "TH", M3_WHERE_EVERY_MTP_MODULE, 0 },
    { "layers.7.attn_norm", "TH", M3_WHERE_EVERY_LAYER, 0 }, { "layers.7.q_proj", "TQD", M3_WHERE_EVERY_LAYER, 0 },
    { "layers.7.k_proj", "TGD", M3_WHERE_EVERY_LAYER, 0 }, { "layers.7.v_proj", "TGD", M3_WHERE_EVERY_LAYER, 0 },
    { "layers.7.q_norm", "TQD", M3_WHERE_EVERY_LAYER, 0 }, { "layers.7.k_norm", "TGD", M3_WHERE_EVERY_LAYER, 0 },
    { "layers.7.q_rope", "TQD", M3_WHERE_EVERY_LAYER, 0 }, { "layers.7.k_rope", "TGD", M3_WHERE_EVERY_LAYER, 0 },
    { "layers.7.index.q_proj", "TGX", M3_WHERE_SPARSE_LAYER, 0 }, { "layers.7.index.k_proj", "TX", M3_WHERE_SPARSE_LAYER, 0 },
    { "layers.7.index.q_norm", "TGX", M3_WHERE_SPARSE_LAYER, 0 }, { "layers.7.index.k_norm", "TX", M3_WHERE_SPARSE_LAYER, 0 },
    { "layers.7.index.q_rope", "TGX", M3_WHERE_SPARSE_LAYER, 0 }, { "layers.7.index.k_rope", "TX", M3_WHERE_SPARSE_LAYER, 0 },
    { "layers.7.index.block_scores", "TGB", M3_WHERE_SPARSE_LAYER, 0 },
    { "layers.7.index.blocks", "TGN", M3_WHERE_SPARSE_LAYER, 1 },
    { "layers.7.attn_lse", "TQ", M3_WHERE_EVERY_LAYER, 0 }, { "layers.7.attn", "TQD", M3_WHERE_EVERY_LAYER, 0 },
    { "layers.7.attn_out", "TH", M3_WHERE_EVERY_LAYER, 0 }, { "layers.7.mid", "TH", M3_WHERE_EVERY_LAYER, 0 },
    { "layers.7.mlp_norm", "TH", M3_WHERE_EVERY_LAYER, 0 }, { "layers.7.mlp.gate", "TI", M3_WHERE_DENSE_MLP_LAYER, 0 },
    { "layers.7.mlp.up", "TI", M3_WHERE_DENSE_MLP_LAYER, 0 }, { "layers.7.mlp.act", "TI", M3_WHERE_DENSE_MLP_LAYER, 0 },
    { "layers.7.moe.router_logits", "TE", M3_WHERE_MOE_LAYER, 0 }, { "layers.7.moe.router_scores", "TE", M3_WHERE_MOE_LAYER, 0 },
    { "layers.7.moe.experts", "TK", M3_WHERE_MOE_LAYER, 1 }, { "layers.7.moe.weights", "TK", M3_WHERE_MOE_LAYER, 0 },
    { "layers.7.moe.expert_out", "TKH", M3_WHERE_MOE_LAYER, 0 }, { "layers.7.moe.routed", "TH", M3_WHERE_MOE_LAYER, 0 },
    { "layers.7.moe.shared", "TH", M3_WHERE_SHARED_LAYER, 0 }, { "layers.7.mlp", "TH", M3_WHERE_EVERY_LAYER, 0 },
    { "layers.7.out", "TH", M3_WHERE_EVERY_LAYER, 0 },
    { "final_norm", "TH", M3_WHERE_AFTER_LAYERS, 0 }, { "logits", "TV", M3_WHERE_AFTER_LAYERS, 0 },
    { "mtp.7.final_norm", "TH", M3_WHERE_EVERY_MTP_MODULE, 0 }, { "mtp.7.logits", "TV", M3_WHERE_EVERY_MTP_MODULE, 0 },
};
/* clang-format on */

/* Goal:  the table is the dictionary, in its order, and names are made and read alike.
 * Seen to fail with two rows of the table exchanged, and with a wrong shape. */
TEST(table_is_the_dictionary)
{
    ck_assert_int_eq(sizeof dictionary / sizeof *dictionary, M3_TAPS);
    for (int i = 0; i < M3_TAPS; i++) {
        char name[64];
        enum m3_tap tap;
        int64_t layer;
        int in_module = strncmp(dictionary[i].name, "mtp.", 4) == 0;
        int in_layer = strstr(dictionary[i].name, "layers.7.") != NULL;
        int64_t number = in_module ? M3_MTP_LAYER + 7 : in_layer ? 7 : -1;
        ck_assert_int_eq(m3_tap_name(name, sizeof name, i, number), 0);
        ck_assert_str_eq(name, dictionary[i].name);
        ck_assert_int_eq(m3_tap_parse(name, &tap, &layer), 0);
        ck_assert_int_eq(tap, i);
        ck_assert_int_eq(layer, number);
        ck_assert_str_eq(m3_tap_table[i].shape, dictionary[i].shape);
        ck_assert_int_eq(m3_tap_table[i].where, dictionary[i].where);
        ck_assert_int_eq(m3_tap_table[i].kind, dictionary[i].kind);
    }
}

/* Goal:  a module's layer has the taps of a text layer, under the module's name, and no others.
 * Seen to fail with "mtp.3.layer.logits" taken, and with the module's number left as it is. */
TEST(layers_of_modules)
{
    for (int i = 0; i < M3_TAPS; i++) {
        char name[64], want[64];
        enum m3_tap tap;
        int64_t layer;
        const char *in_layer = strncmp(dictionary[i].name, "layers.7.", 9) == 0 ? dictionary[i].name + 9 : NULL;
        snprintf(want, sizeof want, "mtp.3.layer.%s", in_layer ? in_layer : dictionary[i].name);
        if (!in_layer) {
            ck_assert_msg(m3_tap_parse(want, &tap, &layer) == -1, "\"%s\" is taken for a tap", want);
            continue;
        }
        ck_assert_int_eq(m3_tap_name(name, sizeof name, i, M3_MTP_LAYER + 3), 0);
        ck_assert_str_eq(name, want);
        ck_assert_int_eq(m3_tap_parse(want, &tap, &layer), 0);
        ck_assert(tap == (enum m3_tap)i && layer == M3_MTP_LAYER + 3);
    }
}

/* Seen to fail with "mtp.0.embed" taken, with a number of any spelling taken ("07"), and with one beyond
 * 64 bits, which sorts as `logits`. */
TEST(no_such_tap)
{
    /* clang-format off */
    static const char *const names[] = {
        "", "layers", "layers.", "layers.7", "layers.7.", "layers..out", "layers.-1.out", "layers.+1.out",
        "layers. 1.out", "layers.07.out", "layers.00.out", "layers.7.logits", "layers.7.embed", "out",
        "layers.7.outs", "layers.7.ou", "layers.x.out", "layers.7x.out", "layers.7.moe", "embed.bound",
        "layers.7.out.bound", "rows", "Embed", "layers.9223372036854775807.out", "layers.99999999999999999999.out",
        "mtp.layers.7.out", "vision.layers.out", "vision.layers.07.out", "vision.layers.7.attn_norm", "vision.out",
        "layers.7.fc1", "vision.layers.7.projector.out", "vision.layers.7.vision.grid", "pixels",
        "mtp.0.embed", "mtp.0.out", "mtp.out", "mtp.00.logits", "mtp.0.layers.out", "mtp.0.layer.logits",
        "mtp.-1.logits",
        "mtp.0.layer.layer.out", "layers.16777216.out", "mtp.16777216.logits", "mtp.0.layer.norm1",
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        enum m3_tap tap;
        int64_t layer;
        ck_assert_msg(m3_tap_parse(names[i], &tap, &layer) == -1, "\"%s\" is taken for a tap", names[i]);
    }
}

TEST(layer_numbers)
{
    static const int64_t layers[] = { 0, 9, 10, 59, 1000 };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char name[64];
        enum m3_tap tap;
        int64_t layer;
        ck_assert_int_eq(m3_tap_name(name, sizeof name, M3_TAP_OUT, layers[i]), 0);
        ck_assert_int_eq(m3_tap_parse(name, &tap, &layer), 0);
        ck_assert(tap == M3_TAP_OUT && layer == layers[i]);
    }
}

/* Goal:  execution order goes by part of the pass, then layer, then the list.
 * Seen to fail with the layer compared before the part, and with sparse layers as a part of their own. */
TEST(order)
{
    /* clang-format off */
    static const char *const names[] = {
        "vision.pixels", "vision.pre_norm", "vision.layers.0.norm1", "vision.layers.0.out", "vision.layers.31.norm1",
        "projector.linear_1", "projector.out", "embed", "fused", "layers.0.attn_norm", "layers.0.attn_lse",
        "layers.0.mlp_norm", "layers.0.mlp.gate", "layers.0.out", "layers.1.attn_norm", "layers.1.index.q_proj",
        "layers.1.attn", "layers.1.moe.experts", "layers.1.mlp", "layers.10.attn_norm", "final_norm", "logits",
        "mtp.0.embed_norm", "mtp.0.eh_proj", "mtp.0.layer.attn_norm", "mtp.0.layer.moe.experts", "mtp.0.layer.out",
        "mtp.0.final_norm", "mtp.0.logits", "mtp.1.embed_norm", "mtp.10.layer.out",
    };
    /* clang-format on */
    enum { NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < NAMES; i++) {
        for (int j = 0; j < NAMES; j++) {
            enum m3_tap a, b;
            int64_t layer_a, layer_b;
            ck_assert(!m3_tap_parse(names[i], &a, &layer_a) && !m3_tap_parse(names[j], &b, &layer_b));
            int got = m3_tap_order(a, layer_a, b, layer_b);
            ck_assert_msg((got > 0) - (got < 0) == (i > j) - (i < j), "%s and %s", names[i], names[j]);
        }
    }
}

/* Goal:  a name that does not fit is an error, with its NUL.
 * Seen to fail with <= for <. */
TEST(names_that_do_not_fit)
{
    char name[16];
    memset(name, 'x', sizeof name);
    ck_assert_int_eq(m3_tap_name(name, 12, M3_TAP_OUT, 10), -1);        /* "layers.10.out" is 13 long */
    ck_assert_int_eq(m3_tap_name(name, 13, M3_TAP_OUT, 10), -1);
    ck_assert_int_eq(name[13], 'x');
    ck_assert_int_eq(m3_tap_name(name, 14, M3_TAP_OUT, 10), 0);
    ck_assert_str_eq(name, "layers.10.out");
    ck_assert_int_eq(name[14], 'x');
}

/* Seen to fail with '*' that stops at a dot, with prefixes that match, and with only the first pattern tried. */
TEST(patterns)
{
    /* clang-format off */
    static const struct { const char *patterns, *name; int matches; } cases[] = {
        { NULL, "embed", 1 }, { "*", "embed", 1 }, { "", "embed", 0 }, { "embed", "embed", 1 },
        { "embe", "embed", 0 }, { "embedd", "embed", 0 }, { "layers.3.*", "layers.3.moe.experts", 1 },
        { "layers.3.*", "layers.31.out", 0 }, { "layers.?.out", "layers.3.out", 1 },
        { "layers.?.out", "layers.31.out", 0 }, { "layers.*.out", "layers.31.out", 1 },
        { "layers.*.out", "layers.31.attn_out", 0 }, { "*out", "layers.31.attn_out", 1 },
        { "*.q_*", "layers.0.q_rope", 1 }, { "*.q_*", "layers.0.index.q_rope", 1 }, { "a,logits", "logits", 1 },
        { "a,b", "logits", 0 }, { ",logits", "logits", 1 }, { "logits,", "logits", 1 },
        { "embed,logits", "embed,logits", 0 }, { "l*,x", "logits", 1 }, { "*s,x", "logits", 1 },
        { "l**s", "logits", 1 }, { "?", "", 0 }, { "*", "", 1 }, { "logits*", "logits", 1 },
        { "[l]ogits", "logits", 1 }, { "[ab]ogits", "logits", 0 },
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(m3_tap_matches(cases[i].patterns, cases[i].name) == cases[i].matches, "\"%s\" on \"%s\"",
                      cases[i].patterns ? cases[i].patterns : "(null)", cases[i].name);
}
