#!/bin/sh
# attacks.sh [--short] [--once] [--write] [--only PART-OF-A-NAME] ...: attacks a Release build as attackers, broken
# clients and hostile nodes would, and prints the effect on other clients; --write puts the table into docs/security.md.
# It takes five minutes, or more if steps have to be repeated; --once repeats nothing, --short takes one or two minutes.
# The last line is 'N passed, N failed'. LOCKKEEPER=PROGRAM uses that program and builds nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=${LOCKKEEPER:-}
[ -n "$program" ] || program=$("$root/scripts/build.sh" "$root/build-bench" Release)
exec /usr/bin/python3 "$root/tests/attacks/attacks.py" --lockkeeper "$program" "$@"
