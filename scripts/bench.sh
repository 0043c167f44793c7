#!/bin/sh
# bench.sh [--quick] [--only speed|instructions|syscalls|memory|locks|verbs|contended|pairs|quorum|contention|fenced|latency|cores|idle|threads]
# ... [--json FILE]: compares lockkeeper with Redis itself, nutcracker and haproxy, as Markdown tables (tests/bench/README.md
# describes the measurements). It takes about a quarter of an hour; --quick takes three minutes. LOCKKEEPER=PROGRAM measures
# that program and builds nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/build-bench

"$root/scripts/install.sh" bench >/dev/null || echo "bench: not everything could be installed; going on" >&2
program=${LOCKKEEPER:-}
if [ -z "$program" ]; then
    program=$("$root/scripts/build.sh" "$folder" Release) || echo "bench: lockkeeper was not built; going on" >&2
fi
mkdir -p "$folder"
for part in load bare contend; do
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -o "$folder/$part" "$root/tests/bench/$part.c"
done
exec python3 "$root/tests/bench/bench.py" --lockkeeper "$program" --load "$folder/load" \
    --bare "$folder/bare" --contend "$folder/contend" "$@"
