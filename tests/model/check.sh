#!/bin/sh
# check.sh: checks the models beside it over all their interleavings, then shows that each rule in them matters: with
# the rule taken out, an assertion has to fail. Needs spin and a C compiler, and up to 1.2 GB; takes a minute at most on two
# processors, of which each has a model at a time. check.sh --one FOLDER checks the model in that folder alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# verify FILE LEVEL: 'errors: 0' or 'errors: 1', after a complete search. The compiler optimises at this level.
verify() {
    spin -a "$1" >spin.log 2>&1 || { cat spin.log; return; }
    cc "$2" -w -DSAFETY -o pan pan.c
    timeout 300 ./pan -m500000 >pan.log 2>&1 || { cat pan.log; return; }
    ! grep -q "max search depth too small" pan.log || { echo "the search was cut short"; return; }
    grep -o 'errors: [0-9]*' pan.log
}

if [ "${1:-}" = --one ]; then
    cd "$2"
    level=-O2
    ! grep -q 'errors: 1' expected || level=-O0 # the search ends at the first error, sooner than -O2 does
    verify model.pml "$level" >got 2>&1
    exit 0
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-model.XXXXXX")
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# Each command of the table of lock commands is one of the model's steps.
root=$here/../..
lacks=
for command in $(sed -n 's/^    ROW(\([A-Z_]*\),.*/\1/p' "$root/proxy/session/locks/lock_command.c"); do
    sed '/^#define/,$d' "$here/lease.pml" | grep -qw -e "$command" || lacks="$lacks $command"
done
if [ -z "$lacks" ]; then
    echo "ok   each lock command is a step of the model"
    passed=$((passed + 1))
else
    echo "FAIL lease.pml lacks$lacks"
    failed=$((failed + 1))
fi

count=100
expect() { # NAME RESULT FILE: to be checked
    count=$((count + 1))
    mkdir "$folder/$count"
    cp "$3" "$folder/$count/model.pml"
    echo "$1" >"$folder/$count/name"
    echo "$2" >"$folder/$count/expected"
}

expect "the protocol keeps S1, S2, S4, S5 and L1" "errors: 0" "$here/lease.pml"

expect "adoption keeps S1, S3, S5, and what it adopts has an end" "errors: 0" "$here/adopt.pml"

expect "a lock under quorum keeps S8, whatever Redis and one witness forget" "errors: 0" "$here/quorum.pml"

# A change of the witnesses, without a failover and a witness that forgets, which would take minutes.
still='s/^#define FAILOVERS 1/#define FAILOVERS 0/'
calm="s/^#define AMNESIAS 1/#define AMNESIAS 0/; $still"
changing="s/^#define CHANGE false/#define CHANGE true/; $calm"
sed "$changing" "$here/quorum.pml" >"$folder/changing.pml"
expect "a lock under quorum keeps S8 while a witness is replaced at one proxy after the other" "errors: 0" "$folder/changing.pml"

expect "attempts that wait keep their order, and take a lock that is free" "errors: 0" "$here/waits.pml"

expect "fences grow, and no earlier lease writes after a later one" "errors: 0" "$here/fences.pml"

# without MODEL NAME SED-EXPRESSION: the model with one rule taken out.
without() {
    sed "$3" "$here/$1" >"$folder/broken.pml"
    if cmp -s "$here/$1" "$folder/broken.pml"; then
        echo "FAIL $2: the expression changes nothing"
        failed=$((failed + 1))
        return
    fi
    expect "without $2 it does not" "errors: 1" "$folder/broken.pml"
}

without lease.pml "the token in a release" 's/:: live != 0 \&\& live == claim ->$/:: live != 0 ->/'
without lease.pml "the token in a renewal" 's/:: live != 0 \&\& live == claim -> left = LEASE; overdue = 0/:: live != 0 -> left = LEASE/'
without lease.pml "a growing fence" 's/left = LEASE; fence++;/left = LEASE;/'
without lease.pml "the claim of a granted attempt alone" 's/:: else -> result = 0$/:: else -> result = 1/'

without adopt.pml "the step before a script" 's/:: together \&\& vacant == attempt \&\& value != 0/:: together \&\& value != 0/'
without adopt.pml "the step before it, alone" 's/:: together \&\& vacant == attempt/:: vacant == attempt/; s/vacant = (together -> 0 : vacant);//; s/LIVE \&\& (!together || /LIVE \&\& (/'
without adopt.pml "the transaction around both" 's/^#define TOGETHER atomic/#define TOGETHER/'
without adopt.pml "its being asked before the lease that was known" 's/LIVE \&\& (!together || vacant != attempt || token == attempt)/LIVE/'
without adopt.pml "the value in the guard record" 's/ \&\& held == value)/)/'
without adopt.pml "a lease for what has no expiry" 's/:: left == NEVER -> left = LEASE/:: false -> skip/'
without adopt.pml "the token in a release of what was adopted" 's/LIVE \&\& (token == claim || (claim == 0/LIVE \&\& (claim != 0 || (claim == 0/'
without adopt.pml "the token in its renewal" 's/:: LIVE \&\& token == claim ->$/:: LIVE ->/'
without adopt.pml "the name in what another proxy releases" 's/claim == 0 \&\& identity == w \&\&/claim == 0 \&\&/'

# A rule that matters without failovers, or without a witness that forgets, is found missing sooner there.
without quorum.pml "the quarantine of a witness that has forgotten" "$still; s/^#define QUARANTINE true/#define QUARANTINE false/"
without quorum.pml "a majority" "$calm; s/^#define MAJORITY 2/#define MAJORITY 1/"
without quorum.pml "the difference of what was released and what has lapsed" "$calm; s/^#define LAPSE skip /#define LAPSE noted = lock /"
without quorum.pml "the question whether a lease was released" "$calm; s/ \&\& named == noted ->/ ->/"
without quorum.pml "an end to the time of an attempt" "$calm; s/ \&\& !late\[me\] ->/ ->/"
without quorum.pml "a promise that another token of the lease leaves as long as it was" "$calm; s/^#define LEASE(token) .*/#define LEASE(token) token/"

without quorum.pml "a time in which a newcomer does not vote" "$changing; s/IT != NEWCOMER || votes_now -> votes++/votes++/"
without quorum.pml "an end of the leases from before, behind the last proxy's change" \
    "$changing; s/^#define SETTLED .*/#define SETTLED (changed[0] \&\& changed[1])/"

without waits.pml "a look each 100 ms" 's/-> NEVER : LOOK)/-> NEVER : NEVER)/'
without waits.pml "a look that the next session keeps" 's/-> NEVER : look\[p\])/-> NEVER : NEVER)/'
without waits.pml "the pause for a longer wait elsewhere" 's/^#define YIELDS(p) .*/#define YIELDS(p) false/'
without waits.pml "the proxy's name in a message" 's/ turn\[oldest\] = true$/&; message[0] = !stopped[0]; message[1] = !stopped[1]/'
without waits.pml "the token in what is given back" 's/:: lock == s + 1 ->$/:: lock != 0 ->/'

without fences.pml "the watermark above what proxies' clocks say" 's/clock > watermark);/true);/'
without fences.pml "the watermark in a script's fence" 's/^        above(watermark);$//'
without fences.pml "a watermark for a fence that is ahead of the node's clock" 's/^        watermark = (next > now .*//'
without fences.pml "the question behind a hash that had the short form" 's/record == HASH \&\& now > fence/record != NONE \&\& now > fence/'
without fences.pml "a bound on how far a proxy's clock is behind" 's/clock > behind ->/true ->/'
without fences.pml "the mark beside the data" 's/ \&\& mark <= mine\[a\] ->/ ->/'

printf '%s\n' "$folder"/[0-9]* | xargs -n 1 -P "$(nproc)" sh "$here/check.sh" --one
for one in "$folder"/[0-9]*; do
    if cmp -s "$one/got" "$one/expected"; then
        echo "ok   $(cat "$one/name")"
        passed=$((passed + 1))
    else
        echo "FAIL $(cat "$one/name"): $(cat "$one/got"), expected $(cat "$one/expected")"
        failed=$((failed + 1))
    fi
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
