/* Every golden of a whole model (golden/README.md), with the run that it belongs to. */
#ifndef M3_TESTS_GOLDENS_H
#define M3_TESTS_GOLDENS_H

#include <stddef.h>
#include <stdint.h>

static const struct golden {
    const char *model, *case_path, *golden;
    const char *reading;        /* FIELD=VALUE, some with a blank between, or NULL: the released one */
    int64_t stages;             /* the least number of judged stages */
} cases[] = {
    { "golden/tiny/model", "golden/tiny/case.safetensors", "golden/tiny/golden.safetensors.gz", NULL, 130 },
    { "golden/block128/model", "golden/block128/case.safetensors", "golden/block128/golden.safetensors.gz", NULL, 34 },
    { "golden/mxfp8/model", "golden/mxfp8/case.safetensors", "golden/mxfp8/golden.safetensors.gz", NULL, 52 },
    { "golden/f8block/model", "golden/f8block/case.safetensors", "golden/f8block/golden.safetensors.gz", NULL, 52 },
    { "golden/tiny/model", "golden/vision/smallest_case.safetensors", "golden/vision/smallest.safetensors.gz", NULL,
      42 },
    { "golden/tiny/model", "golden/vision/still_case.safetensors", "golden/vision/still.safetensors.gz", NULL, 42 },
    { "golden/tiny/model", "golden/vision/two_case.safetensors", "golden/vision/two.safetensors.gz", NULL, 42 },
    { "golden/tiny/model", "golden/vision/two_case.safetensors", "golden/vision/two_none.safetensors.gz",
      "vision_boundary=none", 42 },
    { "golden/tiny/model", "golden/vision/video_case.safetensors", "golden/vision/video.safetensors.gz", NULL, 42 },
    { "golden/tiny/model", "golden/vision/video_case.safetensors", "golden/vision/video_none.safetensors.gz",
      "vision_boundary=none", 42 },
    { "golden/mtp/model", "golden/mtp/case.safetensors", "golden/mtp/golden.safetensors.gz", NULL, 122 },
    { "golden/mtp/model", "golden/mtp/case.safetensors", "golden/mtp/post_norm.safetensors.gz",
      "mtp_handover=post_norm", 5 },
    { "golden/mtp/model", "golden/mtp/case.safetensors", "golden/mtp/zero_position0.safetensors.gz",
      "mtp_zero_position0=true", 11 },
    { "golden/mtp/model", "golden/mtp/case.safetensors", "golden/mtp/additive.safetensors.gz", "mtp_join=additive", 8 },
    { "golden/mtp/model", "golden/mtp/picture_case.safetensors", "golden/mtp/picture.safetensors.gz", NULL, 14 },
    { "golden/mtp/model", "golden/mtp/picture_case.safetensors", "golden/mtp/fused.safetensors.gz", "mtp_embed=fused",
      11 },
    { "golden/m2/model", "golden/m2/case.safetensors", "golden/m2/golden.safetensors.gz", NULL, 67 },
    { "golden/m2/model", "golden/m2/positions_case.safetensors", "golden/m2/positions.safetensors.gz", NULL, 10 },
    { "golden/m2/model", "golden/m2/case.safetensors", "golden/m2/jitter.safetensors.gz", "jitter=0.01 jitter_seed=7",
      25 },
    { "golden/m2/model", "golden/m2/positions_case.safetensors", "golden/m2/jitter_positions.safetensors.gz",
      "jitter=0.01 jitter_seed=7", 2 },
    { "golden/m2/mtp_model", "golden/m2/mtp_case.safetensors", "golden/m2/concat.safetensors.gz", NULL, 52 },
    { "golden/m2/mtp_model", "golden/m2/mtp_case.safetensors", "golden/m2/additive.safetensors.gz", "mtp_join=additive",
      48 },
#define READING(name, fields)                                                                                          \
    { "golden/tiny/model", "golden/readings/case.safetensors", "golden/readings/" name ".safetensors.gz", fields, 4 }
    READING("shared", "selection=shared"),
    READING("union", "selection=union"),
    READING("lse", "pool=lse"),
    READING("rsqrt", "index_scale=rsqrt"),
    READING("lse_rsqrt", "pool=lse index_scale=rsqrt"),
    READING("clamp_both", "gate_clamp=both"),
    READING("init1", "init_blocks=1"),
    READING("init2_local2", "init_blocks=2 local_blocks=2"),
    READING("local2", "local_blocks=2"),
    READING("local2_own", "local_blocks=2 local_rule=own"),
    { "golden/tiny/model", "golden/readings/mask_case.safetensors", "golden/readings/mask.safetensors.gz", NULL, 22 },
    { "golden/fourbit/model", "golden/fourbit/case.safetensors", "golden/fourbit/golden.safetensors.gz", NULL, 52 },
};

enum { CASES = sizeof cases / sizeof *cases, BLOCK128 = 1, VIDEO = 8, MTP = 10, M2 = 16 };

#endif
