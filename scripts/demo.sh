#!/bin/sh
# demo.sh: what legacy lock code does directly on Redis and through the proxy, measured here and now (demo.py says
# how). Takes about ten seconds after the build. LOCKKEEPER=PROGRAM uses that program and builds nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=${LOCKKEEPER:-}
[ -n "$program" ] || program=$("$root/scripts/build.sh" "$root/build" RelWithDebInfo)
exec python3 "$root/scripts/demo.py" "$program" "$@"
