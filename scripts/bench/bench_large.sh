#!/bin/sh
# A sparse stack larger than memory: two layers of the released size with random BF16 weights (29 GB with all 128 experts),
# made and removed by this script.
#
# 1. A pass over 256 tokens with no weight in memory: its time beside that of reading the weights once, and its
#    memory.
# 2. The same with --resume, killed at five random moments: the bytes of the dump beside those of a run that was not.
#
# usage: bench_large.sh BUILD-FOLDER [EXPERTS [FOLDER]]; the model lies in FOLDER, default the build folder. The last line is
# "N passed, N failed". Where the disk has too little room, a line says so and nothing runs.
set -u
build=$1 experts=${2:-128} parent=${3:-$1}
folder=$(mktemp -d "$parent/large.XXXXXX") || exit
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
bytes=$((2 * (experts * 113246208 + 450000000)))
free=$(($(df -Pk "$parent" | awk 'NR == 2 { print $4 }') * 1024))
if [ "$free" -lt $((bytes + bytes / 8)) ]; then
    echo "skipped: got $free bytes free in $parent, expected $((bytes + bytes / 8))"
    exit 0
fi
passed=0 failed=0
# claim NAME CONDITION: a condition of awk
claim() {
    if awk "BEGIN { exit !($2) }"; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAIL $1: $2"
    fi
}
XDG_CACHE_HOME=$folder/cache                    # of hashes
export XDG_CACHE_HOME

# ---- the model and the case
cat >"$folder/config.json" <<END
{"architectures": ["MiniMaxM3SparseForCausalLM"], "model_type": "minimax_m3_vl", "text_config": {
"hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 64,
"num_key_value_heads": 4, "head_dim": 128, "vocab_size": 512, "max_position_embeddings": 1048576,
"rms_norm_eps": 1e-06, "use_gemma_norm": true, "attention_output_gate": false, "rope_theta": 5000000,
"rotary_dim": 64, "partial_rotary_factor": 0.5, "hidden_act": "swigluoai", "use_qk_norm": true,
"tie_word_embeddings": false, "dense_intermediate_size": 12288, "shared_intermediate_size": 3072,
"num_local_experts": $experts, "num_experts_per_tok": 4, "n_shared_experts": 1, "scoring_func": "sigmoid",
"use_routing_bias": true, "moe_layer_freq": [1, 1], "qk_norm_type": "per_head", "num_mtp_modules": 0,
"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "routed_scaling_factor": 2.0, "sparse_attention_config": {
"use_sparse_attention": true, "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16,
"sparse_block_size": 128, "sparse_disable_index_value": [1, 1], "sparse_score_type": "max", "sparse_init_block": 0,
"sparse_local_block": 1, "sparse_attention_freq": [1, 1]}}}
END
"$build/m3ref" synth "$folder/config.json" "$folder/model" || exit
ids=$(awk 'BEGIN { for (i = 0; i < 256; i++) printf "%s%d", i ? "," : "", (i * 197 + 31) % 512 }')
size=$(stat -c %s "$folder"/model/*.safetensors | awk '{ size += $1 } END { printf "%.0f", size }')
[ "${size:-0}" -gt 0 ] || exit 1

# forget: none of the weights stays in memory.
forget() { for shard in "$folder"/model/*.safetensors; do dd if="$shard" iflag=nocache count=0 2>/dev/null; done; }
seconds() { date +%s.%N; }
field() { sed -n "s/.*$1.*/\\1/p" "$2"; }

# ---- one pass
forget
begin=$(seconds)
for shard in "$folder"/model/*.safetensors; do dd if="$shard" of=/dev/null bs=16M 2>/dev/null || exit; done
read_time=$(awk -v a="$begin" -v b="$(seconds)" 'BEGIN { print b - a }')
forget
"$build/m3ref" run "$folder/model" --ids "$ids" --plan | tail -n 12
begin=$(seconds)
forget
"$build/m3ref" run "$folder/model" --ids "$ids" >"$folder/log" || exit
time=$(awk -v a="$begin" -v b="$(seconds)" 'BEGIN { print b - a }')
memory=$(field 'memory \([0-9.]*\) MB of its own' "$folder/log")
echo "$size $read_time $time $memory" | awk '{
    printf "read once:  %8.1f s for %.1f GB, %.2f GB/s\n", $2, $1 / 1e9, $1 / 1e9 / $2
    printf "one pass:   %8.1f s, %.2f times as long; %.0f MB of its own\n", $3, $3 / $2, $4 }'
claim 'time beside a read of the weights' "$time <= 1.3 * $read_time"
claim 'memory of its own, MB' "$memory < 1000"

# ---- killed five times
set -- run "$folder/model" --ids "$ids" --dump "$folder/dump" --resume "$folder/state"
sleep 3                                         # a file that was just written is not remembered
"$build/m3ref" "$@" >"$folder/log" || exit       # hashes the weights
next=$(tail -n 1 "$folder/log")
mv "$folder/dump" "$folder/whole"
moments=$(awk -v most="$time" 'BEGIN { srand(); for (i = 0; i < 5; i++) printf "%.2f ", rand() * most }')
echo "killed after: $moments"
for moment in $moments; do
    forget
    "$build/m3ref" "$@" >"$folder/log" 2>&1 &
    sleep "$moment"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    grep '^resume' "$folder/log"
done
"$build/m3ref" "$@" >"$folder/log" || exit
grep '^resume' "$folder/log"
cmp "$folder/whole" "$folder/dump" && claim 'the bytes of the dump' 1 || claim 'the bytes of the dump' 0
[ "$(tail -n 1 "$folder/log")" = "$next" ] && claim 'the next tokens' 1 || claim 'the next tokens' 0
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
