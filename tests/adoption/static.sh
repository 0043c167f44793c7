#!/usr/bin/env bash
# static.sh: checks that the static program serves in an empty root, and that the npm package, installed from its file into an
# empty project, serves too. Needs root, redis-server and npm; the last line is 'N passed, N failed'.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-static-test.XXXXXX")
. "$root/tests/adoption/checks.sh"
started=()

finish() {
    local id
    for id in ${started[@]+"${started[@]}"}; do
        kill "$id" 2>/dev/null && wait "$id" 2>/dev/null
    done
    counted
}

free_port() {
    /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Waits until something answers PING at a port.
answers() {
    local deadline=$((SECONDS + 30))
    until [ "$(redis-cli -p "$1" PING 2>/dev/null)" = PONG ]; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.05
    done
}

# A lock through the proxy at a port: taken, and known.
locks() {
    [ "$(redis-cli -p "$1" SET "lock:$2" 1 NX)" = OK ] && redis-cli -p "$1" PROXY LOCKS "lock:$2" >"$work/locks" && grep -q "lock:$2" "$work/locks"
}

is_static() {
    ! readelf -d "$1" | grep -q NEEDED && ! readelf -l "$1" | grep -q INTERP
}

redis=$(free_port)
redis-server --port "$redis" --save "" --dir "$work" >"$work/redis.log" 2>&1 &
started+=($!)
check "Redis does not start" answers "$redis" || finish

# ---- an empty root ----
mkdir -p "$work/root"
check "the static build fails" "$root/scripts/static.sh" "$work/root" || finish
check "it wants libraries" is_static "$work/root/lockkeeper"
port=$(free_port)
admin=$(free_port)
env -i /usr/sbin/chroot "$work/root" /lockkeeper --port "$port" --bind 127.0.0.1 --admin-port "$admin" --upstream standalone \
    "127.0.0.1:$redis" >"$work/empty.log" 2>&1 &
started+=($!)
check "it does not serve in an empty root" answers "$port" || finish
check "no lock in an empty root" locks "$port" empty
page() { /usr/bin/python3 -c "import sys, urllib.request as u
text = u.urlopen('http://127.0.0.1:$admin/metrics', timeout=20).read().decode()
sys.exit('lockkeeper_' not in text)"; }
check "no page in an empty root" page
listens() { env -i /usr/sbin/chroot "$work/root" /lockkeeper --advise 1s --upstream standalone "127.0.0.1:$redis" >"$work/advice" && grep -q '^# ' "$work/advice"; }
check "--advise does not work in an empty root" listens
names() { env -i /usr/sbin/chroot "$work/root" /lockkeeper --advise 1s --upstream standalone "localhost:$redis" >"$work/advice" && grep -q '^# ' "$work/advice"; }
mkdir "$work/root/etc"
echo "127.0.0.1 localhost" >"$work/root/etc/hosts"
check "names of /etc/hosts are not known" names

# ---- npm ----
npm_package() { "$root/scripts/npm.sh" "$work"; }
check "the npm package can't be made" npm_package || finish
package=$(tail -n 1 "$work/out")
mkdir "$work/project"
npm_install() { cd "$work/project" && npm init -y && npm install --offline --no-audit --no-fund "$package"; }
check "the npm package can't be installed without a network" npm_install || finish
inside() { tar -tzf "$package" | sort | tr '\n' ' ' | grep -qx \
    'package/LIBRARIES.md package/LICENSE package/README.md package/bin/lockkeeper package/package.json '; }
check "the npm package has other files" inside
port=$(free_port)
cd "$work/project" || finish
stopped() { for _ in $(seq 300); do grep -q Stopped "$work/npx.log" && return; sleep 0.1; done; return 1; }
# npx_ends SIGNAL -: npx lockkeeper, in a process group of its own, serves until the signal; with "-", it goes to the group.
npx_ends() {
    setsid npx --offline lockkeeper --port "$port" --upstream standalone "127.0.0.1:$redis" >"$work/npx.log" 2>&1 &
    npx=$!
    check "npx lockkeeper does not serve" answers "$port"
    check "no lock by npx lockkeeper" locks "$port" "npm-$1"
    kill "-$1" -- "$2$npx"
    wait "$npx" 2>/dev/null
    check "npx lockkeeper does not stop by SIG$1" stopped
}
npx_ends INT - # as Ctrl-C does
npx_ends TERM ""
finish
