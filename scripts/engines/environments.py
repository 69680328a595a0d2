"""A virtual environment for each engine, made from the package registry."""

import hashlib
import os
import shutil
import subprocess
import sys

from . import registry

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.normpath(os.path.join(HERE, "..", "..", os.environ.get("BUILD", "build"), "engines"))


class NotInstalled(Exception):
    pass


def folder(name):
    return os.path.join(BUILD, name)


def wanted(name):
    """What the environment was made from, so that another version makes it again."""
    return hashlib.sha256(repr(registry.ENGINES[name].packages).encode()).hexdigest()


def inside(name):
    return os.path.realpath(sys.prefix) == os.path.realpath(folder(name))


def is_ready(name):
    try:
        with open(os.path.join(folder(name), "ready")) as file:
            return file.read() == wanted(name)
    except OSError:
        return False


def python(name):
    """The Python of an engine. The environment is made first if that has not been done."""
    path = os.path.join(folder(name), "bin", "python")
    if is_ready(name):
        return path
    print(f"engines: installing {registry.ENGINES[name].title} in {folder(name)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder(name), ignore_errors=True)
    commands = [[sys.executable, "-m", "venv", folder(name)]]
    commands += [[path, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
                 for words in registry.ENGINES[name].packages]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if "ERROR" in line] or ["no reason given"]
            raise NotInstalled(f"{registry.ENGINES[name].title} cannot be installed: {lines[-1].strip()}")
    with open(os.path.join(folder(name), "ready"), "w") as file:
        file.write(wanted(name))
    return path
