"""Packs the package, the shared library and the program into a wheel.

A backend of its own, with the standard library alone, so that an installation needs neither the network nor setuptools.
The library and the program come from the repository's build folder (or from the folder that M3REF_BUILD names); if they
are not there, they are built by make, which needs what scripts/setup.sh installs.
"""
import base64
import hashlib
import os
import pathlib
import platform
import subprocess
import zipfile

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
VERSION = "0.1"
NAME = f"m3ref-{VERSION}"
TAG = f"py3-none-linux_{platform.machine()}"
METADATA = f"""Metadata-Version: 2.1
Name: m3ref
Version: {VERSION}
Summary: A reference of MiniMax-M3 and a judge for kernels and engines
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Provides-Extra: text
Requires-Dist: tokenizers>=0.23.3,<0.24; extra == "text"
Requires-Dist: jinja2>=3.1.6,<4; extra == "text"
"""
WHEEL = f"""Wheel-Version: 1.0
Generator: m3ref_build
Root-Is-Purelib: false
Tag: {TAG}
"""
ENTRY_POINTS = """[console_scripts]
m3ref = m3ref.__main__:main

[pytest11]
m3ref = m3ref.pytest_plugin
"""


def built():
    """The program and the library, after make if they are not there."""
    folder = pathlib.Path(os.environ.get("M3REF_BUILD", ROOT / "build"))
    files = [folder / "m3ref", folder / "libm3ref.so"]
    if not all(file.exists() for file in files) and "M3REF_BUILD" not in os.environ:
        if not (ROOT / "Makefile").exists():
            raise SystemExit(f"m3ref: {files[1]}: got no such file, expected what make builds in the repository")
        subprocess.run(["scripts/setup.sh"], cwd=ROOT, check=True)
        subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "all"], cwd=ROOT, check=True)
    for file in files:
        if not file.exists():
            raise SystemExit(f"m3ref: {file}: got no such file, expected what make builds")
    return files


def add(wheel, record, name, data, mode=0o644):
    entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record.append(f"{name},sha256={digest},{len(data)}")


def write(folder, modules):
    record = []
    with zipfile.ZipFile(pathlib.Path(folder) / f"{NAME}-{TAG}.whl", "w") as wheel:
        modules(wheel, record)
        for name, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("entry_points.txt", ENTRY_POINTS)):
            add(wheel, record, f"{NAME}.dist-info/{name}", text.encode())
        for name in ("LICENSE", "NOTICE"):
            add(wheel, record, f"{NAME}.dist-info/licenses/{name}", (ROOT / name).read_bytes())
        name = f"{NAME}.dist-info/RECORD"
        wheel.writestr(name, "\n".join(record + [f"{name},,", ""]))
    return f"{NAME}-{TAG}.whl"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    program, library = built()

    def modules(wheel, record):
        for file in sorted((HERE / "m3ref").glob("*.py")):
            add(wheel, record, f"m3ref/{file.name}", file.read_bytes())
        add(wheel, record, "m3ref/libm3ref.so", library.read_bytes(), 0o755)
        add(wheel, record, "m3ref/m3ref", program.read_bytes(), 0o755)

    return write(wheel_directory, modules)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """pip install -e: the modules here, and the library and the program in the build folder."""
    built()
    return write(wheel_directory, lambda wheel, record: add(wheel, record, "m3ref.pth", f"{HERE}\n".encode()))
