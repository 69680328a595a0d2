#!/bin/sh
# The speeds that README quotes, with the machine's own limits and the public PyTorch code, all from this run. Each
# item runs in its own process. The PyTorch part needs `make golden-check` once; without it, that part is left out.
# usage: bench.sh BUILD-FOLDER [THREADS]
set -u
build=$1
threads=${2:-$(nproc)}

field() { printf '%s\n' "$1" | sed -n "s/.*\"$2\": *\([0-9.]*\).*/\1/p"; }

# row NAME LINE: name, seconds, rate, peak memory of the process
row() {
    printf '%-44s %10s s %8s %9s MB\n' "$1" "$(field "$2" seconds)" "$3" "$(($(field "$2" peak_bytes) / 1000000))"
}

# ours ITEM NAME [RUNS [--model DIR] [--keys N]]
ours() {
    item=$1 name=$2 runs=${3:-15}
    shift $(($# < 3 ? $# : 3))
    line=$("$build/m3ref" bench "$item" --threads "$threads" --runs "$runs" "$@") || exit
    rate=$(field "$line" gflops)
    unit=GF
    [ -n "$rate" ] || rate=$(field "$line" gb_per_s) unit=GB
    row "$name" "$line" "$rate $unit"
}

share_of_read() {
    awk -v ours="$rate" -v limit="$read_rate" 'BEGIN { printf "%-44s %10.2f of a plain read\n", "", ours / limit }'
}

# A model of the released vision sizes with random weights, 1.7 GB, written once. Its text part is minimal.
vision=$build/bench_vision
[ -d "$vision" ] || "$build/m3ref" synth scripts/bench_vision.json "$vision" >/dev/null || exit

echo "threads $threads; seconds are the least of several runs; GF is 1e9 operations/s, GB 1e9 bytes/s"
echo "-- limits of this machine"
ours sgemm "BLAS alone, 512 x 6144 x 6144"
blas=$rate
ours read "plain read of 1 GB"
read_rate=$rate
echo "-- m3ref"
ours linear "linear, BF16, T = 512"
ours linear-f32 "linear, F32, T = 512"
ours linear-mxfp8 "linear, MXFP8, T = 512"
ours linear-ordered "linear, BF16, T = 512, ordered sums"
ours linear-64 "linear, BF16, T = 64"
ours linear-8 "linear, BF16, T = 8"
ours linear-1 "linear, BF16, T = 1: weights read"
share_of_read
ours moe-1 "MoE, 16 experts top 4 + shared, T = 1"
share_of_read
ours moe "MoE, 16 experts top 4 + shared, T = 512" 3
ours attend-full "full attention core, T = 4096" 2
ours attend-blocks "selection and sparse core, T = 4096" 2
ours attention "sparse attention layer, T = 4096" 2
ours vision "tower and projector, 672 x 672 picture" 3 --model "$vision"
awk -v blas="$blas" -v ours="$rate" \
    'BEGIN { printf "%-44s %10.2f of the time of its products by BLAS alone\n", "", blas / ours }'

echo "-- decoding one token in one layer, by places behind it: choosing blocks, with attention to them, full attention"
for keys in 4096 16384 65536 262144; do
    ours decode-index "$keys places, choosing 16 blocks" 9 --keys "$keys"
    ours decode-sparse "$keys places, sparse" 9 --keys "$keys"
    ours decode-dense "$keys places, dense" 5 --keys "$keys"
done

python=$build/venv/bin/python
if [ ! -x "$python" ]; then
    echo "-- public PyTorch code: left out, for $build/venv is not there (make golden-check makes it)"
    exit 0
fi
echo "-- public PyTorch code, fp32"
{
    "$python" scripts/bench_torch.py --threads "$threads" --runs 15 linear
    "$python" scripts/bench_torch.py --threads "$threads" --runs 3 moe_eager moe_grouped attention vision
} | while read -r line; do
    row "$(printf '%s\n' "$line" | sed -n 's/.*"what": *"\([^"]*\)".*/\1/p' | cut -c 1-44)" "$line" ""
done
