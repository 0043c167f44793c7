#!/bin/sh
# run.sh [lockkeeper arguments ...]: from a fresh checkout to a running proxy. Installs what the build needs, builds
# in build/, and becomes build/lockkeeper. Paths among the arguments are relative to the caller's folder.
#
#   ./scripts/run.sh                                              a private Redis of its own, for trying things out
#   ./scripts/run.sh --upstream standalone 127.0.0.1:6379
#   ./scripts/run.sh --upstream cluster 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002
#   ./scripts/run.sh conf/standalone.conf
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=$("$root/scripts/build.sh" "$root/build" RelWithDebInfo)
exec "$program" "$@"
