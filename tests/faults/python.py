#!/usr/bin/env python3
"""Faults in the parts that are written in Python: m3ref.text, alone and started by the program, the package, the script
for GGUF files. A library in front of the C library fails one call about files, or lets it do half, in Python alone.

Claims, for each call about a file that the command names, or about standard input and output: the command does all that
it does without the fault; or it ends with 74, one line and no traceback, and every output is absent or whole. The same
for calls of the interpreter itself, but the status may be 69 or 70.

Usage: python.py PROGRAM [SLICE]    SLICE 0 to 9: every tenth fault. The last line is "N passed, N failed".
Seen to fail with: standard input that cannot be read, called standard output; an import that fails with an error of the
disk (the same, or a traceback); a file that cannot be read as 65; lines of names that steer a terminal; standard output
that is full; OUT.part left by a failed rename.
"""
import errno
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ODD = os.fsdecode(b"\xff\033[31m")
SHORT = 0
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "SHORT": SHORT}
FAILS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static char is_ours[1024];
static int is_python(void) { return strncmp(program_invocation_short_name, "python", 6) == 0; }
static int is_below(const char *path)
{
    const char *below = getenv("FAULT_BELOW");
    return below && strncmp(path, below, strlen(below)) == 0;
}
static int is_call(int fd) { return fd >= 0 && fd < 1024 && (is_ours[fd] || fd < 2); }
/* 0: do it; 1: do half of it; -1: fail. FAULT_AT 0: calls are counted, by the bytes of FAULT_MET. */
static int meets(int ours, int has_half)
{
    static int left = -1, counts, error;
    if (!ours || !is_python()) return 0;
    if (left < 0) {
        left = atoi(getenv("FAULT_AT"));
        error = atoi(getenv("FAULT_WITH"));
        counts = left == 0;
    }
    if (!counts && (left == 0 || --left > 0)) return 0;
    const int met = syscall(SYS_openat, AT_FDCWD, getenv("FAULT_MET"), O_WRONLY | O_CREAT | O_APPEND, 0666);
    syscall(SYS_write, met, "x", 1);
    syscall(SYS_close, met);
    if (counts) return 0;
    if (!error) return has_half;
    errno = error;
    return error == EINTR && !has_half ? 0 : -1;
}
static int open_file(const char *path, int flags, int mode)
{
    const int ours = is_below(path);
    if (meets(ours, 0)) return -1;
    const int fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && fd < 1024) is_ours[fd] = ours;
    return fd;
}
#define OPENS(name) int name(const char *path, int flags, ...) { va_list rest; va_start(rest, flags); \
    const int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0; va_end(rest); return open_file(path, flags, mode); }
OPENS(open)
OPENS(open64)
ssize_t read(int fd, void *bytes, size_t count)
{
    const int met = meets(is_call(fd), 1);
    return met < 0 ? -1 : syscall(SYS_read, fd, bytes, met && count > 1 ? count / 2 : count);
}
ssize_t write(int fd, const void *bytes, size_t count)
{
    const int met = meets(is_call(fd), 1);
    return met < 0 ? -1 : syscall(SYS_write, fd, bytes, met && count > 1 ? count / 2 : count);
}
int close(int fd)
{
    const int fails = fd > 2 && meets(is_call(fd), 0);
    if (fd >= 0 && fd < 1024) is_ours[fd] = 0;
    const int closed = syscall(SYS_close, fd);
    return fails ? (errno = EIO, -1) : closed;
}
int fsync(int fd) { return meets(is_call(fd), 0) ? -1 : 0; }
int rename(const char *from, const char *to)
{
    return meets(is_below(from), 0) ? -1 : syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int mkdir(const char *path, mode_t mode) { return meets(is_below(path), 0) ? -1 : syscall(SYS_mkdirat, AT_FDCWD, path, mode); }
static void *map(void *at, size_t size, int access, int flags, int fd, off_t from)
{
    return meets(fd > 2 && is_call(fd), 0) ? (void *)-1 : (void *)syscall(SYS_mmap, at, size, access, flags, fd, from);
}
void *mmap(void *at, size_t size, int access, int flags, int fd, off_t from) { return map(at, size, access, flags, fd, from); }
void *mmap64(void *at, size_t size, int access, int flags, int fd, off_t from) { return map(at, size, access, flags, fd, from); }
"""
PACKAGE = """
import sys, m3ref
model, folder = sys.argv[1:]
try:
    m3ref.run(model, ids=[1, 2, 3], dump=folder + "/run.safetensors", threads=1)
    m3ref.cases("rms_norm", count=1).save(folder + "/cases.safetensors")
    m3ref.save(folder + "/again.npz.safetensors.gz", m3ref.load(folder + "/cases.safetensors"))
except (m3ref.Error, OSError) as why:
    sys.exit(print("m3ref:", *str(why).split(), file=sys.stderr) or getattr(why, "status", 74))
"""


def commands(program, folder):
    """(name, words, standard input)"""
    python, model, out = sys.executable, f"{folder}/model{ODD}", f"{folder}/out"
    text, package = [python, "-m", "m3ref.text"], [python, "-m", "m3ref"]
    chat = pathlib.Path(f"{folder}/chat{ODD}").read_bytes()
    return [
        ("run --prompt", [program, "run", model, "--prompt", "The sea", "--threads", "1", "--dump", out + "/d"], b""),
        ("generate --chat", [program, "generate", model, "--chat", f"{folder}/chat{ODD}", "--max-new", "2"], b""),
        ("encode", [*text, "encode", model], b"The sea is"),
        ("chat", [*text, "chat", model], chat),
        ("decode", [*text, "decode", model], b"1,2,3"),
        ("convert", [*package, "convert", f"{folder}/case{ODD}", f"{out}/c{ODD}.safetensors"], b""),
        ("convert, packed", [*package, "convert", f"{folder}/case.gz", out + "/c.safetensors.gz"], b""),
        ("convert, npz", [*package, "convert", f"{folder}/case.npz", out + "/c.safetensors"], b""),
        ("package", [python, "-c", PACKAGE, model, out], b""),
        ("gguf", [python, str(ROOT / "scripts/gguf_model.py"), f"{folder}/{ODD}.gguf", out + "/m" + ODD], b""),
    ]


def prepare(folder):
    os.mkdir(folder + "/out")
    shutil.copytree(ROOT / "golden/tiny/model", f"{folder}/model{ODD}")
    pathlib.Path(f"{folder}/chat{ODD}").write_text('[{"role": "user", "content": "Hello"}]')
    case = ROOT / "golden/tiny/case.safetensors"
    shutil.copy(case, f"{folder}/case{ODD}")
    import gzip
    import numpy
    pathlib.Path(f"{folder}/case.gz").write_bytes(gzip.compress(case.read_bytes()))
    numpy.savez(f"{folder}/case.npz", a=numpy.arange(4.0), b=numpy.arange(3))
    spec = importlib.util.spec_from_file_location("gguf_model_test", ROOT / "tests/python/gguf_model_test.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.write(f"{folder}/{ODD}.gguf", *made.text_tensors(str(ROOT / "golden/tiny/model")))


def files_of(out):
    """The bytes by path. A .gz has the time in its head."""
    found = {}
    for where, _, names in os.walk(out):
        for name in names:
            data = pathlib.Path(where, name).read_bytes()
            found[os.path.join(where, name)] = data[:4] + data[8:] if name.endswith(".gz") else data
    return found


class Runs:
    """A command, with and without faults."""

    def __init__(self, command, folder, library):
        self.name, self.words, self.given = command
        self.folder, self.library = folder, library
        self.good = self.run()

    def run(self, at=0, error=0, below=None):
        """(status, standard output, standard error, files, times that the fault was met)"""
        out, met = self.folder + "/out", self.folder + "/met"
        shutil.rmtree(out)
        os.mkdir(out)
        if os.path.exists(met):
            os.remove(met)
        environment = dict(os.environ, LD_PRELOAD=self.library, FAULT_AT=str(at), FAULT_WITH=str(error), FAULT_MET=met,
                           FAULT_BELOW=below or self.folder, PYTHONDONTWRITEBYTECODE="1", TMPDIR=out,
                           PYTHONPATH=str(ROOT / "scripts/python"), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
                           PATH=os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
        try:
            done = subprocess.run(self.words, input=self.given, capture_output=True, env=environment, timeout=60)
        except subprocess.TimeoutExpired:
            return -1, b"", b"it hangs", {}, 1
        return done.returncode, done.stdout, done.stderr, files_of(out), os.path.getsize(met) if os.path.exists(met) else 0

    def findings(self, got, statuses):
        status, out, said, files, _ = got
        wanted = self.good
        lines = said.decode(errors="replace").splitlines()
        if any(ord(one) < 32 and one != "\n" or one == "\ufffd" for one in (out + said).decode(errors="replace")):
            return "prints what steers a terminal, or is not UTF-8"
        if status == wanted[0]:
            lines_out = lambda text: [line for line in text.splitlines() if not line.startswith(b"run:")]
            same = lines_out(out) == lines_out(wanted[1]) and files == wanted[3] and said == wanted[2]
            return None if same else f"status {status}, but the outputs differ; {lines[-1:]}"
        if status not in statuses or len(lines) != 1 or "Traceback" in lines[0]:
            return f"status {status}: {lines[-3:]}"
        parts = [path for path, data in files.items() if wanted[3].get(path) != data]
        return f"left: {parts}" if parts else None


def main():
    program, chosen = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="m3ref-python-") as folder:
        library = folder + "/fails.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, "-x", "c", "-"], input=FAILS.encode(), check=True)
        prepare(folder)
        faults = []
        for command in commands(program, folder):
            runs = Runs(command, folder, library)
            if runs.good[0] != 0 or runs.good[2]:
                failed += 1
                print(f"FAIL {runs.name}: without a fault: {runs.good[0]}, {runs.good[2]}")
            step = 1 + runs.good[4] // 40       # the many pieces of one file are alike
            faults += [(runs, at, name, None, (74,)) for name in ERRORS for at in range(1, runs.good[4] + 1, step)]
        interpreter = Runs(commands(program, folder)[0], folder, library)
        calls = interpreter.run(below="/")[4]
        faults += [(interpreter, at, "EIO", "/", (69, 70, 74)) for at in range(1, calls + 1, 37)]
        for number, (runs, at, name, below, statuses) in enumerate(faults):
            if chosen is not None and number % 10 != chosen:
                continue
            why = runs.findings(runs.run(at, ERRORS[name], below), statuses)
            passed, failed = passed + (why is None), failed + (why is not None)
            if why:
                print(f"FAIL {runs.name}, call {at}, {name}: {why}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
