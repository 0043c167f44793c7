#!/bin/sh
# static.sh [FOLDER]: installs what the build needs, builds the program as one file for any Linux with this machine's
# processor, puts it into FOLDER (default: build-static/) and prints its path.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/build-static}
log=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-static.XXXXXX")
trap 'rm -f "$log"' EXIT

"$root/scripts/install.sh" compile
cd "$root"
if ! { cmake --preset static && cmake --build --preset static -j "$(nproc)"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "static.sh: the build failed (see above)" >&2
    exit 1
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
strip -o "$folder/lockkeeper.stripped" build-static/lockkeeper
mv "$folder/lockkeeper.stripped" "$folder/lockkeeper"
echo "$folder/lockkeeper"
