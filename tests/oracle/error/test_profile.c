/* Profiles: what the built-in ones say of every point, and what a file may not say (SPEC 7.3). */
#include "files.h"

#include "oracle/error/profile.h"

TIMEOUT(60);
FIXTURE(make_folder, remove_folder);

static struct m3_profile *open_profile(const char *name)
{
    struct m3_error error = { 0 };
    struct m3_profile *profile;
    int status = m3_profile_open(&profile, name, &error);
    ck_assert_msg(status == M3_OK && profile, "%s: %d %s", name, status, error.text ? error.text : "");
    ck_assert(error.count == 0);
    return profile;
}

/* A profile from a file with the fields in `more` beside name and u. */
static struct m3_profile *profile_with(const char *more)
{
    char text[2000];
    snprintf(text, sizeof text, "{\"name\": \"own\", \"u\": \"f32\"%s%s}", *more ? ", " : "", more);
    write_text(in_folder("own.json"), text);
    return open_profile(in_folder("own.json"));
}

/* Goal:  fp32 rounds nowhere.
 * Claim: no point is coarser than float, embed alone is exact, angles may be float with 4 u for sine and cosine.
 * Seen to fail with "*": "bf16" in ref/oracle/error/profiles/fp32.json, which the build took in. */
TEST(fp32)
{
    struct m3_profile *p = open_profile("fp32");
    ck_assert_str_eq(m3_profile_name(p), "fp32");
    const char *const points[] = { "layers.0.q_proj", "layers.3.attn.logits", "embed", "logits", "layers.9.rope.cos" };
    for (int i = 0; i < 5; i++) {
        ck_assert(m3_profile_store(p, points[i]) == 0);
        ck_assert_int_eq(m3_profile_dtype(p, points[i]), M3_F32);
        ck_assert_int_eq(m3_profile_input(p, points[i]).dtype, M3_DTYPES);
        ck_assert(m3_profile_dump_rounding(p, points[i]) == 0);
        ck_assert_int_eq(m3_profile_exact(p, points[i]), i == 2);
    }
    struct m3_arithmetic how = m3_profile_arithmetic(p, 1000);
    ck_assert(how.u == 0x1p-24 && how.c == 4 && how.c_turn == 4 && how.angle == M3_ANGLE_F32 && !how.tanh_scores);
    ck_assert(how.lambda == m3_lambda(1000));
    ck_assert(!m3_profile_truncates(p) && !m3_profile_flushes(p) && m3_profile_ties_lowest(p));
    m3_profile_close(p);
}

/* Goal:  bf16 lists the roundings of the public code in BF16, and no others.
 * Claim: the table of SPEC 7.3, in text layers, the tower and MTP modules; the four float taps; single index scores
 *        and points that do not exist are not rounded, though "*" comes first.
 * Seen to fail with patterns that end in '*' speaking of inner points (index.scores), with the first match deciding
 * (moe.weights), with "*.attn.p" left out. */
TEST(bf16)
{
    struct m3_profile *p = open_profile("bf16");
    /* clang-format off */
    const char *const coarse[] = {
        "embed", "fused", "layers.0.q_norm", "layers.59.mid", "layers.3.moe.router_logits", "layers.3.moe.expert_out",
        "layers.3.moe.routed", "layers.3.index.k_rope", "final_norm", "logits", "mtp.0.eh_proj",
        "mtp.2.layer.moe.shared", "vision.layers.7.act", "projector.merged", "vision.pixels",
        "layers.3.rope.cos", "vision.layers.0.rope.cos", "mtp.0.layer.rope.product", "vision.layers.31.rope.product",
        "layers.3.attn.logits", "layers.0.attn.p", "vision.layers.1.attn.p", "layers.3.attn.partial",
        "layers.0.mlp.act.chain", "layers.3.moe.expert.gate", "layers.3.moe.expert.up", "layers.3.moe.expert.chain",
        "layers.3.moe.expert.act", "mtp.0.layer.moe.shared.gate", "layers.3.moe.shared.up", "layers.3.moe.shared.chain",
        "layers.3.moe.shared.act", "layers.3.moe.routed.sum",
    };
    /* clang-format on */
    const char *const fine[] = {
        "layers.3.moe.router_scores", "layers.3.moe.weights",  "mtp.0.layer.moe.weights", "layers.3.index.block_scores",
        "layers.0.attn_lse",          "layers.3.index.scores", "layers.3.attn.sum",       "layers.0.q_proj.partial",
    };
    for (size_t i = 0; i < sizeof coarse / sizeof *coarse; i++) {
        ck_assert_msg(m3_profile_store(p, coarse[i]) == 0x1p-8, "%s", coarse[i]);
        ck_assert_int_eq(m3_profile_dtype(p, coarse[i]), M3_BF16);
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        ck_assert_msg(m3_profile_store(p, fine[i]) == 0, "%s", fine[i]);
        ck_assert_int_eq(m3_profile_dtype(p, fine[i]), M3_F32);
    }
    ck_assert(m3_profile_dump_rounding(p, "vision.pixels") == 0x1p-8);
    ck_assert(m3_profile_dump_rounding(p, "layers.0.mid") == 0);
    ck_assert(m3_profile_exact(p, "embed") && !m3_profile_exact(p, "fused"));
    ck_assert(!m3_profile_ties_lowest(p));
    ck_assert_int_eq(m3_profile_input(p, "layers.0.q_proj").dtype, M3_DTYPES);
    ck_assert(m3_profile_arithmetic(p, 7).u == 0x1p-24);
    m3_profile_close(p);
}

/* Goal:  tf32 allows both roundings of devices: to nearest, and the lower 13 bits of a float cut off.
 * Claim: in products of every kind the roundoff covers the cut of the worst float, and no bit more.
 * Seen to fail with the roundoff of rounding to nearest, 2^-11. */
TEST(tf32)
{
    struct m3_profile *p = open_profile("tf32");
    const uint32_t worst = 0x3F801FFF, cut = worst & ~UINT32_C(0x1FFF);
    float x, kept;
    memcpy(&x, &worst, sizeof x);
    memcpy(&kept, &cut, sizeof kept);
    const double most = ((double)x - (double)kept) / (double)x;
    const double u[] = { m3_profile_input(p, "layers.0.q_proj").u, m3_profile_input(p, "vision.patch_embed").u,
                         m3_profile_weights(p, "logits"), m3_profile_store(p, "layers.3.attn.p"),
                         m3_profile_read(p, "layers.0.index.k_rope").u };
    for (size_t i = 0; i < sizeof u / sizeof *u; i++) ck_assert_msg(u[i] >= most && u[i] < 1.01 * most, "%zu", i);
    m3_profile_close(p);
}

/* Goal:  fp8 quantises what releases quantise.
 * Claim: the linear operators of text layers and those of MTP layers, inner ones too, but neither router, tower, head
 *        nor eh_proj; else it is bf16.
 * Seen to fail with the router's null taken for no entry, with "*" in place of "layers.*". */
TEST(fp8)
{
    struct m3_profile *p = open_profile("fp8");
    const char *const quantised[] = { "layers.0.q_proj",        "layers.3.index.k_proj",    "layers.3.attn_out",
                                      "layers.0.mlp",           "layers.3.moe.expert.gate", "layers.3.moe.expert_out",
                                      "mtp.0.layer.moe.shared", "mtp.0.layer.moe.shared.up" };
    const char *const not[] = {
        "layers.3.moe.router_logits", "logits",      "vision.layers.0.q_proj", "mtp.0.eh_proj", "projector.out",
        "vision.patch_embed",         "mtp.0.logits"
    };
    for (size_t i = 0; i < sizeof quantised / sizeof *quantised; i++) {
        struct m3_input_rounding rule = m3_profile_input(p, quantised[i]);
        ck_assert_msg(rule.dtype == M3_F8_E4M3 && rule.scaling == M3_SCALE_MX32 && rule.exponent_down == 1, "%s",
                      quantised[i]);
    }
    for (size_t i = 0; i < sizeof not / sizeof *not; i++)
        ck_assert_msg(m3_profile_input(p, not[i]).dtype == M3_DTYPES, "%s", not[i]);
    ck_assert(m3_profile_store(p, "layers.3.attn.p") == 0x1p-8 && m3_profile_store(p, "layers.3.moe.weights") == 0);
    m3_profile_close(p);
}

/* Goal:  every field of a file arrives, and absent ones are what SPEC 7.3 says.
 * Seen to fail with an absent "ties" read as any, with c_turn 4 beside double angles, with a finer format taken, with
 * parts of what is stored in floats. */
TEST(fields)
{
    struct m3_profile *p = profile_with("");
    struct m3_arithmetic how = m3_profile_arithmetic(p, 1);
    ck_assert(how.u == 0x1p-24 && how.c == 4 && how.c_turn == 1 && how.angle == M3_ANGLE_F64 && !how.tanh_scores);
    ck_assert(!m3_profile_truncates(p) && !m3_profile_flushes(p) && m3_profile_ties_lowest(p));
    ck_assert(m3_profile_store(p, "embed") == 0 && !m3_profile_exact(p, "embed"));
    m3_profile_close(p);

    p = profile_with("\"rounding\": \"zero\", \"flush_subnormals\": true, \"angle\": \"f32\", \"scores\": \"tanh\", "
                     "\"ties\": \"any\", \"math\": {\"exp\": 9, \"sin\": 2}, "
                     "\"store\": {\"*\": \"f16\", \"layers.[0-2].*\": \"f64\", \"layers.57.attn.p\": \"bf16\"}, "
                     "\"input\": {\"*\": {\"dtype\": \"e4m3\", \"scale\": \"block128\"}, \"logits\": null, "
                     "\"*.moe.shared.up\": {\"dtype\": \"e4m3\", \"scale\": \"mx32\", \"exponent\": \"up\"}}, "
                     "\"weights\": {\"*.moe.*\": \"bf16\", \"layers.4.*\": \"f32\"}, "
                     "\"partials\": {\"*\": {\"ranks\": 8, \"reduce\": \"ring\"}, \"logits\": null, "
                     "\"*.moe.shared\": {\"ranks\": 2, \"reduce\": \"one_shot\"}, "
                     "\"*.mlp\": {\"ranks\": 64, \"reduce\": \"any\"}}, "
                     "\"exact\": [\"fused\", \"*.v_proj\"], \"dump_rounding\": {\"*.attn\": \"f16\"}");
    how = m3_profile_arithmetic(p, 1);
    ck_assert(how.c == 9 && how.c_turn == 2 && how.angle == M3_ANGLE_F32 && how.tanh_scores);
    ck_assert(m3_profile_truncates(p) && m3_profile_flushes(p) && !m3_profile_ties_lowest(p));
    ck_assert(m3_profile_store(p, "layers.3.mid") == 0x1p-11 && m3_profile_dtype(p, "layers.3.mid") == M3_F16);
    ck_assert(m3_profile_store(p, "layers.2.mid") == 0 && m3_profile_dtype(p, "layers.2.mid") == M3_F32);
    ck_assert(m3_profile_store(p, "layers.57.attn.p") == 0x1p-8 && m3_profile_store(p, "layers.56.attn.p") == 0);
    struct m3_input_rounding up = m3_profile_input(p, "layers.3.moe.shared.up"), all = m3_profile_input(p, "embed");
    ck_assert(up.scaling == M3_SCALE_MX32 && !up.exponent_down && up.dtype == M3_F8_E4M3);
    ck_assert(m3_profile_input(p, "logits").dtype == M3_DTYPES && all.scaling == M3_SCALE_128X128);
    ck_assert(m3_profile_weights(p, "layers.3.moe.experts") == 0x1p-8);
    ck_assert(m3_profile_weights(p, "layers.4.moe.experts") == 0 && m3_profile_weights(p, "layers.3.mlp.gate") == 0);
    const struct m3_partials ring = m3_profile_partials(p, "layers.3.attn_out"),
                             shared = m3_profile_partials(p, "layers.3.moe.shared"),
                             any = m3_profile_partials(p, "layers.3.mlp");
    ck_assert(ring.ranks == 8 && ring.reduce == M3_REDUCE_RING && ring.dtype == M3_F16);
    ck_assert(shared.ranks == 2 && shared.reduce == M3_REDUCE_ONE_SHOT);
    ck_assert(any.ranks == 64 && any.reduce == M3_REDUCE_ANY);
    ck_assert(m3_profile_partials(p, "logits").ranks == 0);
    ck_assert(m3_profile_partials(p, "layers.2.attn_out").ranks == 0);     /* stored in floats */
    ck_assert(m3_profile_exact(p, "vision.layers.0.v_proj") && !m3_profile_exact(p, "embed"));
    ck_assert(m3_profile_dump_rounding(p, "layers.0.attn") == 0x1p-11 && m3_profile_dump_rounding(p, "embed") == 0);
    m3_profile_close(p);

    write_text(in_folder("half.json"), "{\"u\": \"f16\", \"name\": \"half\", \"store\": {\"*\": \"f16\"}}");
    p = open_profile(in_folder("half.json"));
    ck_assert(m3_profile_arithmetic(p, 1).u == 0x1p-11 && m3_profile_store(p, "embed") == 0);
    ck_assert_int_eq(m3_profile_dtype(p, "embed"), M3_F16);
    m3_profile_close(p);
}

#define OWN "{\"name\": \"x\", \"u\": \"f32\", "

static const struct {
    const char *text, *says;
} refused[] = {
    { "[1]", "another JSON value" },
    { "{\"name\": \"x\", \"u\": \"f32\",}", "line 1" },
    { "{\"name\": \"x\", \"name\": \"y\", \"u\": \"f32\"}", "line 1" },
    { "{\"u\": \"f32\"}", "name: got nothing, expected a name" },
    { "{\"name\": \"\", \"u\": \"f32\"}", "name: got \"\", expected a name" },
    { "{\"name\": \"x\"}", "u: got nothing, expected \"f64\"" },
    { "{\"name\": \"x\", \"u\": \"fp32\"}", "u: got \"fp32\", expected \"f64\"" },
    { "{\"name\": \"x\", \"u\": \"e4m3\"}", "u: got \"e4m3\"" },
    { OWN "\"stores\": {}}", "stores: got {}, expected nothing" },
    { OWN "\"rounding\": \"up\"}", "rounding: got \"up\", expected \"nearest\" or \"zero\"" },
    { OWN "\"flush_subnormals\": 1}", "flush_subnormals: got 1, expected true or false" },
    { OWN "\"angle\": 32}", "angle: got 32, expected \"f64\" or \"f32\"" },
    { OWN "\"ties\": null}", "ties: got null" },
    { OWN "\"math\": 4}", "math: got 4, expected an object" },
    { OWN "\"math\": {\"exp\": 0}}", "math[\"exp\"]: got 0, expected 1 to 1024" },
    { OWN "\"math\": {\"exp\": 2.5}}", "math[\"exp\"]: got 2.5" },
    { OWN "\"math\": {\"log\": 4}}", "math[\"log\"]: got 4, expected nothing" },
    { OWN "\"store\": [\"*\"]}", "store: got [\"*\"], expected an object" },
    { OWN "\"store\": {\"*\": \"fp8\"}}", "store[\"*\"]: got \"fp8\", expected \"f64\"" },
    { OWN "\"store\": {\"*.q_prj\": \"bf16\"}}", "store: got \"*.q_prj\", expected a pattern" },
    { OWN "\"store\": {\"*.index.blocks\": \"bf16\"}}", "store: got \"*.index.blocks\"" },
    { OWN "\"store\": {\"*.attn.*\": \"bf16\"}}", "store: got \"*.attn.*\"" },
    { OWN "\"exact\": \"embed\"}", "exact: got \"embed\", expected a list" },
    { OWN "\"exact\": [3]}", "exact: got 3, expected a pattern" },
    { OWN "\"exact\": [\"*.attn.p\"]}", "expected a pattern that matches a tap" },
    { OWN "\"dump_rounding\": {\"*.rope.cos\": \"bf16\"}}", "dump_rounding: got \"*.rope.cos\"" },
    { OWN "\"input\": {\"*.mid\": null}}", "expected a pattern that matches a linear operator" },
    { OWN "\"input\": {\"*\": \"e4m3\"}}", "input[\"*\"]: got \"e4m3\", expected null" },
    { OWN "\"input\": {\"*\": {\"dtype\": \"e4m3\", \"scale\": \"mx32\"}}}", "input[\"*\"]" },
    { OWN "\"input\": {\"*\": {\"dtype\": \"e5m2\", \"scale\": \"block128\"}}}", "input[\"*\"]" },
    { OWN "\"input\": {\"*\": {\"dtype\": \"e4m3\", \"scale\": \"mx32\", \"exponent\": \"up\", "
          "\"x\": 1}}}",
      "input[\"*\"]" },
    { OWN "\"partials\": [8]}", "partials: got [8], expected an object" },
    { OWN "\"partials\": {\"*.attn_norm\": null}}",
      "partials: got \"*.attn_norm\", expected a pattern that matches a linear operator" },
    { OWN "\"partials\": {\"*.mlp\": 8}}", "partials[\"*.mlp\"]: got 8, expected null" },
    { OWN "\"partials\": {\"*.mlp\": {\"ranks\": 1, \"reduce\": \"any\"}}}", "partials[\"*.mlp\"]" },
    { OWN "\"partials\": {\"*.mlp\": {\"ranks\": 65, \"reduce\": \"any\"}}}", "partials[\"*.mlp\"]" },
    { OWN "\"partials\": {\"*.mlp\": {\"ranks\": 8}}}", "partials[\"*.mlp\"]" },
    { OWN "\"partials\": {\"*.mlp\": {\"ranks\": 8, \"reduce\": \"tree\"}}}", "expected null or {\"ranks\":2 to 64" },
    { OWN "\"partials\": {\"*.mlp\": {\"ranks\": 8, \"reduce\": \"any\", \"x\": 1}}}", "partials[\"*.mlp\"]" },
};

/* Goal:  what a profile must not say is refused by name, and *profile is NULL.
 * Seen to fail with unknown fields passed over, with patterns not looked up, with '!' left out of json_unpack, also in
 * partials, with any number of ranks. */
LOOP_TEST(refusals, sizeof refused / sizeof *refused)
{
    write_text(in_folder("bad.json"), refused[_i].text);
    struct m3_error error = { 0 };
    struct m3_profile *p = (void *)&error;
    ck_assert_int_eq(m3_profile_open(&p, in_folder("bad.json"), &error), M3_BAD_INPUT);
    ck_assert_ptr_null(p);
    ck_assert_msg(strstr(error.text, refused[_i].says) != NULL, "%s: %s", refused[_i].says, error.text);
    ck_assert_ptr_nonnull(strstr(error.text, "bad.json: "));
    m3_error_free(&error);
}

/* Goal:  a pattern is good if it matches a tap of any layer, also of one beyond the first.
 * Seen to fail with layer 0 alone looked at: for patterns with digits, with '?', with a set. */
TEST(patterns_of_layers)
{
    const char *const good[] = { "layers.7.out",      "layers.*.out", "layers.??.out",
                                 "layers.[1-9]?.q_*", "mtp.3.*",      "*9.out" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char text[200];
        snprintf(text, sizeof text, OWN "\"store\": {\"%s\": \"bf16\"}}", good[i]);
        write_text(in_folder("layers.json"), text);
        m3_profile_close(open_profile(in_folder("layers.json")));
    }
}

/* Seen to fail with a name that is not built in opened as a file. */
TEST(absent)
{
    const char *const names[] = { "fp4", "", "./absent.json", "absent.json", "/nowhere/x" };
    const char *const all =
        "bf16, cuda_bf16, fp16, fp32, fp8, llama_cpp, llama_cpp_f32, mlx_bf16, mxfp4, nvfp4, tf32, w4a16";
    const char *const says[] = { all, all, "absent.json", "absent.json", "/nowhere/x" };
    for (int i = 0; i < 5; i++) {
        struct m3_error error = { 0 };
        struct m3_profile *p;
        ck_assert_int_eq(m3_profile_open(&p, names[i], &error), M3_ABSENT);
        ck_assert_ptr_null(p);
        ck_assert_ptr_nonnull(strstr(error.text, says[i]));
        m3_error_free(&error);
    }
    m3_profile_close(NULL);
}

/* Goal:  a file in ref/oracle/error/profiles/ is a built-in profile, of its name and all of its contents.
 * Claim: as many names as files; opened by name and by path, each has the same hash.
 * Seen to fail with fp8.json left out of the rule in the Makefile, and with the lines of "scores" left out. */
TEST(built_in)
{
    char path[120];
    int files = 0, names = 0;
    DIR *folder = opendir("ref/oracle/error/profiles");
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *e; (e = readdir(folder)) != NULL;) files += strstr(e->d_name, ".json") != NULL;
    closedir(folder);
    for (; m3_built_in_profiles[names][0]; names++) {
        snprintf(path, sizeof path, "ref/oracle/error/profiles/%s.json", m3_built_in_profiles[names][0]);
        struct m3_profile *by_name = open_profile(m3_built_in_profiles[names][0]), *by_path = open_profile(path);
        ck_assert_str_eq(m3_profile_sha256(by_name), m3_profile_sha256(by_path));
        m3_profile_close(by_name);
        m3_profile_close(by_path);
    }
    ck_assert_int_eq(names, files);
}
