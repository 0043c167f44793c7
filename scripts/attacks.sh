#!/bin/sh
# attacks.sh [--short] [--once] [--write] [--only PART-OF-A-NAME] ...: does to a Release build what attackers, broken
# clients and hostile nodes would, and prints what it costs other clients; docs/security.md has the table (--write). Five
# minutes, and more where much is tried again; --once tries nothing again, --short takes one or two minutes. The last line
# is 'N passed, N failed'. LOCKKEEPER=PROGRAM takes that program and builds nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=${LOCKKEEPER:-}
[ -n "$program" ] || program=$("$root/scripts/build.sh" "$root/build-bench" Release)
exec /usr/bin/python3 "$root/tests/attacks/attacks.py" --lockkeeper "$program" "$@"
