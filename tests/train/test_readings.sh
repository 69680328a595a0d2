#!/bin/sh
# m3ref grad with other readings of the losses. Whole passes in double: the slope of the loss along its gradient; the
# warm-up phase against a model that keeps every block, and against the number that PyTorch formulas gave; padding
# against none; balance by sigmoid scores against a formula written apart, on dumped taps; refusals.
# Seen to fail with: warm-up with sparse attention in the main branch; padding counted in the divisor of kl, or in the
# balance; one layer alone counted with aux=sigmoid; the fraction of kl_log_eps dropped.
build=${BUILD:-build}
. tests/support/verdict.sh
cat >"$folder/readings.py" <<'P'
import array, json, math, os, shutil, struct, subprocess, sys
sys.path.insert(0, "scripts")
sys.dont_write_bytecode = True
import index_descent
program, folder, what = sys.argv[1:4]
MODEL, CASE = index_descent.MODEL, index_descent.CASE

def grad(model, case, loss, *sets, dump=None, taps="param.*"):
    command = [program, "grad", model, "--case", case, "--loss", loss, "--precision", "f64", "--linear", "ordered", "--json"]
    command += [word for one in sets for word in ("--set", one)]
    command += ["--dump", dump, "--taps", taps] if dump else []
    made = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(made.stdout)["losses"][loss.split(",")[0]]

def doubles(path):
    header, _, data = index_descent.read(path)
    return {name: array.array("d", data[slice(*entry["data_offsets"])]) for name, entry in header.items()
            if entry["dtype"] == "F64"}

def integers(path, name):
    header, _, data = index_descent.read(path)
    kind = {"I64": "q", "I32": "i"}[header[name]["dtype"]]
    return list(array.array(kind, data[slice(*header[name]["data_offsets"])]))

def demand(name, got, want, limit):
    if not abs(got - want) <= limit * abs(want):
        print(f"{name}: got {got!r}, expected {want!r}")

def same(name, a, b, limit):
    a, b = doubles(a), doubles(b)
    if not a or set(a) != set(b):
        print(f"{name}: other tensors: {sorted(set(a) ^ set(b))[:3]}")
    for tensor in set(a) & set(b):
        size = math.sqrt(sum(x * x for x in b[tensor]))
        off = math.sqrt(sum((x - y) ** 2 for x, y in zip(a[tensor], b[tensor], strict=True)))
        if not off <= limit * size:
            print(f"{name}: {tensor}: off by {off} of {size}")

def slope(*sets):
    """Along the gradient of the index branch. Weights are rounded to float, so that steps are exact to 1e-5."""
    branch, dump = index_descent.IndexBranch(os.path.join(folder, "slope")), os.path.join(folder, "slope_d")
    grad(branch.folder, CASE, "kl", *sets, dump=dump)
    before = dict(branch.tensors)
    gradients = {name.removeprefix("d.param."): value for name, value in doubles(dump).items()}
    norm = math.sqrt(sum(d * d for value in gradients.values() for d in value))
    ends, moved = [], 0.0
    for step in (2e-4, -2e-4):
        for name, value in gradients.items():
            dtype, shape, data = before[name]
            old = index_descent.floats(data)
            new = array.array("f", [w + step * d / norm for w, d in zip(old, value, strict=True)])
            moved += sum((n - w) * d for n, w, d in zip(new, old, value)) * (1 if step > 0 else -1)
            branch.tensors[name] = dtype, shape, index_descent.to_bytes(new)
        index_descent.write(branch.path, branch.tensors, branch.metadata)
        ends.append(grad(branch.folder, CASE, "kl", *sets))
    demand("slope, " + " ".join(sets), ends[0] - ends[1], moved, 1e-4)

def write_case(name, ids, labels, mask=None):
    tensors = {"input_ids": ids, "labels": labels} | ({"attention_mask": mask} if mask else {})
    index_descent.write(os.path.join(folder, name), {key: ("I64", [len(v)], struct.pack(f"<{len(v)}q", *v))
                                                     for key, v in tensors.items()}, None)
    return os.path.join(folder, name)

def copy_with_blocks(blocks):
    copy = os.path.join(folder, "dense")
    shutil.copytree(MODEL, copy, dirs_exist_ok=True)
    path = os.path.join(copy, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["text_config"]["sparse_attention_config"]["sparse_topk_blocks"] = blocks
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return copy

if what == "slopes":
    for sets in (["kl_phase=warmup"], ["kl_teacher=logit", "kl_direction=reverse"], ["kl_teacher_norm=cut,kl_tau=2"],
                 ["kl_teacher=all", "kl_scale=1", "kl_count=rows", "kl_log_eps=0.01"]):
        slope(*sets)
if what == "warmup":
    dense, a, b = copy_with_blocks(17), os.path.join(folder, "a"), os.path.join(folder, "b")
    demand("every block", grad(MODEL, CASE, "kl,lm", "kl_phase=warmup", dump=a), grad(dense, CASE, "kl,lm", dump=b), 1e-12)
    same("every block", a, b, 1e-11)
    demand("PyTorch", grad(MODEL, CASE, "kl", "kl_phase=warmup"), 0.550129598840 + 0.661730920336 + 0.565578304904, 1e-11)
    demand("PyTorch, sparse", grad(MODEL, CASE, "kl"), 0.649730453870 + 0.759830776152 + 0.611286203357, 1e-11)
if what == "padding":
    ids, labels = integers(CASE, "input_ids"), integers(CASE, "labels")
    T, a, b = len(ids), os.path.join(folder, "a"), os.path.join(folder, "b")
    padded = write_case("padded", ids + [7] * 6, labels + [-100] * 6, [1] * T + [0] * 6)
    for loss, sets in (("kl", []), ("kl", ["kl_phase=warmup"]), ("aux", []), ("aux", ["aux=sigmoid"])):
        demand(f"{loss} {sets}", grad(MODEL, padded, loss, *sets, dump=a), grad(MODEL, CASE, loss, *sets, dump=b), 1e-13)
        same(f"{loss} {sets}", a, b, 1e-11)
    demand("kl_rows=all", grad(MODEL, padded, "kl", "kl_rows=all"), grad(MODEL, CASE, "kl") * T / (T + 6), 1e-13)
    batch = grad("golden/mtp/model", "golden/train/batch_case.safetensors", "kl")
    demand("kl_rows=all, two sequences", grad("golden/mtp/model", "golden/train/batch_case.safetensors", "kl",
                                              "kl_rows=all"), batch * 26 / 30, 1e-13)
if what == "sigmoid":
    dump = os.path.join(folder, "taps")
    subprocess.run([program, "run", MODEL, "--case", CASE, "--precision", "f64", "--linear", "ordered", "--taps",
                    "*.router_logits,*.experts", "--dump", dump], stdout=subprocess.DEVNULL, check=True)
    taps, E, K, T, loss = doubles(dump), 11, 5, 67, 0.0
    for name, logits in taps.items():
        scores = [1 / (1 + math.exp(-l)) for l in logits]
        load, mean = [0] * E, [0.0] * E
        for e in integers(dump, name.replace("router_logits", "experts")):
            load[e] += 1
        for t in range(T):
            row = scores[t * E:(t + 1) * E]
            for e in range(E):
                mean[e] += row[e] / sum(row) / T
        loss += sum(E * load[e] / (K * T) * mean[e] for e in range(E))
    if len(taps) != 3:
        print(f"{len(taps)} routers, expected 3")
    demand("sigmoid", grad(MODEL, CASE, "aux", "aux=sigmoid"), loss, 1e-13)
P
for what in slopes warmup padding sigmoid; do
    python3 "$folder/readings.py" "$build/m3ref" "$folder" $what >"$folder/findings" 2>&1
    verdict "$what" "$folder/findings"
done

# refused STATUS WORDS OPTION...
refused() {
    want=$1 words=$2
    shift 2
    "$build/m3ref" grad golden/tiny/model --case golden/train/case.safetensors --loss kl "$@" >"$folder/out" 2>&1
    got=$?
    : >"$folder/findings"
    [ $got -eq "$want" ] || echo "status $got, expected $want" >>"$folder/findings"
    [ "$(wc -l <"$folder/out")" -eq 1 ] && grep -q -e "$words" "$folder/out" || cat "$folder/out" >>"$folder/findings"
    verdict "$*" "$folder/findings"
}
refused 64 'kl_phase: got dense, expected sparse, warmup' --set kl_phase=dense
refused 64 'kl_tau: got 0, expected a number above 0' --set kl_tau=0
refused 64 'kl_log_eps: got 2, expected a number from 0 to 1' --set kl_log_eps=2
refused 64 'got the field kl_teachers' --set kl_teachers=all

"$build/m3ref" grad golden/tiny/model --case golden/train/case.safetensors --loss kl --set kl_teacher=all \
    --dump "$folder/other.safetensors" >/dev/null
"$build/m3ref" compare golden/train/kl.safetensors.gz "$folder/other.safetensors" >"$folder/out" 2>&1
got=$?
: >"$folder/findings"
[ $got -eq 3 ] && grep -q 'readings: got {"kl_teacher":"all"}, expected {}' "$folder/out" || cat "$folder/out" >"$folder/findings"
verdict 'gradients of another reading' "$folder/findings"
end
