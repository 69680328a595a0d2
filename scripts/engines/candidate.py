"""Writes tests/candidates/llama_cpp.safetensors.gz and its case: two layers of a dump of llama.cpp on golden/common.

    python3 scripts/engines/candidate.py
"""

import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "scripts", "golden"))
import files  # noqa: E402

TOKENS = 17                             # five blocks, of which three are chosen
WHOLE = ("token_embd", "output_norm", "output", "l_out-1", "l_out-3", "l_out-4")
LAYERS = re.compile(r"(?:blk\.|-)[02](?:\.|\)|$)")
LEFT_OUT = re.compile(r"(?:gate|up)_(?:exps|shexp)$|^ffn_swiglu_oai-2$|^ffn_moe_(?:argsort|probs_biased|swiglu_oai"
                      r"|weighted|weights|weights_scaled|weights_sum|weights_sum_clamped)-")


def main():
    folder, model = os.path.join(ROOT, "tests", "candidates"), os.path.join(ROOT, "golden", "common", "model")
    case = os.path.join(folder, "llama_cpp_case.safetensors")
    arrays, _ = files.read(os.path.join(ROOT, "golden", "common", "case.safetensors"))
    files.write(case, files.to_bytes({"input_ids": files.from_array(arrays["input_ids"][:TOKENS])}))
    with tempfile.TemporaryDirectory() as work:
        dump = os.path.join(work, "dump.safetensors")
        program = os.path.join(ROOT, "scripts", "engines", "dump.py")
        subprocess.run([sys.executable, program, "llama_cpp", model, case, dump], check=True)
        arrays, metadata = files.read(dump)
    kept = {name: files.from_array(array) for name, array in arrays.items()
            if name in WHOLE or LAYERS.search(name) and not LEFT_OUT.search(name)}
    files.write(os.path.join(folder, "llama_cpp.safetensors.gz"), files.to_bytes(kept, metadata))


if __name__ == "__main__":
    main()
