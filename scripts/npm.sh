#!/bin/sh
# npm.sh [FOLDER]: builds the npm package `lockkeeper` with the static program (static.sh) for this machine's processor, puts it
# into FOLDER (default: build-static/) and prints its path. Needs npm. Publishes nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/build-static}
if ! command -v npm >/dev/null 2>&1; then
    echo "npm.sh: npm is missing: sudo apt install npm" >&2
    exit 1
fi
case $(uname -m) in
x86_64) cpu=x64 ;;
aarch64) cpu=arm64 ;;
*) cpu=$(uname -m) ;;
esac

package=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-npm.XXXXXX")
trap 'rm -rf "$package"' EXIT
mkdir -p "$folder" "$package/bin"
folder=$(cd "$folder" && pwd)
"$root/scripts/static.sh" "$package/bin" >/dev/null
version=$("$package/bin/lockkeeper" --version | sed 's/^lockkeeper //')
sed "s/@VERSION@/$version/; s/@CPU@/$cpu/" "$root/conf/npm/package.json.in" >"$package/package.json"
cp "$root/LICENSE" "$root/conf/npm/README.md" "$root/conf/npm/LIBRARIES.md" "$package/"
cd "$package"
npm pack --silent --offline --pack-destination "$folder" >/dev/null
echo "$folder/lockkeeper-$version.tgz"
