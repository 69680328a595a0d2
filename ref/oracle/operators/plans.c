#include "oracle/operators/plans.h"

#include <stdio.h>
#include <string.h>

#define NORMS "rms_norm,rms_norm_plain,residual_norm"
#define LINEARS "linear,linear_bias,linear_fp8,linear_mxfp8"
#define ATTENTION "attend_full,attend_blocks,sparse_attention"
#define GATED "swiglu_oai,swiglu"
#define ROUTES "route,router"
#define EXPERTS "experts,moe_block"
#define INDEX "block_scores,sparse_attention"

/* clang-format off */
const struct m3_plan m3_plans[] = {
    { "embed", "the first and the last id, and one id twice", "T=6,V=29", "", "ids=edges", 1 },
    { "embed", "one row", "T=1,H=7", "", "", 1 },

    { NORMS, "zeros: eps alone keeps the root finite", "T=2,H=8", "", "x=zeros,a=zeros,b=zeros", 0 },
    { NORMS, "small values, where eps decides the result", "T=3,H=12", "", "x=small,a=small,b=small", 0 },
    { NORMS, "weights of 0: the offset of 1 is all that is left", "T=2,H=16", "", "w=zeros", 0 },
    { NORMS, "one large channel", "T=3,H=17", "", "x=spike,a=spike", 0 },
    { NORMS, "one row of one channel", "T=1,H=1", "", "", 0 },
    { NORMS, "values whose squares are far apart", "T=5,H=31", "", "x=mixed,a=mixed", 0 },
    { NORMS, "another eps, and weights that are whole numbers", "T=3,H=16", "eps=0.25", "w=whole", 0 },
    { "qk_norm_rope,mtp_join", "another eps", "T=3", "eps=0.25", "", 0 },
    { "layer_norm", "a constant row: the variance is 0", "P=2,W=12", "", "x=ones", 0 },
    { "layer_norm", "a mean far from 0", "P=3,W=16", "", "x=shifted", 0 },
    { "layer_norm", "small values, where eps decides the result", "P=3,W=12", "", "x=small", 0 },
    { "layer_norm", "one row, a prime width", "P=1,W=13", "", "", 0 },
    { "layer_norm", "one channel: the bias is all that is left", "P=3,W=1", "", "", 0 },
    { "layer_norm", "weights of 0: the bias is all that is left", "P=2,W=8", "", "w=zeros", 0 },

    { LINEARS, "exact sums: whole numbers",
      "T=5,H=24,I=9,P=5,W=24,L=9", "", "x=whole,w=whole,bias=whole,scales=one", 1 },
    { LINEARS, "one hot rows read single columns",
      "T=7,H=7,I=5,P=7,W=7,L=5", "", "x=one_hot,w=whole,bias=whole,scales=one", 1 },
    { LINEARS, "one row", "T=1,H=31,I=13,P=1,W=31,L=13", "", "", 0 },
    { LINEARS, "prime sizes, and blocks of scales that are not full", "T=3,H=131,I=137,P=3,W=131,L=137", "", "", 0 },
    { LINEARS, "terms that cancel", "T=4,H=64,I=6,P=4,W=64,L=6", "", "x=cancel,w=cancel", 0 },
    { LINEARS, "zeros", "T=2,H=8,I=3,P=2,W=8,L=3", "", "x=zeros", 1 },
    { "linear_fp8,linear_mxfp8", "every finite code", "T=2,H=140,I=131", "", "w=codes", 0 },
    { "linear_mxfp8", "scales from the least one on", "T=2,H=70,I=8", "", "w=codes,scales=wide", 0 },

    { "rope_table,qk_norm_rope", "position 0: no rotation", "T=1", "", "pos=zeros", 0 },
    { "rope_table,qk_norm_rope", "positions up to a million", "T=4", "", "pos=far", 0 },
    { "rope_table,qk_norm_rope", "few rotated channels", "T=3,D=16", "R=6", "", 0 },
    { "rope_table_3d", "the first place of all", "P=1", "", "places=zeros", 0 },
    { "rope_table_3d", "13 frequencies on each axis, as released", "P=5", "R=78", "", 0 },
    { "rope_table,qk_norm_rope", "angles that are formed in float", "T=4", "rope_angle=f32", "pos=far", 0 },
    { "rope_table_3d", "angles that are formed in float", "P=4", "R=12,rope_angle=f32", "places=far", 0 },
    { "rope", "fewer rotated channels than a head has", "T=3,D=16,r=3", "", "", 0 },
    { "rope", "every channel is rotated", "T=2,D=12,r=6", "", "", 0 },
    { "rope", "one row and one head", "T=1,Q=1,D=4,r=1", "", "", 0 },
    { "rope", "channels tell which pair they belong to", "T=2,Q=1,D=12,r=4", "", "x=counted", 0 },
    { "qk_norm_rope", "weights of 0: the offset of 1 is all that is left", "T=3", "", "w=zeros", 0 },
    { "rope_3d,vision_attention", "two pictures", "P=24,n=2", "", "grid=two", 0 },
    { "rope_3d,vision_attention", "a video", "P=32,n=1", "segment_frames=2", "grid=video", 0 },
    { "rope_3d,vision_attention", "a video without a limit of steps", "P=32,n=1", "", "grid=video", 0 },
    { "rope_3d,vision_attention", "a video whose last segment is shorter",
      "P=40,n=1", "segment_frames=2", "grid=video", 0 },
    { "rope_3d,vision_attention", "two pictures that see each other",
      "P=24,n=2", "vision_boundary=none", "grid=two", 0 },
    { "rope_3d,vision_attention", "a video whose steps do not restart",
      "P=32,n=1", "segment_frames=2,vision_boundary=none", "grid=video", 0 },
    { "rope_3d,vision_attention", "angles that are formed in float", "P=16,n=1", "rope_angle=f32", "", 0 },

    { ATTENTION, "one row that sees itself alone", "T=1,S=1", "", "", 0 },
    { ATTENTION, "rows after cached places", "T=3,S=14", "", "", 0 },
    { ATTENTION, "as many heads as groups, a prime length", "T=13,S=13,Q=3,G=3", "", "", 0 },
    { ATTENTION, "keys that no row sees", "T=6,S=11", "", "seen=some", 0 },
    { ATTENTION, "a row that sees nothing", "T=6,S=6", "", "seen=late", 0 },
    { ATTENTION, "equal keys: every key has the same weight", "T=5,S=9", "", "k=ones", 0 },
    { ATTENTION, "large logits: one key has all the weight", "T=5,S=9", "", "q=large,k=large", 0 },
    { ATTENTION, "values tell which key they belong to", "T=9,S=9", "", "v=counted", 0 },
    { "attend_blocks", "lists that end in -1", "T=9,S=9,N=3", "block=4", "blocks=short", 0 },
    { "attend_blocks", "the row's own block alone", "T=11,S=11,N=1", "block=4", "blocks=own", 0 },
    { "attend_blocks", "the last block is not full", "T=10,S=10,N=2", "block=4", "", 0 },
    { "attend_blocks", "every group reads the blocks of all groups",
      "T=13,S=13,N=2", "block=4,selection=union", "", 0 },
    { "attend_blocks", "lists without the row's own block, and empty ones",
      "T=11,S=11,N=2", "block=4", "blocks=earlier", 0 },
    { INDEX, "negative scores: a maximum below 0",
      "T=9,S=9", "block=4", "q=minus,k=ones,index_q=minus,index_k=ones", 0 },
    { INDEX, "later keys in a row's own block score higher",
      "T=10,S=10", "block=4", "q=ones,k=rising,index_q=ones,index_k=rising", 0 },
    { INDEX, "a block that no row sees", "T=9,S=13", "block=4", "seen=block", 0 },
    { "block_scores", "rows after cached places", "T=3,S=14", "block=4", "", 0 },
    { "block_scores", "exact sums: whole numbers", "T=7,S=10", "block=4", "q=whole,k=whole", 1 },
    { "block_scores", "blocks of one key", "T=5,S=7", "block=1", "", 0 },
    { INDEX, "the logarithm of a sum in place of the maximum", "T=9,S=9", "block=4,pool=lse", "", 0 },
    { INDEX, "the logarithm of a sum, and a block that no row sees", "T=9,S=13", "block=4,pool=lse", "seen=block", 0 },
    { INDEX, "the logarithm of a sum of scaled scores", "T=7,S=10", "block=4,pool=lse,index_scale=rsqrt", "", 0 },
    { INDEX, "scaled scores, and a last block that is full", "T=8,S=8", "block=4,index_scale=rsqrt", "", 0 },
    { "select_blocks", "equal scores go to the lower id", "T=9,B=9", "block=4,N=3,p0=27", "m=equal", 0 },
    { "select_blocks", "fewer blocks than a list holds", "T=5,B=2", "block=4,N=4", "", 0 },
    { "select_blocks", "the row's own block has the lowest score", "T=6,B=8", "block=4,N=3,p0=26", "m=falling", 0 },
    { "select_blocks", "scores of -inf: blocks that no row sees", "T=5,B=8", "block=4,N=3,p0=27", "m=infinite", 0 },
    { "select_blocks", "two forced local blocks and a first one",
      "T=6,B=9", "block=4,N=4,p0=30,init_blocks=1,local_blocks=2", "", 0 },
    { "select_blocks", "a few equal scores", "T=8,B=10", "block=4,N=4,p0=32", "m=ties", 0 },
    { "select_blocks", "fewer scores above -inf than a list holds", "T=5", "block=4,N=7,p0=27", "m=infinite", 0 },
    { "select_blocks", "zeros of both signs are equal", "T=6", "block=4,N=3,p0=26", "m=signed_zeros", 0 },
    { "select_blocks", "one place, which the own block takes", "T=6", "block=4,N=1,p0=14", "", 0 },
    { "select_blocks", "no block is forced", "T=6", "block=4,N=3,p0=26,local_blocks=0", "m=falling", 0 },
    { "select_blocks", "more local blocks than there are", "T=12", "block=2,N=3,local_blocks=3", "", 0 },
    { "select_blocks", "of several local blocks the own one alone",
      "T=6", "block=4,N=3,p0=26,local_blocks=3,local_rule=own", "", 0 },
    { "select_blocks", "first blocks that lie after the own one", "T=9", "block=2,N=4,init_blocks=3", "", 0 },
    { "select_blocks", "more forced blocks than a list holds",
      "T=6", "block=4,N=4,p0=26,init_blocks=3,local_blocks=3", "", 0 },
    { "select_blocks", "one list for all groups", "T=6", "block=4,N=3,p0=30,selection=shared", "", 0 },
    { "select_blocks", "one list for all groups, and equal scores",
      "T=8", "block=4,N=3,p0=32,selection=shared", "m=ties", 0 },
    { "sparse_attention", "more blocks than a list holds", "T=29,S=29,N=2", "block=4", "", 0 },
    { "sparse_attention", "one list for all groups", "T=29,S=29,N=2", "block=4,selection=shared", "", 0 },
    { "sparse_attention", "every group reads the blocks of all groups",
      "T=29,S=29,N=2", "block=4,selection=union", "", 0 },
    { "sparse_attention", "no block is forced", "T=29,S=29,N=2", "block=4,local_blocks=0", "", 0 },
    { "sparse_attention", "of several local blocks the own one alone",
      "T=29,S=29", "block=4,N=3,local_blocks=3,local_rule=own", "", 0 },
    { "sparse_attention", "forced local blocks and first ones",
      "T=29,S=29", "block=4,N=5,init_blocks=3,local_blocks=2", "", 0 },

    { GATED, "values at, just below and just above the limits", "T=4,I=24", "", "gate=limits,up=limits", 0 },
    { GATED, "gates far below 0", "T=2,I=16", "", "gate=minus_large", 0 },
    { GATED, "gates and ups far above the limit", "T=2,I=16", "", "gate=large,up=large", 0 },
    { GATED, "zeros: the + 1 of up is multiplied by 0", "T=1,I=8", "", "gate=zeros", 0 },
    { GATED, "ups of 0: the + 1 is all that is left", "T=2,I=8", "", "up=zeros", 0 },
    { "swiglu_oai", "another alpha and limit", "T=3,I=12", "alpha=1.5,limit=2", "gate=limits,up=limits", 0 },
    { "swiglu_oai", "gates that are clamped below too", "T=4,I=24", "gate_clamp=both", "gate=limits,up=limits", 0 },
    { GATED, "whole numbers: ups of -1 and of 0", "T=3,I=16", "", "gate=whole,up=whole", 0 },
    { "sigmoid", "arguments up to 100, where the result is 0 or 1", "T=4,E=16", "", "x=far", 0 },
    { "sigmoid", "zeros", "T=1,E=4", "", "x=zeros", 0 },
    { "gelu", "arguments up to 100", "P=4,L=16", "", "x=far", 0 },
    { "gelu", "the negative tail", "P=2,L=16", "", "x=tail", 0 },
    { "gelu", "zeros", "P=1,L=8", "", "x=zeros", 0 },

    { ROUTES, "equal scores go to the lower id", "T=3,E=9", "K=4", "s=equal,logits=equal,bias=zeros", 0 },
    { ROUTES, "the bias decides, and is no part of the weights", "T=6,E=8", "K=3", "s=equal,logits=equal", 0 },
    { ROUTES, "every expert is chosen", "T=4,E=5", "K=5", "", 0 },
    { ROUTES, "one expert is chosen: its weight is 1", "T=5,E=7", "K=1", "", 0 },
    { ROUTES, "a few equal scores", "T=9,E=12", "K=4", "s=ties,logits=ties,bias=zeros", 0 },
    { ROUTES, "biases of -inf: experts that are never chosen", "T=5,E=9", "K=4", "bias=infinite", 0 },
    { EXPERTS, "one row", "T=1", "", "", 0 },
    { EXPERTS, "experts that no row chose", "T=3,E=11", "K=2", "ids=first", 0 },
    { EXPERTS, "all rows chose the same experts", "T=7,E=4", "K=2", "ids=same", 0 },
    { EXPERTS, "gates beyond the limit", "T=4", "", "x=large", 0 },
    { EXPERTS ",gated_mlp", "SiLU in place of SwiGLU-OAI", "T=4", "activation=swiglu", "", 0 },
    { "experts,moe_block", "another factor", "T=4", "factor=3", "", 0 },
    { "experts,moe_block", "a factor of 1", "T=4", "factor=1", "", 0 },
    { EXPERTS ",gated_mlp", "gates that are clamped below too", "T=4", "gate_clamp=both", "x=large", 0 },
    { "gated_mlp", "gates beyond the limit", "T=4", "", "x=large", 0 },

    { "add", "terms that cancel", "T=3,H=16", "", "a=cancel,b=cancel", 0 },
    { "add", "whole numbers", "T=3,H=7", "", "a=whole,b=whole", 1 },
    { "attend_segments", "segments of one row", "P=3,n=3", "", "ends=ones", 0 },
    { "attend_segments", "segments of different lengths", "P=17,n=4", "", "ends=parts", 0 },
    { "attend_segments", "later rows of the own segment are seen", "P=9,n=2", "", "ends=parts,v=counted", 0 },
    { "attend_segments", "equal keys: every key has the same weight", "P=9,n=2", "", "ends=parts,k=ones", 0 },
    { "attend_segments", "large logits: one key has all the weight", "P=9,n=2", "", "ends=parts,q=large,k=large", 0 },
    { "scatter", "no placeholder", "T=4,M=0", "id=5", "ids=none", 1 },
    { "scatter", "placeholders first, last and side by side", "T=9,M=4", "id=5", "ids=some", 1 },
    { "scatter", "nothing but placeholders", "T=3,M=3", "id=5", "ids=all", 1 },
    { "scatter", "one placeholder", "T=5,M=1", "id=5", "ids=some", 1 },
    { "jitter", "rows after others", "T=3,H=8", "p0=7", "", 0 },
    { "jitter", "no noise", "T=3,H=8", "eps_noise=0", "", 0 },
    { "mtp_join", "one row", "T=1,H=8", "", "", 0 },
    { "mtp_join", "weights of 0: the offset of 1 is all that is left", "T=4,H=12", "", "enorm=zeros,hnorm=zeros", 0 },
    { "mtp_join", "halves that are not alike", "T=3,H=8", "", "embedding=large", 0 },
    { "mtp_join", "the row at position 0 joins zeros", "T=3,H=8", "mtp_zero_position0=true", "", 0 },
};
/* clang-format on */

const int m3_plan_count = sizeof m3_plans / sizeof m3_plans[0];

int m3_plan_is_of(const struct m3_plan *plan, const char *op)
{
    const size_t length = strlen(op);
    for (const char *at = plan->op; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && strncmp(at, op, length) == 0) return 1;
    return 0;
}

void m3_listed_value(char *value, unsigned long size, const char *list, const char *name)
{
    const size_t length = strlen(name);
    value[0] = '\0';
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            snprintf(value, size, "%.*s", (int)strcspn(at + length + 1, ","), at + length + 1);
}
