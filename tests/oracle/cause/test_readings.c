/* Which other reading of the model explains a dump or an answer: every field of SPEC 4 that shows in it, in both
 * directions, and two fields together.
 *
 * Seen to fail with: readings that are never tried; a table of them without local_rule (the mistake select.local_multi is
 * named instead); only the released value tried; two fields never tried together; taps that only the comparison with
 * the truth can judge. */
#include "program.h"

#include "goldens.h"
#include "slice.h"

TIMEOUT(240);
FIXTURE(make_folder, remove_folder);

#define READINGS "golden/tiny/model", "golden/readings/case.safetensors"
#define PICTURES "golden/tiny/model", "golden/vision/two_case.safetensors"
#define VIDEOS "golden/tiny/model", "golden/vision/video_case.safetensors"
#define DRAFTS "golden/mtp/model", "golden/mtp/case.safetensors"
#define DRAFTS_OF_PICTURE "golden/mtp/model", "golden/mtp/picture_case.safetensors"
#define NOISY "golden/m2/model", "golden/m2/case.safetensors"

/* Takes from a dump what it says about its reading: other programs say nothing. */
static void forget_reading(const char *path)
{
    size_t size;
    unsigned char *bytes = read_bytes(path, &size);
    static const char key[] = "\"semantics\"";
    unsigned char *at = memmem(bytes, size, key, strlen(key));
    if (at) at[1] = 'S';
    write_bytes(path, bytes, size);
    free(bytes);
}

static void expect_reading(const char *reading)
{
    char text[160];
    snprintf(text, sizeof text, "\"reading\":\"%s\"", reading);
    ck_assert(last_line_has(text));
    ck_assert(last_line_has("\"profile_word\":null"));
}

/* How a dump was made, by which reading it is checked, and which explains it. */
static const struct {
    const char *model, *input, *made, *checked, *named;
} dumps[] = {
    { READINGS, "selection=shared", "", "selection=shared" },
    { READINGS, "selection=union", "", "selection=union" },
    { READINGS, "pool=lse", "", "pool=lse" },
    { READINGS, "index_scale=rsqrt", "", "index_scale=rsqrt" },
    { READINGS, "gate_clamp=both", "", "gate_clamp=both" },
    { READINGS, "init_blocks=1", "", "init_blocks=1" },
    { READINGS, "local_blocks=0", "", "local_blocks=0" },
    { READINGS, "local_blocks=3", "", "local_blocks=3" },
    { READINGS, "local_blocks=2,local_rule=own", "local_blocks=2", "local_rule=own" },
    { READINGS, "pool=lse,index_scale=rsqrt", "", "pool=lse,index_scale=rsqrt" },
    { READINGS, "init_blocks=1,local_blocks=2", "", "init_blocks=1,local_blocks=2" },
    { READINGS, "selection=shared,gate_clamp=both", "", "selection=shared,gate_clamp=both" },
    { PICTURES, "vision_boundary=none", "", "vision_boundary=none" },
    { VIDEOS, "vision_boundary=none", "", "vision_boundary=none" },
    { DRAFTS, "mtp_handover=post_norm", "", "mtp_handover=post_norm" },
    { DRAFTS, "mtp_zero_position0=true", "", "mtp_zero_position0=true" },
    { DRAFTS, "mtp_join=additive", "", "mtp_join=additive" },
    { DRAFTS_OF_PICTURE, "mtp_embed=fused", "", "mtp_embed=fused" },
    { NOISY, "jitter=0.01", "", "jitter=0.01" },
    { NOISY, "jitter=0.013,jitter_seed=7", "", "jitter=0.013,jitter_seed=7" },
    { NOISY, "jitter=0.01,jitter_seed=3", "jitter=0.01", "jitter_seed=3" },

    { READINGS, "", "selection=shared", "selection=group" },
    { READINGS, "selection=union", "selection=shared", "selection=union" },
    { READINGS, "", "pool=lse", "pool=max" },
    { READINGS, "", "index_scale=rsqrt", "index_scale=1" },
    { READINGS, "", "gate_clamp=both", "gate_clamp=upper" },
    { READINGS, "", "init_blocks=2", "init_blocks=0" },
    { READINGS, "", "local_blocks=0", "local_blocks=1" },
    { READINGS, "local_blocks=2", "local_blocks=2,local_rule=own", "local_rule=last" },
    { READINGS, "local_blocks=2", "local_rule=own", "local_blocks=2,local_rule=last" },
    { READINGS, "", "pool=lse,index_scale=rsqrt", "pool=max,index_scale=1" },
    { PICTURES, "", "vision_boundary=none", "vision_boundary=segment" },
    { DRAFTS, "", "mtp_handover=post_norm", "mtp_handover=pre_norm" },
    { DRAFTS, "", "mtp_zero_position0=true", "mtp_zero_position0=false" },
    { DRAFTS, "", "mtp_join=additive", "mtp_join=concat" },
    { DRAFTS_OF_PICTURE, "", "mtp_embed=fused", "mtp_embed=id" },
    { NOISY, "", "jitter=0.01", "jitter=0" },
};

static void set(char words[128], const char *reading)
{
    snprintf(words, 128, "%s%s", *reading ? "--set " : "", reading);
}

/* Claim: the reading is named, and by it the dump passes. A slice has a third. */
LOOP_TEST(of_dumps, sizeof dumps / sizeof dumps[0])
{
    if (!in_slice(_i, 3)) return;
    const char *model = dumps[_i].model, *input = dumps[_i].input;
    char made[128], checked[128];
    set(made, dumps[_i].made);
    set(checked, dumps[_i].checked);
    ck_assert_int_eq(m3ref("run %s --case %s %s --dump %s", model, input, made, in_folder("d")), 0);
    forget_reading(in_folder("d"));
    ck_assert_int_eq(m3ref("check %s %s --case %s --row-runs 2 %s --json", model, in_folder("d"), input, checked), 1);
    expect_reading(dumps[_i].named);
    ck_assert(last_line_has("The engine follows another reading of the model"));
    ck_assert_int_eq(
        m3ref("check %s %s --case %s --row-runs 2 %s --set %s", model, in_folder("d"), input, checked, dumps[_i].named),
        0);
}

/* What an own dump says of its reading decides between readings that give the same. */
TEST(stated)
{
    ck_assert_int_eq(m3ref("run golden/tiny/model --case golden/readings/case.safetensors --dump %s", in_folder("d")),
                     0);
    ck_assert_int_eq(m3ref("check golden/tiny/model %s --case golden/readings/case.safetensors --row-runs 2 "
                           "--set local_blocks=3 --json",
                           in_folder("d")),
                     1);
    expect_reading("local_blocks=1");
    ck_assert(last_line_has("\"mistake\":null"));
}

/* Claim: of each golden of another reading, a few taps and rows by the public PyTorch code, the reading is named. */
LOOP_TEST(of_goldens, CASES)
{
    const struct golden *g = &cases[_i];
    if (!g->reading || strstr(g->golden, "jitter_positions") || strstr(g->golden, "local2")) return;
    char reading[64], copied[PATH_MAX];
    snprintf(reading, sizeof reading, "%s", g->reading);
    for (char *blank = reading; (blank = strchr(blank, ' ')); *blank = ',') continue;
    snprintf(copied, sizeof copied, "gunzip -c %s > %s", g->golden, in_folder("d"));
    ck_assert_int_eq(system(copied), 0);
    forget_reading(in_folder("d"));
    ck_assert_int_eq(m3ref("check %s %s --case %s --row-runs 2 --json", g->model, in_folder("d"), g->case_path), 1);
    expect_reading(reading);
}
