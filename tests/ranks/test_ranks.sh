#!/bin/sh
# Several ranks of one command, by mpirun on this machine (ref/ranks/README.md).
#
# Goal:  with ordered sums the ranks give the bits of one process; what they send is what the formulas on paper say; a rank
#        that fails or dies ends all with one message, the right status, and no output.
# Given: the goldens' models on 2, 3 or 4 ranks, on another number in the next slice; calls of so few tokens that no rank, or
#        not every rank, has rows; caches, packed sequences, decisions of another run, a part of the layers, pictures,
#        modules, readings, companions.
# Seen to fail with: the two runs of a rank's keys exchanged; its second run before its first in a dump; keys not sent to a
#        rank with the rows just after; results in the order in which they came; embeddings of rows not sent to rank 0
#        (the job hung); a failure that is not told to the others (it hung); each rank's own message printed.
m3ref=${BUILD:-build}/m3ref
. tests/support/verdict.sh
export OMP_WAIT_POLICY=passive
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"        # Open MPI frees little at its end
tiny=golden/tiny/model
tiny_case=golden/tiny/case.safetensors
mtp=golden/mtp/model

# ---- started by mpirun, but built without MPI

mkdir "$folder/alone"
cp "$m3ref" "$folder/alone"
OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=0 "$folder/alone/m3ref" run $tiny --ids 1 >"$folder/out" 2>"$folder/errors"
{
    [ $? -eq 69 ] || echo 'got another status, expected 69'
    [ "$(cat "$folder/out" "$folder/errors" | wc -l)" -eq 1 ] || cat "$folder/out" "$folder/errors"
    grep -q 'libm3ref_mpi.so: got no such file, expected what `make MPI=1` builds' "$folder/errors" || echo 'other words'
} >"$folder/findings"
verdict 'no library' "$folder/findings"

if ! mpirun --version 2>/dev/null | grep -q "Open MPI" || [ ! -e "${m3ref%/*}/libm3ref_mpi.so" ]; then
    echo 'skipped: all but 1 test: Open MPI is not installed, or the build was made without it (MPI=0)'
    end
    exit
fi

# job ARGUMENTS..: mpirun, with what it printed in out and errors. A job that hangs ends by itself. Without the name of a
# transport Open MPI looks for the hardware of all of them at every start.
job() {
    timeout 120 mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 --mca btl self,vader "$@" \
        >"$folder/out" 2>"$folder/errors"
}

# ranks N ARGUMENTS..: the program on N ranks.
ranks() {
    count=$1
    shift
    job -n "$count" "$@"
}

# same NAME COUNTS OUTPUTS ARGUMENTS..: one process and so many ranks print the same next tokens and write the same tensors
# into these outputs: --dump, --cache-out, --companions.
same() {
    name=$1 counts=$2 outputs=$3
    shift 3
    one= several=
    for option in $outputs; do
        one="$one $option $folder/one$option" several="$several $option $folder/several$option"
    done
    {
        "$m3ref" "$@" --threads 1 $one >"$folder/expected" 2>&1 || tail -n 2 "$folder/expected"
        grep '^next\|^tokens\|^sequence' "$folder/expected" >"$folder/next"
        for count in $counts; do
            ranks "$count" "$m3ref" "$@" --threads 1 $several || { echo "got status $?"; tail -n 3 "$folder/errors"; }
            grep '^next\|^tokens\|^sequence' "$folder/out" | cmp - "$folder/next"
            grep -q "^ranks: $count, " "$folder/out" || echo 'no summary of the ranks'
            for option in $outputs; do
                python3 tests/ranks/same.py "$folder/one$option" "$folder/several$option" | grep -v ' 0 differ'
                rm -f "$folder/several$option"
            done
        done
    } >"$folder/findings" 2>&1
    verdict "$name on $counts ranks" "$folder/findings"
}

ordered="--linear ordered"
for golden in tiny mtp; do
    same $golden "$(slice_of 2 3 4)" --dump run golden/$golden/model --case golden/$golden/case.safetensors $ordered
done
for model_counts in 'm2 3 4 2' 'block128 4 2 3' 'mxfp8 2 3 4' 'f8block 3 4 2' 'fourbit 4 2 3' 'common 2 3 4'; do
    golden=${model_counts%% *}
    same $golden "$(slice_of ${model_counts#* })" --dump run golden/$golden/model --case golden/$golden/case.safetensors $ordered
done
for model_counts in 'still 3 4 2' 'two 4 2 3' 'video 2 3 4'; do
    pictures=${model_counts%% *}
    same $pictures "$(slice_of ${model_counts#* })" --dump run $tiny --case golden/vision/${pictures}_case.safetensors $ordered
done
same 'double' 3 --dump run $mtp --case golden/mtp/case.safetensors $ordered --precision f64
same 'the plain definitions' 3 --dump run $mtp --case golden/mtp/case.safetensors --ops plain

# ---- few rows: from fewer than 2 for each rank to some more; with several modules

for ids in $(slice_of 1 1,2) $(slice_of 1,2,3,4,5 1,2,3,4,5,6) $(slice_of 1,2,3,4,5,6,7 1,2,3,4,5,6,7,8,9,10,11); do
    same "ids $ids" 3 --dump run $mtp --ids $ids $ordered
done
same 'more ranks than experts' 6 --dump run $mtp --case golden/mtp/case.safetensors $ordered

# ---- caches, readings, parts, sequences

long=$(seq -s, 1 60)
more=$(seq -s, 3 70)
same 'a new cache' 4 '--cache-out --dump' run $mtp --ids "$long" $ordered
"$m3ref" run $mtp --ids "$long" $ordered --cache-out "$folder/cache" >/dev/null
same 'many rows on a cache' 4 '--cache-out --dump' run $mtp --ids "$more" $ordered --cache-in "$folder/cache"
same 'few rows on a cache' 4 '--cache-out --dump' run $mtp --ids 5,6,7 $ordered --cache-in "$folder/cache"
for reading in $(slice_of mtp_embed=fused mtp_join=additive) $(slice_of mtp_handover=post_norm mtp_zero_position0=true) \
    $(slice_of selection=union pool=lse jitter=0.01); do
    same $reading 4 --dump run $mtp --ids "$long" $ordered --set $reading
done
same 'rows with pictures in modules' 3 --dump run $tiny --case $tiny_case $ordered --set mtp_embed=fused
"$m3ref" run $tiny --case $tiny_case --linear blas --set selection=shared --dump "$folder/theirs" >/dev/null
same 'decisions of another run' 3 --dump run $tiny --case $tiny_case $ordered --set selection=shared \
    --decisions "$folder/theirs"
same 'some layers' 4 --dump run $tiny --case $tiny_case $ordered --layers 3:5 --hidden "$folder/theirs" \
    --set selection=shared
same 'some taps' 4 --dump run $tiny --case $tiny_case $ordered --taps 'layers.4.moe.*,*block_scores,logits'
same 'companions' 3 '--dump --companions' run $tiny --case $tiny_case $ordered --profile bf16 --runs 2
python3 tests/ranks/make.py packed "$folder/packed"
same 'packed sequences' 3 --dump run $mtp --case "$folder/packed" $ordered
same 'generated' 3 '' generate $mtp --ids "$long" --max-new 20 $ordered
same 'generated with drafts' 4 '' generate $mtp --ids "$long" --max-new 32 --speculative $ordered
same 'drafts from rows' 4 '' generate $mtp --ids "$long" --max-new 20 --speculative $ordered --set mtp_embed=fused

# ---- blas sums: within the reference's own bounds; check has the same verdict

ranks 4 "$m3ref" run $tiny --case $tiny_case --threads 1 --dump "$folder/blas"
"$m3ref" compare golden/tiny/golden.safetensors.gz "$folder/blas" >"$folder/report" ||
    tail -n 3 "$folder/report" >"$folder/findings"
verdict 'blas sums' "$folder/findings"

# checked NAME STATUS WORDS ARGUMENTS..
checked() {
    name=$1 expected=$2 words=$3
    shift 3
    ranks 3 "$m3ref" check "$@" --threads 1
    status=$?
    {
        [ $status -eq "$expected" ] || echo "got status $status, expected $expected"
        grep -q "^$words" "$folder/out" || tail -n 3 "$folder/out" "$folder/errors"
        grep -q '^ranks: 3' "$folder/out" || echo 'no summary of the ranks'
    } >"$folder/findings"
    verdict "$name" "$folder/findings"
}
checked 'a right dump' 0 'pass: Nothing is wrong' $mtp golden/mtp/golden.safetensors.gz --case golden/mtp/case.safetensors
checked 'a wrong dump' 1 'fail: layers.0.mlp.act is wrong' $tiny tests/candidates/bf16_without_plus_one.safetensors.gz \
    --case tests/candidates/case.safetensors --map transformers --profile bf16

# ---- what is sent

for golden in tiny common m2 block128; do
    ranks 4 "$m3ref" run golden/$golden/model --case golden/$golden/case.safetensors --threads 1 --dump "$folder/dump"
    {
        sed -n 's/^ranks: .*, \([0-9]*\) bytes of keys, \([0-9]*\) bytes of tokens, \([0-9]*\) bytes of results, .*/\1 keys \2 tokens \3 results/p' \
            "$folder/out" >"$folder/counted"
        python3 scripts/bench/ranks_cost.py golden/$golden/model/config.json --dump "$folder/dump" --ranks 4 |
            diff - "$folder/counted"
        [ -s "$folder/counted" ] || echo 'nothing was counted'
    } >"$folder/findings" 2>&1
    verdict "bytes of $golden" "$folder/findings"
done
sed -n '/^| ranks | keys/,/^| 64 /p' ref/ranks/README.md >"$folder/page"
python3 scripts/bench/ranks_cost.py golden/configs/minimax-m3.json | diff - "$folder/page" >"$folder/findings" 2>&1
verdict 'the table of the page' "$folder/findings"

# ---- failures

# fails NAME STATUS WORDS MPIRUN'S ARGUMENTS..: that status, one line with the words, and no output.
mkdir "$folder/outputs"
fails() {
    name=$1 expected=$2 words=$3
    shift 3
    job "$@"
    status=$?
    {
        [ $status -eq "$expected" ] || echo "got status $status, expected $expected"
        [ "$(grep -c m3ref: "$folder/errors")" -eq 1 ] || { echo 'expected one message:' && cat "$folder/errors"; }
        grep -q "m3ref: $words" "$folder/errors" || { echo "no \"$words\" in:" && cat "$folder/errors"; }
        ls "$folder/outputs"
    } >"$folder/findings"
    verdict "$name" "$folder/findings"
}
dump="--threads 1 --dump $folder/outputs/dump"
fails 'a command of one rank' 64 'compare: got 3 ranks, expected 1' -n 3 "$m3ref" compare a b
fails 'a plug-in' 64 '--ops: got ./x.so with 3 ranks, expected plain' -n 3 "$m3ref" run $tiny --ids 1 --ops ./x.so
fails 'no model' 66 'golden/nothing: no such folder' -n 3 "$m3ref" run golden/nothing --ids 1
fails 'no folder for the dump' 74 "$folder/none/dump: " -n 3 "$m3ref" run $tiny --ids 1 --dump "$folder/none/dump"
"$m3ref" synth tests/ranks/slow.json "$folder/slow" >/dev/null
python3 tests/ranks/make.py long "$folder/long" 4096 1000
slow="run $folder/slow --case $folder/long $dump"
if ldd "$m3ref" | grep -q libasan; then
    echo 'skipped: ranks without memory: the sanitizer ends a process that has none'
else
    fails 'rank 2 without memory' 70 'rank 2: out of memory' -n 2 "$m3ref" $slow : -n 1 "$m3ref" --max-memory 32M $slow
    fails 'rank 0 without memory' 70 'out of memory' -n 1 "$m3ref" --max-memory 32M $slow : -n 2 "$m3ref" $slow
fi

# The first expert is on rank 0, the last on rank 2; the rows that chose it are on all.
for expert in 0 4; do
    mkdir "$folder/nan$expert"
    cp $mtp/config.json "$folder/nan$expert"
    tensor=$(grep -ao "\"[a-z_.]*layers\.[0-9]*\.[a-z_.]*experts\.$expert\.w2\.weight\"" $mtp/model.safetensors | head -n 1 | tr -d '"')
    python3 tests/ranks/make.py nan $mtp/model.safetensors "$tensor" "$folder/nan$expert/model.safetensors"
    fails "NaN in expert $expert" 1 '.*layers.[0-9]*.out, token [0-9]*: got nan' -n 3 "$m3ref" run "$folder/nan$expert" \
        --ids "$long" $dump
done

# A rank that is killed: mpirun ends the others.
cat >"$folder/killed" <<'END'
#!/bin/sh
victim=$1
shift
"$@" &
[ "$OMPI_COMM_WORLD_RANK" != "$victim" ] || { sleep 1; kill -9 $!; }
wait $!
END
chmod +x "$folder/killed"
for victim in 0 1; do
    ranks 3 "$folder/killed" $victim "$m3ref" $slow --ops plain
    status=$?
    {
        [ $status -eq 137 ] || echo "got status $status, expected 137"
        grep m3ref: "$folder/errors"
        find "$folder/outputs" -name dump
    } >"$folder/findings"
    verdict "rank $victim killed" "$folder/findings"
    rm -rf "$folder/outputs" && mkdir "$folder/outputs"
done

end
