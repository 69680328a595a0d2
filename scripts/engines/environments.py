"""A virtual environment for each engine, made from the package registry."""

import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from . import registry

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.normpath(os.path.join(HERE, "..", "..", os.environ.get("BUILD", "build"), "engines"))


class NotInstalled(Exception):
    pass


def folder(name):
    return os.path.join(BUILD, name)


def wanted(name):
    """What the environment was made from, so that another version makes it again."""
    engine = registry.ENGINES[name]
    return hashlib.sha256(repr(engine.packages + engine.sources + engine.commands).encode()).hexdigest()


def inside(name):
    return os.path.realpath(sys.prefix) == os.path.realpath(folder(name))


def is_ready(name):
    try:
        with open(os.path.join(folder(name), "ready")) as file:
            return file.read() == wanted(name)
    except OSError:
        return False


def call(engine, command, folder=None):
    """Runs a step of an installation; the programs of the environment come first in PATH."""
    programs = {**os.environ, "PATH": os.path.dirname(command[0]) + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(command, cwd=folder, env=programs, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr + done.stdout).splitlines()
        lines = [line for line in said if "error" in line.lower()] or ["no reason given"]
        raise NotInstalled(f"{engine.title} cannot be installed: {lines[-1].strip()}")


def unpack(engine, python_path, source, out):
    """The wanted files of an archive. An sdist has all its files in one folder, whose name is left out."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(out)) as work:
        kind = "--no-binary" if source.is_sdist else "--only-binary"
        call(engine, [python_path, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                      "--dest", work, kind, source.package.split("==")[0], source.package])
        archive = os.path.join(work, os.listdir(work)[0])
        if source.is_sdist:
            with tarfile.open(archive) as file:
                for member in file:
                    member.name = member.name.partition("/")[2]
                    if is_wanted(source, member.name):
                        file.extract(member, out, filter="data")
        else:
            with zipfile.ZipFile(archive) as file:
                file.extractall(out, [member for member in file.namelist() if is_wanted(source, member)])


def is_wanted(source, name):
    return any(fnmatch.fnmatch(name, pattern) for pattern in source.patterns)


def python(name):
    """The Python of an engine. The environment is made first if that has not been done."""
    path = os.path.join(folder(name), "bin", "python")
    if is_ready(name):
        return path
    print(f"engines: installing {registry.ENGINES[name].title} in {folder(name)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder(name), ignore_errors=True)
    engine = registry.ENGINES[name]
    call(engine, [sys.executable, "-m", "venv", folder(name)])
    for words in engine.packages:
        call(engine, [path, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words])
    for source in engine.sources:
        unpack(engine, path, source, os.path.join(folder(name), "source"))
    for words in engine.commands:
        call(engine, [os.path.join(folder(name), "bin", words[0]), *words[1:]], folder(name))
    with open(os.path.join(folder(name), "ready"), "w") as file:
        file.write(wanted(name))
    return path
