#!/bin/sh
# build.sh FOLDER BUILD-TYPE: installs what the build needs, builds the program in FOLDER, prints nothing but the
# program's path. Whatever failed is shown in full on standard error; what went well is not.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
type=$2

log=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-build.XXXXXX")
trap 'rm -f "$log"' EXIT

fail() {
    cat "$log" >&2
    echo "lockkeeper: $1" >&2
    exit 1
}

"$root/scripts/install.sh" build >"$log" 2>&1 || fail "installing what the build needs failed (see above)"
[ -x "$folder/lockkeeper" ] || echo "lockkeeper: building in $folder ..." >&2
cmake -S "$root" -B "$folder" -DCMAKE_BUILD_TYPE="$type" >"$log" 2>&1 || fail "configuring the build failed (see above)"
cmake --build "$folder" --target lockkeeper -j "$(nproc)" >"$log" 2>&1 || fail "the build failed (see above)"
echo "$folder/lockkeeper"
