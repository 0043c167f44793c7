#!/usr/bin/env bash
# newest_servers.sh [FOLDER]: downloads the newest servers that Debian has, Valkey of sid and Redis of experimental, with their
# libraries, into FOLDER (default: build-servers). Nothing is installed. Prints the path of each server, for REDIS_SERVER:
#
#   REDIS_SERVER=$PWD/build-servers/bin/valkey-server scripts/test.sh test_compare
#
# apt checks the signatures. Needs apt, dpkg, and Debian's archive keys.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(realpath -m "${1:-$root/build-servers}")
# The mirror of this machine's packages has all suites of Debian.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' |
    awk '$3 == "main" && $2 !~ /-security|-updates|-backports/ && !n++ { print $1 }')
[ -n "$mirror" ] || { echo "newest_servers.sh: apt's sources name no mirror with Debian's packages" >&2; exit 1; }
keys=/usr/share/keyrings/debian-archive-keyring.gpg
machine=$(dpkg --print-architecture)

mkdir -p "$folder"/{bin,files,none,lists/partial,archives/partial}
: >"$folder/status"
for suite in sid experimental; do
    echo "deb [signed-by=$keys] $mirror $suite main"
done >"$folder/sources.list"

# apt with its whole state in the folder, as if nothing were installed.
own_apt() {
    apt-get -q -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts="$folder/none" -o Dir::Etc::Preferences="$folder/none/none" \
        -o Dir::Etc::PreferencesParts="$folder/none" -o Dir::State::Lists="$folder/lists" -o Dir::State::Status="$folder/status" \
        -o Dir::Cache::Archives="$folder/archives" -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache= \
        -o APT::Architecture="$machine" -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
}
own_apt update >"$folder/log"
own_apt install --yes --download-only --no-install-recommends -t sid valkey-server >>"$folder/log"
own_apt install --yes --download-only --no-install-recommends -t experimental redis-server >>"$folder/log"
for package in "$folder"/archives/*.deb; do
    dpkg -x "$package" "$folder/files"
done

# A server runs with its own libraries, by its own loader.
libraries=$(dirname "$(find "$folder/files/usr/lib" -name 'libc.so.6' | head -n 1)")
loader=$(find "$folder/files/usr/lib" "$folder/files/usr/lib64" -name 'ld-linux*.so.*' 2>/dev/null | head -n 1)
for server in valkey-server redis-server; do
    program=$(readlink -f "$folder/files/usr/bin/$server")
    printf '#!/bin/sh\nexec %q --argv0 "$0" --library-path %q %q "$@"\n' "$loader" "$libraries" "$program" >"$folder/bin/$server"
    chmod +x "$folder/bin/$server"
    echo "$folder/bin/$server: $("$folder/bin/$server" --version)"
done
