#!/bin/sh
# build.sh FOLDER BUILD-TYPE [PURPOSE]: installs what the build needs (install.sh PURPOSE; default: build), builds the program
# in FOLDER, and prints only the program's path on standard output. On a failure the full output goes to standard error.
# Progress goes there too, if it is a terminal or LOCKKEEPER_PROGRESS is set; otherwise only a note that a first build takes
# place.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
type=$2
purpose=${3:-build}

log=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-build.XXXXXX")
trap 'rm -f "$log"' EXIT
terminal=
[ ! -t 2 ] || terminal=yes
progress=${LOCKKEEPER_PROGRESS:-$terminal}

fail() {
    cat "$log" >&2
    echo "lockkeeper: $1" >&2
    exit 1
}

# Ends with advice if packages are missing and could not be installed.
fail_to_install() {
    cat "$log" >&2
    if grep -Eqi 'temporary failure resolving|could not resolve|network is unreachable|could not connect|connection timed out|no route to host' \
        "$log"; then
        echo "lockkeeper: apt cannot reach its servers: no network? With one, or with the packages at hand, this is what is missing:" >&2
    else
        echo "lockkeeper: what the build needs could not be installed (see above). By hand it is:" >&2
    fi
    echo "    sudo apt install $missing" >&2
    exit 1
}

# Shows cmake's progress (make's [ 42%], or ninja's [12/189]): on a terminal on one line, otherwise at intervals on a line each.
watch() {
    shown=
    while kill -0 "$1" 2>/dev/null; do
        sleep 0.5
        now=$(sed -n 's/^\[ *\([0-9]*\(%\|\/[0-9]*\)\)\].*/\1/p' "$log" | tail -n 1)
        [ -n "$terminal" ] || now=$(echo "$now" | sed 's/[0-9]%$/0%/; s/^0%$//')
        [ "$now" != "$shown" ] || continue
        shown=$now
        if [ -n "$terminal" ]; then
            printf '\rlockkeeper: building ... %s ' "$now" >&2
        else
            echo "lockkeeper: building ... $now" >&2
        fi
    done
    [ -z "$terminal" ] || [ -z "$shown" ] || printf '\r\033[K' >&2
}

missing=$("$root/scripts/install.sh" --missing "$purpose")
if [ -n "$missing" ]; then
    [ -z "$progress" ] || echo "lockkeeper: installing $missing ..." >&2
    "$root/scripts/install.sh" "$purpose" >"$log" 2>&1 || fail_to_install
fi
[ -x "$folder/lockkeeper" ] || echo "lockkeeper: building in $folder ..." >&2
cmake -S "$root" -B "$folder" -DCMAKE_BUILD_TYPE="$type" >"$log" 2>&1 || fail "configuring the build failed (see above)"
cmake --build "$folder" --target lockkeeper -j "$(nproc)" >"$log" 2>&1 &
build=$!
[ -z "$progress" ] || watch "$build"
wait "$build" || fail "the build failed (see above)"
echo "$folder/lockkeeper"
