#!/bin/sh
# prove.sh [MINUTES] [OPTION ...]: real clients take locks by legacy code while workers, proxies and Redis are stopped and killed.
# A checker that knows nothing of the proxy reads what they wrote down, and the result is a table (docs/safety.md). 10 minutes by
# default. Options are those of tests/history/prove.py: --setting NAME, --idiom NAME, --seed N, --keep FOLDER.
# LOCKKEEPER=PROGRAM uses that program and builds nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
minutes=10
case ${1:-} in
[0-9]*)
    minutes=$1
    shift
    ;;
esac
"$root/scripts/install.sh" build test clients
if [ -z "${LOCKKEEPER:-}" ]; then
    LOCKKEEPER=$("$root/scripts/build.sh" "$root/build" RelWithDebInfo)
    export LOCKKEEPER
fi
exec /usr/bin/python3 -B "$root/tests/history/prove.py" --minutes "$minutes" "$@"
