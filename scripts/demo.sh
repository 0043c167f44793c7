#!/bin/sh
# demo.sh: runs legacy lock code directly on Redis and through the proxy, and prints the measured results (demo.py
# describes the runs). Takes about fifteen seconds after the build. LOCKKEEPER=PROGRAM uses that program and builds nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=${LOCKKEEPER:-}
[ -n "$program" ] || program=$("$root/scripts/build.sh" "$root/build" RelWithDebInfo)
exec python3 "$root/scripts/demo.py" "$program" "$@"
