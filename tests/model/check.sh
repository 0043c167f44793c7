#!/bin/sh
# check.sh: checks lease.pml over all its interleavings, then shows that each rule in it matters: with the rule taken
# out, an assertion has to fail. Needs spin and a C compiler; takes about a minute.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-model.XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# verify FILE: 'errors: 0' or 'errors: 1', after a complete search.
verify() {
    spin -a "$1" >spin.log 2>&1 || { cat spin.log >&2; exit 1; }
    cc -O2 -w -DSAFETY -DCOLLAPSE -o pan pan.c
    timeout 300 ./pan -m500000 >pan.log 2>&1 || { cat pan.log >&2; exit 1; }
    ! grep -q "max search depth too small" pan.log || { echo "the search was cut short" >&2; exit 1; }
    grep -o 'errors: [0-9]*' pan.log
}

passed=0
failed=0
expect() { # NAME RESULT FILE
    got=$(verify "$3")
    if [ "$got" = "$2" ]; then
        echo "ok   $1"
        passed=$((passed + 1))
    else
        echo "FAIL $1: $got, expected $2"
        failed=$((failed + 1))
    fi
}

expect "the protocol keeps S1, S2, S4, S5 and L1" "errors: 0" "$here/lease.pml"

# without NAME SED-EXPRESSION: the model with one rule taken out.
without() {
    sed "$2" "$here/lease.pml" >broken.pml
    if cmp -s "$here/lease.pml" broken.pml; then
        echo "FAIL $1: the expression changes nothing"
        failed=$((failed + 1))
        return
    fi
    expect "without $1 it does not" "errors: 1" broken.pml
}

without "the token in a release" 's/:: live != 0 \&\& live == claim ->$/:: live != 0 ->/'
without "the token in a renewal" 's/:: live != 0 \&\& live == claim -> left = LEASE; overdue = 0/:: live != 0 -> left = LEASE/'
without "a growing fence" 's/left = LEASE; fence++;/left = LEASE;/'
without "the claim of a granted attempt alone" 's/:: else -> result = 0$/:: else -> result = 1/'

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
