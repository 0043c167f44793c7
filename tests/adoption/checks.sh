# checks.sh: counting functions for the scripts of this folder. They source it, after they have set $work to a folder of
# their own.
passed=0
failed=0

# check WHAT COMMAND ...: passes if the command succeeds. Its output is in $work/out.
check() {
    local what=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        passed=$((passed + 1))
    else
        echo "$(basename "$0"): $what" >&2
        tail -n 20 "$work/out" "$work"/*.log >&2
        failed=$((failed + 1))
        return 1
    fi
}

# Ends the script with the last line that test.sh adds up.
counted() {
    rm -rf "$work"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}
