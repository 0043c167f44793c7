#!/usr/bin/env bash
# newcomer.sh [--package]: the first ten minutes of a new user. A copy of the sources, run.sh, redis-cli, workers with unsafe
# locks in PHP and node, PROXY ADVISE, the rules that it names, workers that are corrected, and no incident any more. --package:
# the Debian package is built, installed and serves; not for a machine that runs lockkeeper. Installs what the workers need. The
# last line is 'N passed, N failed'; it fails after ten minutes, too.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-newcomer.XXXXXX")
. "$root/tests/adoption/checks.sh"
minutes=10
rounds=60
proxy=

finish() {
    [ -z "$proxy" ] || { kill "$proxy" 2>/dev/null && wait "$proxy" 2>/dev/null; }
    echo "newcomer.sh: $SECONDS s"
    counted
}

redis() {
    redis-cli -p "$port" "$@"
}

answers() {
    until [ "$(redis PING 2>/dev/null)" = PONG ]; do
        [ "$SECONDS" -lt $((minutes * 60)) ] && kill -0 "$proxy" 2>/dev/null || return 1
        sleep 0.2
    done
}

# Two workers of a kind at once; prints how often two were inside.
overlaps() {
    local program=$1 script=$2 how=$3 first
    "$program" "$root/tests/adoption/$script" "$port" "$rounds" "$how" >"$work/first" &
    first=$!
    "$program" "$root/tests/adoption/$script" "$port" "$rounds" "$how" >"$work/second" || return 1
    wait "$first" || return 1
    echo $(($(cat "$work/first") + $(cat "$work/second")))
}

# All four; leaves what was counted in $together.
work_all() {
    local node php
    node=$(overlaps node worker.js "$1") && php=$(overlaps php worker.php "$1") && together="$node $php"
}

incidents() {
    redis PROXY INFO | tr -d '\r' | awk -F: '/^incidents_/ { n += $2 } END { print n + 0 }'
}

SECONDS=0
"$root/scripts/install.sh" newcomer || {
    echo "newcomer.sh: node, PHP and phpredis can't be installed" >&2
    failed=1
    finish
}
SECONDS=0

# ---- from the sources to a proxy ----
if [ -e "$root/.git" ] && command -v git >/dev/null; then
    clone() { git clone -q "$root" "$work/lockkeeper"; }
else
    clone() { mkdir "$work/lockkeeper" && tar -C "$root" --exclude='./build*' --exclude=./.git --exclude='*/node_modules' -cf - . | tar -C "$work/lockkeeper" -xf -; }
fi
check "the sources can't be copied" clone || finish
cd "$work/lockkeeper" || finish
port=$((20000 + RANDOM % 12000))
printf 'port %s\nlock lock:*\n' "$port" >"$work/lockkeeper.conf"
./scripts/run.sh "$work/lockkeeper.conf" >"$work/run.log" 2>&1 &
proxy=$!
check "run.sh has brought no proxy up" answers || finish
echo "newcomer.sh: a proxy after $SECONDS s"

# ---- README's first session ----
session() {
    [ "$(redis SETNX lock:report 1)" = 1 ] && [ "$(redis SETNX lock:report 1)" = 0 ] && [ "$(redis TTL lock:report)" -gt 0 ] &&
        redis PROXY LOCKS >"$work/locks.log" && grep -q lock:report "$work/locks.log"
}
check "README's first session goes otherwise" session

# ---- workers with locks that match no rule ----
together=
check "the workers do not run" work_all unsafe || finish
echo "newcomer.sh: two inside at once without a rule, node and PHP: $together"
harmed() { [ "${together% *}" -gt 0 ] && [ "${together#* }" -gt 0 ]; }
check "nobody was harmed by locks that no rule has" harmed
redis PROXY ADVISE >"$work/advice.log"
check "PROXY ADVISE does not say that locks have no rule" grep -q '2 key patterns look like locks and match no rule' "$work/advice.log"
check "PROXY ADVISE does not say that losers delete" grep -q 'losers delete: ' "$work/advice.log"
sed -n 's/.* events: \(lock .*\)/\1/p' "$work/advice.log" >"$work/rules"
two() { [ "$(wc -l <"$work/rules")" -eq 2 ] && grep -q '^lock shop:report:lock' "$work/rules" && grep -q '^lock laravel_' "$work/rules"; }
check "PROXY ADVISE names other rules than one for each lock" two

# ---- with the rules that it names ----
cat "$work/rules" >>"$work/lockkeeper.conf"
check "the rules can't be read" redis PROXY RELOAD
before=$(incidents)
check "the workers do not run under the rules" work_all unsafe
safe() { [ "$together" = "0 0" ]; }
check "two were inside at once under the rules" safe
after=$(incidents)
# If the rules make attempts wait, no attempt is lost, and no worker deletes another's lock; SETNX still has no expiry.
noted() { redis PROXY INCIDENTS SUMMARY >"$work/incidents.log" && grep -q "$1" "$work/incidents.log"; }
seen() { [ "$after" -gt "$before" ] && noted no_expiry && { grep -q ' wait ' "$work/rules" || noted foreign_release; }; }
check "the proxy has not noticed what the workers do" seen
echo "newcomer.sh: two inside at once under the rules: $together; $((after - before)) incidents"

# ---- with workers that are corrected ----
check "the corrected workers do not run" work_all corrected
now=$(incidents)
none() { [ "$now" -eq "$after" ] && [ "$together" = "0 0" ]; }
check "$((now - after)) incidents of corrected workers, and $together inside at once" none
kill "$proxy" 2>/dev/null && wait "$proxy" 2>/dev/null
proxy=
in_time() { [ "$SECONDS" -lt $((minutes * 60)) ]; }
check "it took $SECONDS s" in_time

# ---- the package ----
if [ "${1-}" = --package ]; then
    package() { "$root/scripts/install.sh" package && ./scripts/package.sh "$work"; }
    check "the package can't be built" package || finish
    deb=$(grep '\.deb$' "$work/out" | tail -n 1)
    check "the package can't be installed" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$deb" || finish
    lockkeeper /etc/lockkeeper/lockkeeper.conf --port "$port" --upstream embedded --logfile "$work/package.log" >"$work/start.log" 2>&1 &
    proxy=$!
    check "the installed program does not serve" answers
    session2() { [ "$(redis SETNX lock:package 1)" = 1 ] && [ "$(redis DEL lock:other)" = 0 ]; }
    check "the installed program has no locks" session2
    check "its manual is not there" test -s /usr/share/man/man1/lockkeeper.1.gz -o ! -d /usr/share/man/man1
fi
finish
