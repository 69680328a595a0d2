"""python -m m3ref ARGS: the program."""
import os
import sys

from ._library import program

path = program()
os.execv(path, [path, *sys.argv[1:]])
