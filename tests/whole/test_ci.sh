#!/bin/sh
# scripts/ci: the steps of the GitHub action, run one after the other in a folder that holds a model, a case and an
# engine; the engine is a dump of public PyTorch code, first right, then wrong, then right again. m3ref is installed once.
# The page's examples name inputs and variables that exist.
# Seen to fail with: an input that the action does not declare; the path of the installation not handed on; the baseline
# not kept; the changes not shown; the status of the check lost in a pipe; a variable of the page renamed; GATE=worse
# that keeps the worse run as the baseline.
build=${BUILD:-build}
. tests/support/verdict.sh
python=$PWD/${PYTHON_ENVIRONMENT:-build/python}/bin/python
case ${PYTHON_ENVIRONMENT:-} in /*) python=$PYTHON_ENVIRONMENT/bin/python ;; esac
if [ ! -x "$python" ]; then
    echo 'skipped: engines after a change: there is no build/python, which make test makes'
    : >"$folder/findings"
    verdict 'a machine without build/python' "$folder/findings"
    end
    exit
fi
case $(nm -D "$build/libm3ref.so") in *__asan_*) export ASAN_OPTIONS=detect_leaks=0 ;; esac
export BUILD="$(cd "$build" && pwd)"

mkdir "$folder/workspace"
cp -r golden/tiny/model "$folder/workspace/model"
cp tests/candidates/case.safetensors "$folder/workspace/case"
cp tests/candidates/bf16.safetensors.gz "$folder/workspace/right"
cp tests/candidates/bf16_without_plus_one.safetensors.gz "$folder/workspace/wrong"
result=$folder/workspace/results

# steps INPUTS..: the exit status into status, what the steps print into out. The first call installs m3ref.
installed=
steps() {
    rm -f "$folder/workspace.runner/STEP_SUMMARY"
    "$python" tests/whole/ci_steps.py $installed scripts/ci/action.yml "$folder/workspace" model=model case=case report=results "$@" \
        >"$folder/out" 2>"$folder/err"
    status=$?
    installed=--installed
}

# action ENGINE INPUTS..
action() {
    engine=$1
    shift
    steps map=transformers profile=bf16 "engine=gzip -dc <$engine >\"\$DUMP\"" "$@"
}
expect() { [ "$status" -eq "$1" ] || { echo "$2: got status $status, expected $1"; tail -n 3 "$folder/out" "$folder/err"; }; }

action right
{
    expect 0 'right'
    for file in check.txt stages.jsonl report.html junit.xml baseline.jsonl; do
        [ -s "$result/$file" ] && grep -q "actions/.*results/$file: there" "$folder/out" || echo "$file was not kept"
    done
    [ ! -e "$result/changes.txt" ] || echo 'changes since nothing'
    grep -q '^pass: Nothing is wrong' "$folder/workspace.runner/STEP_SUMMARY" || echo 'no verdict in the summary'
} >"$folder/findings"
verdict 'first run' "$folder/findings"

action wrong
{
    expect 1 'wrong'
    grep -q '^worse     layers.0.mlp.act  pass .* -> fail' "$result/changes.txt" || echo 'layers.0.mlp.act did not become worse'
    grep -q '^fail: layers.0.mlp.act is wrong' "$folder/workspace.runner/STEP_SUMMARY" || echo 'no verdict in the summary'
    grep -q '^since .* worse' "$folder/workspace.runner/STEP_SUMMARY" || echo 'no changes in the summary'
    grep -q 'upload-artifact.*junit.xml: there' "$folder/out" || echo 'no junit.xml of a failed run'
    grep -q '<failure' "$result/junit.xml" || echo 'no failure in junit.xml'
} >"$folder/findings"
verdict 'second run' "$folder/findings"

action wrong gate=worse
expect 0 'as wrong as before' >"$folder/findings"
head -n 1 "$result/changes.txt" | grep -q ': 0 worse, 0 missing, 0 better, 0 new, ' || head -n 1 "$result/changes.txt" >>"$folder/findings"
verdict 'third run' "$folder/findings"

action right gate=worse
{
    expect 0 'right again'
    grep -q '^better    layers.0.mlp.act  fail' "$result/changes.txt" || echo 'layers.0.mlp.act did not become better'
    cp "$result/baseline.jsonl" "$folder/kept"
    action wrong gate=worse
    expect 1 'worse'
    cmp "$result/baseline.jsonl" "$folder/kept"
} >"$folder/findings"
verdict 'GATE=worse' "$folder/findings"

{
    action right gate=never
    expect 64 'another gate'
    steps 'engine=exit 7'
    expect 7 'an engine that fails'
    for name in check.txt junit.xml report.html stages.jsonl; do
        [ ! -e "$result/$name" ] || echo "$name is that of an earlier run"
    done
    action right model=absent
    expect 66 'no model'
} >"$folder/findings"
verdict 'refused' "$folder/findings"

# ---- the page
"$python" - >"$folder/findings" <<'END'
import re, yaml
page = open("scripts/ci/README.md").read()
action = yaml.safe_load(open("scripts/ci/action.yml"))
variables = set(re.findall(r"^#(?: environment:)? +([A-Z]+)  ", open("scripts/ci/regression.sh").read(), re.M))
if len(variables) < 7:
    print("regression.sh: got the variables", variables)
github, gitlab = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.S)]
step = github["jobs"]["regression"]["steps"][-1]
required = {name for name, entry in action["inputs"].items() if entry.get("required")}
if not required <= set(step["with"]) <= set(action["inputs"]):
    print("workflow: got", sorted(step["with"]))
if not step["uses"].startswith("OWNER/m3ref/scripts/ci@"):
    print("workflow: uses", step["uses"])
if not set(gitlab["m3"]["variables"]) <= variables:
    print("GitLab: got", sorted(gitlab["m3"]["variables"]))
groovy, = re.findall(r"```groovy\n(.*?)```", page, re.S)
if not set(re.findall(r"([A-Z]+) = '", groovy)) <= variables:
    print("Jenkins: got", re.findall(r"([A-Z]+) = '", groovy))
env = [step["env"] for step in action["runs"]["steps"] if "env" in step]
if [set(names) - variables for names in env] != [set()]:
    print("action: got", env)
for name in re.findall(r"^\| `([a-z.]+)`", page, re.M) + ["junit.xml"]:
    if f"/{name}" not in open("scripts/ci/regression.sh").read():
        print("page: nothing writes", name)
END
verdict 'page' "$folder/findings"
end
