"""What the CUDA kernels take of a multiprocessor, as compiled: registers, spills, loads in flight.

    python3 scripts/cuda/cuda_resources.py [TARGET]        TARGET 90, if none is named; needs nvcc; nvdisasm for the loads

Loads in flight: of a thread, the most bytes of global memory that are on their way at a time, in the order of the
compiled instructions (ldg: into registers, until one of them is read; cp.async: between two waits). Bytes of a
multiprocessor: those times the threads that fit by their registers, in blocks of 256. Beside it what 0.6 of the
memory's bandwidth needs (--bandwidth, in TB/s) with loads that take 1 us.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

REGISTERS, PROCESSORS = 65536, 132          # of a multiprocessor; multiprocessors of an H100
WIDTHS = {"": 4, ".64": 8, ".128": 16, ".U8": 1, ".U16": 2, ".S8": 1, ".S16": 2}


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}")
    return done.stdout


def plain_name(symbol):
    """kernel<arguments>, from a mangled name."""
    name = run("c++filt", symbol).strip() if shutil.which("c++filt") else symbol
    name = re.sub(r"\(m3_dtype\)(\d)", lambda m: {"1": "F32", "3": "BF16", "4": "E4M3"}.get(m[1], m[1]), name)
    return re.sub(r"^void ", "", name).split("(")[0].replace("__nv_bfloat16", "bf16")


def resources(text):
    """symbol -> registers, spilled bytes; of what ptxas -v prints."""
    found, symbol, spilled = {}, None, 0
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            symbol = match[1]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            found[symbol] = int(match[1]), spilled
    return found


def registers_of(operands):
    """Numbers of the general registers that a list of operands names; 64-bit addresses are two."""
    named = set()
    for match in re.finditer(r"\bR(\d+)(\.64)?", operands):
        named |= {int(match[1]), int(match[1]) + (1 if match[2] else 0)}
    return named


def most_in_flight(lines):
    """The most bytes loaded and not yet read, in the order of the instructions."""
    pending, copied, most = {}, 0, 0
    for line in lines:
        match = re.search(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?(\S+)\s*([^;]*);", line)
        if not match:
            continue
        name, operands = match[1], match[2]
        if name.startswith(("DEPBAR", "LDGDEPBAR.WAIT")):
            copied = 0
        if name.startswith("LDGSTS"):
            copied += WIDTHS[(re.search(r"\.(64|128)\b", name) or [""])[0]]
        elif name.startswith("LDG."):
            target, _, address = operands.partition(",")
            width = WIDTHS[(re.search(r"\.(64|128|U8|U16|S8|S16)\b", name) or [""])[0]]
            if registers_of(address) & pending.keys():
                pending.clear()
            first = min(registers_of(target), default=None)
            if first is not None:
                share = max(1, (width + 3) // 4)
                pending.update({first + i: width / share for i in range(share)})
        elif registers_of(operands) & pending.keys():
            pending.clear()
        most = max(most, sum(pending.values()) + copied)
    return int(most)


def in_flight(disassembly):
    """symbol -> bytes."""
    found, symbol, lines = {}, None, []
    for line in disassembly.splitlines() + ["\t.section\t.text."]:
        match = re.match(r'\s*\.section\s+\.text\.([^,\s]*)', line)
        if match:
            if symbol:
                found[symbol] = most_in_flight(lines)
            symbol, lines = match[1], []
        lines.append(line)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="90")
    parser.add_argument("--bandwidth", type=float, default=3.35, help="TB/s; an H100 has 3.35")
    options = parser.parse_args()
    nvcc, nvdisasm = os.environ.get("NVCC", "nvcc"), shutil.which("nvdisasm")
    if not shutil.which(nvcc):
        print(f"cuda_resources.py: {nvcc} is not there", file=sys.stderr)
        sys.exit(69)
    needed = 0.6 * options.bandwidth * 1e12 * 1e-6 / PROCESSORS / 1024
    print(f"sm_{options.target}; 0.6 of {options.bandwidth} TB/s need {needed:.1f} KiB in flight on a multiprocessor")
    print(f"{'file':18} {'kernel':28} {'registers':>9} {'spilled':>8} {'bytes a thread':>14} {'KiB':>6}")
    spilled = 0
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(glob.glob("ref/cuda/*.cu")):
            cubin = os.path.join(folder, "kernels.cubin")
            text = run(nvcc, "-std=c++17", "-O3", "-Iref", f"-arch=sm_{options.target}", "-cubin", "-Xptxas", "-v",
                       "-o", cubin, source)
            kernels = resources(text)
            flight = in_flight(run(nvdisasm, "-c", cubin)) if nvdisasm and kernels else {}
            for symbol, (registers, spills) in sorted(kernels.items(), key=lambda kernel: plain_name(kernel[0])):
                loads = flight.get(symbol)
                blocks = min(8, REGISTERS // (256 * ((registers + 7) // 8 * 8)))
                spilled += spills
                print(f"{os.path.basename(source):18} {plain_name(symbol):28} {registers:9} {spills:8} "
                      f"{'-' if loads is None else loads:>14} "
                      f"{'-' if loads is None else round(loads * blocks * 256 / 1024, 1):>6}")
    if not nvdisasm:
        print("nvdisasm is not there: loads were not counted (pip: nvidia-cuda-nvdisasm)")
    sys.exit(1 if spilled else 0)


if __name__ == "__main__":
    main()
