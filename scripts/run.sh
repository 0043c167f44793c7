#!/bin/sh
# run.sh [lockkeeper arguments ...]: from a fresh checkout to a running proxy. Installs what the build needs, builds in build/,
# and executes build/lockkeeper. Paths in the arguments are relative to the caller's folder. Progress goes to standard error. If
# an upstream is named, no Redis is needed on this machine.
#
#   ./scripts/run.sh                                              a private Redis of its own, for trying things out
#   ./scripts/run.sh --quorum                                     the same with three private witnesses, and locks under quorum
#   ./scripts/run.sh --upstream standalone 127.0.0.1:6379
#   ./scripts/run.sh --upstream cluster 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002
#   ./scripts/run.sh conf/standalone.conf
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

# The last value of a directive in the arguments, or else in the file; $2 if neither has one.
value_of() {
    wanted=$1
    found=$2
    if [ -n "$file" ] && [ -r "$file" ]; then
        in_file=$(sed -n "s/^[[:space:]]*$wanted[[:space:]]\{1,\}//Ip" "$file" | tail -n 1)
        [ -z "$in_file" ] || found=$in_file
    fi
    at=
    shift 2
    for word in "$@"; do
        case $at$word in
        "--$wanted") at=here found= ;;
        --*) at= ;;
        here--*) at= ;;
        here*) found="$found${found:+ }$word" ;;
        esac
    done
    echo "$found"
}

# Whether a process listens on the port, at all of the machine's addresses or its loopback.
is_taken() {
    hex=$(printf '%04X' "$1")
    addresses="00000000|00000000000000000000000000000000"
    case " $2 " in
    *" 127.0.0.1 "* | *" -127.0.0.1 "* | *" * "*) addresses="$addresses|0100007F" ;;
    esac
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -Eq "^ *[0-9]+: ($addresses):$hex [0-9A-F:]+ 0A "
}

if [ "${1-}" = --quorum ]; then
    shift
    set -- --witness embedded --lock 'lock:*' quorum yes "$@"
fi
file=
case ${1-} in
"" | --*) ;;
*) file=$1 ;;
esac
case " $* " in
*" --help "* | *" --version "* | *" --test-conf "* | *" --advise "* | *" --advise-from "*) serves= ;;
*) serves=yes ;;
esac

purpose=build
if [ "$(value_of upstream embedded "$@")" != embedded ] || [ "${1-}" = --advise-from ]; then
    purpose=compile
fi
port=$(value_of port 6380 "$@")
case $port in
*[!0-9]* | "" | 0) ;;
*)
    if [ -n "$serves" ] && [ "$(value_of reuse-port no "$@")" != yes ] && is_taken "$port" "$(value_of bind "127.0.0.1 -::1" "$@")"; then
        echo "lockkeeper: port $port is taken on this machine (perhaps by a proxy that runs already); another one is named by" >&2
        echo "    $0 ${*:+$* }--port $((port + 1))" >&2
        exit 1
    fi
    ;;
esac

program=$(LOCKKEEPER_PROGRESS=yes "$root/scripts/build.sh" "$root/build" RelWithDebInfo "$purpose")
exec "$program" "$@"
