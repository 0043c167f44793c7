#!/bin/sh
# run.sh [OPTION ...] [UNIT ...]: Redis's own test suite through the proxy, compared test by
# test with a run straight at the same kind of server. Exit status 1 if a test passes directly but not through the
# proxy, and expected.txt does not say why.
#
# The suite is Redis's and is not kept here: it comes with the source package of Debian's redis-server, fetched with
# package lists of its own (the machine's apt configuration stays as it is) into $LOCKKEEPER_REDIS_SUITE, or a folder
# beside the temporary ones, and is used again the next time. Then suite.py takes over, and has the options.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
home=${LOCKKEEPER_REDIS_SUITE:-${TMPDIR:-/tmp}/lockkeeper-redis-suite-$(id -u)}

"$root/scripts/install.sh" build test suite
if [ -z "${LOCKKEEPER:-}" ]; then
    LOCKKEEPER=$("$root/scripts/build.sh" "$root/build" RelWithDebInfo)
    export LOCKKEEPER
fi

version=$(redis-server --version | sed -E 's/.* v=([0-9.]+) .*/\1/')
suite=$home/redis-$version
if [ ! -x "$suite/runtest" ]; then
    mkdir -p "$home/lists/partial" "$home/cache"
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    # From where this machine has its packages.
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" | head -n 1)
    for part in "$release" "$release-updates"; do
        echo "deb-src [signed-by=$keys] $archive $part main"
    done >"$home/sources.list"
    if ! (
        cd "$home"
        set -- -q -o "Dir::Etc::SourceList=$home/sources.list" -o Dir::Etc::SourceParts=/dev/null \
            -o "Dir::State::Lists=$home/lists" -o "Dir::Cache=$home/cache" -o APT::Sandbox::User=root
        apt-get "$@" update && apt-get "$@" source redis
    ) >"$home/log" 2>&1; then
        tail -n 20 "$home/log" >&2
        echo "run.sh: could not fetch Redis's source package" >&2
        exit 1
    fi
    [ -x "$suite/runtest" ] || {
        echo "run.sh: Debian's source package is not of version $version, which is what redis-server here is" >&2
        exit 1
    }
fi
# The suite calls these from its own folder.
for tool in redis-cli redis-benchmark redis-server; do
    ln -sf "$(command -v "$tool")" "$suite/src/$tool"
done
exec /usr/bin/python3 -B "$root/tests/redis-suite/suite.py" --suite "$suite" "$@"
