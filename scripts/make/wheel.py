"""A wheel for machines without compilers: program and shared library, with the libraries that they use and their licences.

usage: wheel.py BUILD FOLDER        BUILD: what make built; FOLDER: receives the wheel

auditwheel copies the libraries into the wheel and chooses its tag. The text of each library's licence comes from the
Debian package that the library is from. NOTICE names them all; a library that it does not name is an error.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/python/backend"))
COMMON = "/usr/share/common-licenses/"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def used(file):
    """The files of the libraries that a program uses."""
    return {pathlib.Path(path).resolve() for path in re.findall(r"=> (/\S+)", output("ldd", str(file)))}


def package_of(library):
    # dpkg knows some files by the name that they had before /lib became a link to /usr/lib.
    for name in (str(library), str(library).removeprefix("/usr")):
        found = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    raise SystemExit(f"wheel: {library}: got a library of no Debian package, expected one whose licence is known")


def copied(wheel, candidates):
    """The candidates that auditwheel has put into the wheel, as NAME-HASH.REST for NAME.REST."""
    found = []
    for name in (pathlib.Path(n).name for n in zipfile.ZipFile(wheel).namelist() if ".libs/" in n and not n.endswith("/")):
        match = [c for c in candidates
                 if re.fullmatch(re.escape(c.name.split(".")[0]) + r"-[0-9a-f]{8}\..*", name)]
        if len(match) != 1:
            raise SystemExit(f"wheel: {name}: got {len(match)} libraries that it may be, expected one")
        found += match
    return found


def licences(libraries):
    """File name: text, for the folder of licences."""
    notice = (ROOT / "NOTICE").read_text()
    texts = {}
    for library in libraries:
        name = library.name.split(".")[0]
        if not re.search(rf"\b{re.escape(re.split(r'p?-r', name)[0])}\b", notice):
            raise SystemExit(f"wheel: {name}: NOTICE does not name this library")
        package = package_of(library)
        text = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text()
        texts[f"{package}.txt"] = text
        for common in set(re.findall(COMMON + r"([A-Za-z0-9.-]*[A-Za-z0-9])", text)):
            texts[f"{common}.txt"] = pathlib.Path(COMMON + common).read_text()
    return texts


def add_texts(source, target, texts):
    """Copies a wheel, with the texts in its folder of licences and in its record."""
    from m3ref_build import add
    record = []
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        records = [n for n in old.namelist() if n.endswith(".dist-info/RECORD")]
        for entry in old.infolist():
            if entry.filename in records or entry.is_dir():
                continue
            add(new, record, entry.filename, old.read(entry), entry.external_attr >> 16 & 0o777)
        folder = records[0].rsplit("/", 1)[0]
        for name, text in sorted(texts.items()):
            add(new, record, f"{folder}/licenses/libraries/{name}", text.encode())
        new.writestr(records[0], "\n".join(record + [f"{records[0]},,", ""]))


def main(build, folder):
    from m3ref_build import build_wheel
    build, folder = pathlib.Path(build).resolve(), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        raw = build_wheel(scratch)
        subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--strip", "-w", f"{scratch}/repaired",
                        f"{scratch}/{raw}"], check=True, capture_output=True)
        repaired, = pathlib.Path(scratch, "repaired").glob("*.whl")
        libraries = copied(repaired, used(build / "m3ref") | used(build / "libm3ref.so"))
        for old in folder.glob("m3ref-*.whl"):
            old.unlink()
        add_texts(repaired, folder / repaired.name, licences(libraries))
    print(f"{folder / repaired.name}: with {', '.join(sorted(p.name for p in libraries))}")


main(*sys.argv[1:])
