#!/bin/sh
# package.sh [FOLDER]: installs what the build needs, builds the Debian package, puts it into FOLDER (default: build-package/)
# and prints its path.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build-package
folder=${1:-$build}
log=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-package.XXXXXX")
trap 'rm -f "$log"' EXIT

"$root/scripts/install.sh" package
"$root/scripts/build.sh" "$build" Release >/dev/null
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if ! { cmake --build "$build" -j "$(nproc)" && cd "$build" && cpack -G DEB -B "$folder"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "package.sh: the package could not be built" >&2
    exit 1
fi
sed -n 's/^CPack: - package: \(.*\) generated\.$/\1/p' "$log"
