#!/bin/sh
# run.sh [--quick] [--direct] [--threads N] [NAME ...]: real client libraries and lock libraries through the proxy, as
# a table.
# run.sh contend [--quick] [OPTION ...]: workers of real clients contend for one lock on the default rule; what they
# reach on Redis and through the proxy, as a table (contend/run.py --help).
# run.sh pools [--quick] [--own] [--cluster] [--proxies 2] [--restart] [OPTION ...]: pools of real clients, of fresh families and
# with leases of a minute, lose nothing on the default rule; progress is on standard error (contend/pools.py --help).
# run.sh waits [OPTION ...]: the same clients poll every 100 ms, on Redis and under `wait 1s` (contend/waits.py --help).
#
# Installs what it needs (Debian's packages; npm's in a folder of its own under $LOCKKEEPER_CLIENTS or the temporary
# folder, never in the repository), builds the proxy in build/ unless LOCKKEEPER names one, and hands over to run.py.
# --quick takes the clients that need no npm and no compiler but gcc. NAME: only these rows (redis-py, ioredis, ...).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$root/tests/clients/run.py
case ${1:-} in
contend) program=$root/tests/clients/contend/run.py ;;
pools) program=$root/tests/clients/contend/pools.py ;;
waits) program=$root/tests/clients/contend/waits.py ;;
esac
[ "${program##*/contend/}" = "$program" ] || shift
quick=
for word in "$@"; do
    [ "$word" != --quick ] || quick=yes
done

say() {
    echo "run.sh: $*" >&2
}

say "installing what is missing"
if [ -n "$quick" ]; then
    "$root/scripts/install.sh" build test
else
    "$root/scripts/install.sh" build test clients
fi
if [ -z "${LOCKKEEPER:-}" ]; then
    say "building the proxy"
    LOCKKEEPER=$("$root/scripts/build.sh" "$root/build" RelWithDebInfo)
    export LOCKKEEPER
fi
exec /usr/bin/python3 -B "$program" "$@"
