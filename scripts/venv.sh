#!/bin/sh
# Makes a virtual environment. usage: venv.sh FOLDER REQUIREMENTS
# PyTorch is installed first and on its own: together with other packages, pip may choose a build of several gigabytes.
set -eu
folder=$1
requirements=$2

echo "set-up: virtual environment $folder"
python3 -m venv "$folder" || {
    echo "set-up: python3 with venv is needed: apt-get install python3 python3-venv" >&2
    exit 1
}
torch=$(sed -n '/^torch==/p' "$requirements")
[ -z "$torch" ] || "$folder/bin/pip" install --quiet --disable-pip-version-check "$torch"
"$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
