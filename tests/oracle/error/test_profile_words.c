/* Profiles that build on others: "base" in files, and words after a name (SPEC 7.3). */
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

static struct m3_profile *open_text(const char *file, const char *text)
{
    write_text(in_folder(file), text);
    return open_profile(in_folder(file));
}

static void refuses(const char *name, enum m3_status expected, const char *says, const char *also)
{
    struct m3_error error = { 0 };
    struct m3_profile *p = (void *)&error;
    ck_assert_int_eq(m3_profile_open(&p, name, &error), expected);
    ck_assert_ptr_null(p);
    ck_assert_uint_eq(error.count, 1);
    ck_assert_msg(strstr(error.text, says) && strstr(error.text, also), "%s: %s, %s", error.text, says, also);
    m3_error_free(&error);
}

/* Goal:  a file with a base says only what differs from it.
 * Claim: with nothing but its name, every answer is the base's, "math", "angle" and "ties" too, which have other
 *        defaults; a pattern of the file decides over the base's, also one that the base has in an earlier place; a
 *        list replaces the base's; a base may be a file next to the file, and have words.
 * Seen to fail with the file's patterns set at the base's place (mid); with relative paths taken from the current
 * folder. */
TEST(base)
{
    struct m3_profile *p = open_text("own.json", "{\"name\": \"own\", \"base\": \"bf16\"}");
    struct m3_arithmetic how = m3_profile_arithmetic(p, 1);
    ck_assert_str_eq(m3_profile_name(p), "own");
    ck_assert(how.u == 0x1p-24 && how.c_turn == 4 && how.angle == M3_ANGLE_F32 && !m3_profile_ties_lowest(p));
    ck_assert(m3_profile_store(p, "layers.3.rope.cos") == 0x1p-8 && m3_profile_store(p, "layers.0.attn_lse") == 0);
    ck_assert(m3_profile_exact(p, "embed") && m3_profile_weights(p, "layers.3.moe.experts") == 0x1p-8);
    ck_assert(m3_profile_dump_rounding(p, "vision.pixels") == 0x1p-8);
    m3_profile_close(p);

    write_text(in_folder("own.json"), "{\"name\": \"own\", \"base\": \"bf16\", \"math\": {\"sin\": 7}}");
    p = open_text("next.json", "{\"base\": \"own.json+kv_f16\", \"exact\": [], \"ties\": \"lowest\", "
                               "\"store\": {\"layers.1.mid\": \"f32\", \"*\": \"f16\"}, \"math\": {\"exp\": 9}}");
    how = m3_profile_arithmetic(p, 1);
    ck_assert_str_eq(m3_profile_name(p), "own+kv_f16");
    ck_assert(how.c == 9 && how.c_turn == 7 && m3_profile_ties_lowest(p) && !m3_profile_exact(p, "embed"));
    ck_assert(m3_profile_store(p, "layers.1.mid") == 0x1p-11 && m3_profile_store(p, "layers.0.attn_lse") == 0x1p-11);
    ck_assert(m3_profile_store(p, "layers.3.rope.cos") == 0x1p-8);
    ck_assert(m3_profile_read(p, "layers.3.k_rope").u == 0x1p-11);
    m3_profile_close(p);
}

/* Goal:  words stand after any profile, in any number; the name is the whole text; the hash tells them apart.
 * Claim: also after the path of a file whose folder has a '+'.
 * Seen to fail with the text cut at the first '+'; with words that are not put in the name. */
TEST(words)
{
    struct m3_profile *p = open_profile("bf16+fused_norm+kv_e4m3"), *plain = open_profile("bf16");
    ck_assert_str_eq(m3_profile_name(p), "bf16+fused_norm+kv_e4m3");
    ck_assert_str_ne(m3_profile_sha256(p), m3_profile_sha256(plain));
    const char *const fused[] = { "layers.0.attn_norm",    "layers.59.mlp_norm", "final_norm",
                                  "mtp.0.layer.attn_norm", "mtp.1.final_norm",   "mtp.1.hidden_norm" };
    const char *const not[] = { "layers.0.q_norm", "vision.layers.0.norm1", "mtp.0.embed_norm", "layers.0.mid" };
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        ck_assert_msg(m3_profile_fused_norm(p, fused[i]), "%s", fused[i]);
        ck_assert_msg(!m3_profile_fused_norm(plain, fused[i]), "%s", fused[i]);
    }
    for (size_t i = 0; i < sizeof not / sizeof *not; i++)
        ck_assert_msg(!m3_profile_fused_norm(p, not[i]), "%s", not[i]);
    m3_profile_close(p);
    m3_profile_close(plain);

    char path[300];
    ck_assert_int_eq(mkdir(in_folder("a+b"), 0777), 0);
    write_text(in_folder("a+b/own.json"), "{\"name\": \"own\", \"base\": \"fp32\"}");
    snprintf(path, sizeof path, "%s+kv_e5m2", in_folder("a+b/own.json"));
    p = open_profile(path);
    ck_assert_str_eq(m3_profile_name(p), "own+kv_e5m2");
    m3_profile_close(p);
}

/* Goal:  a cache's formats: keys and values of text layers and modules, the index keys too, no others.
 * Claim: half the spacing of OCP's formats relative to the number, and half the smallest subnormal number: E4M3 has 3
 *        bits and 2^-9, E5M2 2 bits and 2^-16, F16 10 bits and 2^-24.
 * Seen to fail with 4 bits for E4M3, with "*.k_rope" for the pattern, which is the tower's too. */
TEST(caches)
{
    static const struct {
        const char *profile;
        double u, floor, largest;
    } kinds[] = { { "bf16+kv_e4m3", 1.0 / 16, 1.0 / 1024, 448 },
                  { "bf16+kv_e5m2", 1.0 / 8, 1.0 / 131072, 57344 },
                  { "fp32+kv_f16", 1.0 / 2048, 1.0 / 33554432, 0 } };
    const char *const keys[] = { "layers.0.k_rope", "layers.3.v_proj", "layers.3.index.k_rope", "mtp.0.layer.v_proj" };
    const char *const not[] = { "layers.0.q_rope", "vision.layers.0.k_rope", "layers.3.index.q_rope" };
    for (int k = 0; k < 3; k++) {
        struct m3_profile *p = open_profile(kinds[k].profile);
        for (int i = 0; i < 4; i++) {
            const struct m3_read_rounding r = m3_profile_read(p, keys[i]);
            ck_assert(r.u == kinds[k].u && r.floor == kinds[k].floor && r.largest == kinds[k].largest);
        }
        for (int i = 0; i < 3; i++) ck_assert(m3_profile_read(p, not[i]).u == 0);
        m3_profile_close(p);
    }
}

/* Goal:  tpN is the word for products in N parts.
 * Claim: at what engines cut by columns, where it is stored more coarsely than the arithmetic; 2 to 64 parts.
 * Seen to fail with the number of ranks one power of two too small; with "tp3" taken as tp4 (in refusals). */
TEST(parts)
{
    const char *const cut[] = { "layers.0.attn_out", "layers.0.mlp", "layers.3.moe.shared",
                                "mtp.0.layer.moe.expert_out" };
    struct m3_profile *p = open_profile("bf16+tp8"), *most = open_profile("bf16+tp64+tp2+fused_norm");
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(m3_profile_partials(p, cut[i]).ranks, 8);
        ck_assert_int_eq(m3_profile_partials(p, cut[i]).reduce, M3_REDUCE_ANY);
        ck_assert_int_eq(m3_profile_partials(most, cut[i]).ranks, 2);
    }
    ck_assert_int_eq(m3_profile_partials(p, "layers.0.q_proj").ranks, 0);
    m3_profile_close(p);
    m3_profile_close(most);
}

/* Goal:  what is wrong is named, with what would be right.
 * Seen to fail with an unknown word ignored; with a file that is its own base, which never ended; with a base in
 * another folder read; with a line for each file of a chain. */
TEST(refusals)
{
    refuses("bf16+nope", M3_BAD_INPUT, "bf16+nope: got the word \"nope\"", "fused_norm, ");
    refuses("bf16+fused_norm+", M3_BAD_INPUT, "got the word \"\"", "kv_e4m3");
    refuses("bf16+tp3", M3_BAD_INPUT, "got the word \"tp3\"", "tp2, tp4, .. tp64");
    refuses("bf16+tp128", M3_BAD_INPUT, "got the word \"tp128\"", "tp64");
    refuses("nope+fused_norm", M3_ABSENT, "profile nope: got no such profile", "bf16, ");
    write_text(in_folder("a.json"), "{\"name\": \"a\", \"base\": 3}");
    refuses(in_folder("a.json"), M3_BAD_INPUT, "a.json: base: got another JSON value", "name of a profile");
    write_text(in_folder("a.json"), "{\"name\": \"a\", \"base\": \"a.json\"}");
    refuses(in_folder("a.json"), M3_BAD_INPUT, "a.json: base: got more than 8 files", "a.json");
    write_text(in_folder("a.json"), "{\"name\": \"a\", \"base\": \"b.json\"}");
    refuses(in_folder("a.json"), M3_ABSENT, "b.json: cannot open", "No such file");
    write_text(in_folder("b.json"), "{\"base\": \"a.json\"}");
    refuses(in_folder("a.json"), M3_BAD_INPUT, "base: got more than 8 files", "build on each other");
    static const char *const elsewhere[] = { "/etc/passwd", "./b.json", "../b.json", "/b.json+kv_f16" };
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        char text[100];
        snprintf(text, sizeof text, "{\"base\": \"%s\"}", elsewhere[i]);
        write_text(in_folder("a.json"), text);
        refuses(in_folder("a.json"), M3_BAD_INPUT, elsewhere[i], "expected a built-in profile");
    }
    write_text(in_folder("a.json"), "{\"base\": \"bf16\", \"fused_norm\": [\"*.q_norm\"]}");
    refuses(in_folder("a.json"), M3_BAD_INPUT, "fused_norm: got \"*.q_norm\"", "a norm of a sum");
    write_text(in_folder("a.json"), "{\"base\": \"bf16\", \"read\": {\"*.q_norm\": \"f16\"}}");
    refuses(in_folder("a.json"), M3_BAD_INPUT, "read: got \"*.q_norm\"", "what attention or block scores read");
    write_text(in_folder("a.json"), "{\"base\": \"bf16\", \"read\": {\"*.k_rope\": \"e4m3\"}}");
    refuses(in_folder("a.json"), M3_BAD_INPUT, "read[\"*.k_rope\"]: got \"e4m3\"", "\"f8_e4m3\"");
    write_text(in_folder("a.json"), "{\"base\": \"bf16\", \"store\": {\"*.k_rope\": \"f8_e4m3\"}}");
    refuses(in_folder("a.json"), M3_BAD_INPUT, "store[\"*.k_rope\"]: got \"f8_e4m3\"", "\"bf16\"");
}

/* Goal:  a file in ref/oracle/error/profiles/words/ is a word of its name, and every word is a profile with any base.
 * Seen to fail with the rule in the Makefile without one file. */
TEST(built_in)
{
    char name[200];
    int files = 0, names = 0;
    DIR *folder = opendir("ref/oracle/error/profiles/words");
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *e; (e = readdir(folder)) != NULL;) files += strstr(e->d_name, ".json") != NULL;
    closedir(folder);
    for (; m3_profile_word_texts[names][0]; names++)
        for (int i = 0; m3_built_in_profiles[i][0]; i++) {
            snprintf(name, sizeof name, "%s+%s", m3_built_in_profiles[i][0], m3_profile_word_texts[names][0]);
            m3_profile_close(open_profile(name));
        }
    ck_assert_int_eq(names, files);
}
