"""Runs the `run:` steps of a GitHub action, as GitHub would, in a folder of its own and in an environment that holds
nothing but what GitHub gives: path of the system, temporary folder, files for path, outputs and summary.

usage: ci_steps.py [--installed] ACTION.yml WORKSPACE NAME=VALUE..      the inputs
--installed: an earlier call has run the first step, which installs m3ref; its path is kept beside the workspace.
Steps that use other actions are only checked: the cache and the artifacts are files in the workspace, which stay there
for the next call. Prints what the steps print. Exit status: of the step that failed, or 0; 65 if the file asks for
something that is not known here.
"""
import os
import pathlib
import re
import subprocess
import sys

import yaml

KNOWN_USES = {"actions/cache/restore@v4": {"path", "key", "restore-keys"}, "actions/cache/save@v4": {"path", "key"},
              "actions/upload-artifact@v4": {"name", "path"}}
GIVEN = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")


def refuse(what):
    raise SystemExit(print(f"ci_steps: {what}", file=sys.stderr) or 65)


def expanded(text, inputs):
    """Replaces ${{ inputs.NAME }}, ${{ github.run_id }} and ${{ github.run_attempt }}."""
    def value(match):
        scope, _, name = match[1].partition(".")
        if scope == "inputs" and name in inputs:
            return inputs[name]
        return "1" if match[1] in ("github.run_id", "github.run_attempt") else refuse(f"{match[0]}: got an unknown expression")
    return re.sub(r"\$\{\{ *([^ }]+) *\}\}", value, str(text))


def inputs_of(action, given):
    declared = action["inputs"]
    for name in given:
        if name not in declared:
            refuse(f"{name}: got an input that the action does not have")
    for name, entry in declared.items():
        if entry.get("required") and name not in given:
            refuse(f"{name}: got no value, expected one")
    return {name: given.get(name, entry.get("default")) for name, entry in declared.items()}


def run_step(step, inputs, action_path, workspace, runner):
    environment = dict(pair.split("=", 1) for pair in GIVEN)
    for name in ("PATH", "OUTPUT", "STEP_SUMMARY"):
        file = runner / name
        file.touch()
        environment[f"GITHUB_{name}"] = str(file)
    added = (runner / "PATH").read_text().split()
    environment["PATH"] = ":".join([*reversed(added), environment["PATH"]])
    environment |= {"GITHUB_ACTION_PATH": str(action_path), "RUNNER_TEMP": str(runner), "HOME": str(runner),
                    "CI": "true", "GITHUB_WORKSPACE": str(workspace)}
    # Which folder make builds in is the one thing that this test adds: there the program is built already.
    environment |= {name: os.environ[name] for name in ("BUILD", "CC", "ASAN_OPTIONS") if name in os.environ}
    environment |= {name: expanded(text, inputs) for name, text in step.get("env", {}).items()}
    if step["shell"] != "bash":
        refuse(f"{step['name']}: got shell {step['shell']}, expected bash")
    return subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", expanded(step["run"], inputs)],
                          cwd=workspace, env=environment).returncode


def main(*words):
    installed = words[0] == "--installed"
    file, workspace, *pairs = words[installed:]
    file, workspace = pathlib.Path(file).resolve(), pathlib.Path(workspace).resolve()
    action = yaml.safe_load(file.read_text())
    inputs = inputs_of(action, dict(pair.split("=", 1) for pair in pairs))
    runner = workspace.parent / (workspace.name + ".runner")
    runner.mkdir(exist_ok=True)
    failed = 0
    for step in action["runs"]["steps"][installed:]:
        if step.get("if", "success()") not in ("always()", "success()"):
            refuse(f"{step['name']}: got the condition {step['if']}")
        if failed and step.get("if") != "always()":
            continue
        if "run" in step:
            failed = failed or run_step(step, inputs, file.parent, workspace, runner)
        elif set(step["with"]) - KNOWN_USES.get(step["uses"], set()):
            refuse(f"{step['uses']}: got {sorted(step['with'])}")
        else:
            for name in expanded(step["with"]["path"], inputs).split():
                print(f"{step['uses']}: {name}: {'there' if (workspace / name).exists() else 'absent'}", flush=True)
    return failed


sys.exit(main(*sys.argv[1:]))
