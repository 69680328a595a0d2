# Source this in a script that needs tools beyond those of setup.sh: needs TOOL:PACKAGE... names the Debian packages of
# those that are missing, in one line, and ends with status 69.
needs() {
    missing=""
    for need in "$@"; do
        command -v "${need%%:*}" >/dev/null 2>&1 || missing="$missing ${need##*:}"
    done
    [ -z "$missing" ] && return
    echo "${0##*/}: these Debian packages are missing: apt-get install$missing" >&2
    exit 69
}
