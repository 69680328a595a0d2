"""Writes tests/candidates/sglang.safetensors.gz: SGLang in F16 on vllm_case, 12 tokens at once and 2 one by one.

    build/m3ref synth tests/candidates/vllm_config.json MODEL
    python3 scripts/engines/candidate_sglang.py MODEL
"""

import os
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LEFT_OUT = ("topk.2", "model.norm.1", "layers.0.self_attn.qkv_proj")    # no tap; to keep the file small
sys.path.insert(0, os.path.join(ROOT, "scripts", "golden"))
import files  # noqa: E402


def main():
    folder = os.path.join(ROOT, "tests", "candidates")
    with tempfile.TemporaryDirectory() as work:
        dump = os.path.join(work, "dump.safetensors")
        program = os.path.join(ROOT, "scripts", "engines", "dump.py")
        subprocess.run([sys.executable, program, "sglang_whole", sys.argv[1],
                        os.path.join(folder, "vllm_case.safetensors"), dump, "--dtype", "f16", "--decode", "2",
                        "--repaired"], check=True)
        arrays, metadata = files.read(dump)
    kept = {name: files.from_array(array) for name, array in arrays.items() if not name.endswith(LEFT_OUT)}
    files.write(os.path.join(folder, "sglang.safetensors.gz"), files.to_bytes(kept, metadata))


if __name__ == "__main__":
    main()
