/* Cases of an operator are taken from a dump of the little model. */
#include <string.h>

#include "cli/cli.h"
#include "io/safetensors.h"
#include "world.h"

static const char *the_case;

const int fuzz_parts = 1;

void fuzz_begin(void)
{
    const struct m3_case *c = &fuzz_world()->the_case;
    struct m3_error error = { 0 };
    struct m3_writer *writer;
    the_case = strdup(fuzz_output("case.safetensors"));
    int status = the_case ? m3_writer_new(&writer, the_case, &error) : M3_INTERNAL;
    if (!status) status = m3_writer_tensor(writer, "input_ids", M3_I32, 1, &c->T, &error);
    if (!status) status = m3_writer_begin(writer, &error);
    if (!status) status = m3_writer_write(writer, c->ids, (uint64_t)c->T * sizeof *c->ids, &error);
    if (!status) status = m3_writer_commit(writer, &error);
    if (status) fuzz_broken("the case cannot be written");
}

/* The size of the dump says which operator it is, and whether the case is in the dump or in a file of its own. */
void fuzz_one(const struct fuzz_bytes *parts)
{
    static const char *const pairs[][2] = {
        { "rms_norm", "layers.0.attn_norm" },     { "rope", "layers.0.q_rope" },
        { "attend_full", "layers.0.attn" },       { "linear", "layers.1.q_proj" },
        { "swiglu_oai", "layers.0.mlp.act" },     { "block_scores", "layers.1.index.block_scores" },
        { "select_blocks", "*.index.blocks" },    { "sparse_attention", "layers.1.attn" },
        { "router", "layers.1.moe.weights" },     { "experts", "layers.1.moe.routed" },
        { "moe_block", "layers.1.mlp" },          { "embed", "embed" },
        { "residual_norm", "layers.1.mlp_norm" }, { "gated_mlp", "layers.0.mlp" },
    };
    enum { PAIRS = sizeof pairs / sizeof *pairs };
    const char *const *pair = pairs[parts[0].size / 8 % PAIRS];
    const char *dump = fuzz_file("dump.safetensors", parts[0]), *out = fuzz_output("cases.safetensors");
    const char *const words[] = {
        "op",      pair[0], "--make", out,       "--from",
        dump,      "--tap", pair[1],  "--model", fuzz_path("little"),
        "--dtype", "bf16",  "--rows", "0,2:4",   parts[0].size / 8 / PAIRS % 2 ? NULL : "--case",
        the_case,  NULL
    };
    fuzz_command(m3_cli_op, words);
}
