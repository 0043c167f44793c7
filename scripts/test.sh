#!/usr/bin/env bash
# test.sh [all|PART|NAME] ...: installs what the tests need, builds everything in build-test/ with warnings as errors under
# AddressSanitizer and UndefinedBehaviorSanitizer, and runs tests.
#
#   test.sh          the short run, in less than five minutes: `unit`, `sim` and `check`, where tests with the label `long` have
#                    their short form or none (tests/sim/CMakeLists.txt), and of `integration` what tests/integration/core.txt names
#   test.sh all      all parts before `servers`, in full
#   test.sh PART     a part below, in full; the parts from `servers` on have separate builds
#   test.sh NAME     one thing: the tests of that name in tests/unit/, tests/sim/ and tests/integration/ (test_owners)
#
# The parts:
#
#   unit         the parts of the program, each linked with nothing but what it may use (cmocka)
#   sim          the lock engine through millions of interleavings on virtual time, from seeds
#   model        the protocols of leases, quorum, waiting and fences over all their interleavings (spin)
#   check        layout and other rules of the source (scripts/check.sh)
#   fuzz         a short run of the fuzzers over the kept corpus (scripts/fuzz.sh)
#   integration  the proxy with real Redis servers and a real cluster (pytest)
#   bench        a Release build: instructions and system calls a request are within their bounds (tests/bench/check.py),
#                and so is its memory, where a sanitizer has its own
#   servers      the unit tests, and the integration tests before each server that this release of Debian has (redis-server,
#                valkey-server; or those that LOCKKEEPER_SERVERS names), without sanitizers: what scripts/other_debian.sh does
#                on the other release
#   attacks      what attackers can do to other clients, in short (scripts/attacks.sh)
#   newcomer     what a new user does in the first ten minutes (tests/adoption/newcomer.sh), before anything is installed for other
#                parts; with LOCKKEEPER_FRESH set, on a system that may be changed, the Debian package is installed too
#   static       the static program in an empty root, and the npm package that carries it (tests/adoption/static.sh)
#   threads      the integration tests with four threads under ThreadSanitizer, in half an hour or so
#   races        a few files of them, in some minutes
#   valgrind     the integration tests under valgrind, for hours: tests with little patience may fail for want of time,
#                so it is its reports that count (lines of the log that begin with ==)
#
# The last line is 'N passed, N failed' over all that ran; the exit status is 0 if nothing failed. LOCKKEEPER_SEED=N repeats the
# random parts of the integration tests. Arguments for pytest go into PYTEST_ADDOPTS.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build-test
jobs=$(nproc)
patience=1500
python=/usr/bin/python3
passed=0
failed=0
unsteady=()
unsteady_most=3
all=(unit sim model check fuzz integration bench)
short=()
log=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-test.XXXXXX")
trap 'rm -f "$log" "$log.xml"' EXIT

# has FOLDER NAME: there is a test of that name in tests/FOLDER.
has() {
    [ -e "$root/tests/$1/$2.c" ] || [ -e "$root/tests/$1/$2.py" ]
}

parts=()
builds=
for part in "$@"; do
    case $part in
    --help | -h)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    all)
        parts+=("${all[@]}")
        builds=yes
        continue
        ;;
    unit | sim | integration) builds=yes ;;
    model | check | fuzz | bench | servers | attacks | newcomer | static | threads | races | valgrind) ;;
    *)
        builds=yes
        if ! has unit "$part" && ! has sim "$part" && ! has integration "$part"; then
            echo "test.sh: '$part': expected all, unit, sim, model, check, fuzz, integration, bench, servers, attacks, newcomer," \
                "static, threads, races, valgrind, or the name of a test" >&2
            exit 1
        fi
        ;;
    esac
    parts+=("$part")
done
if [ ${#parts[@]} -eq 0 ]; then
    parts=(check unit sim integration)
    short=(-C short -LE long)
    builds=yes
fi

finish() {
    [ ${#unsteady[@]} -eq 0 ] || printf 'unsteady, passed by itself alone: %s\n' "${unsteady[@]}"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

# step NAME SECONDS COMMAND ...: runs a command that counts as one test.
step() {
    local name=$1 seconds=$2
    shift 2
    if timeout "$seconds" "$@"; then
        passed=$((passed + 1))
    else
        echo "test.sh: $name failed" >&2
        failed=$((failed + 1))
        return 1
    fi
}

# need NAME SECONDS COMMAND ...: runs a command that must succeed but does not count as a test. Prints its start, and the
# progress of a build.
need() {
    local name=$1 seconds=$2 job now shown=
    shift 2
    echo "test.sh: $name ..."
    timeout "$seconds" "$@" >"$log" 2>&1 &
    job=$!
    while kill -0 "$job" 2>/dev/null; do
        sleep 0.2
        now=$(sed -nE 's/^\[ *([0-9]+)\/([0-9]+)\].*/\1 \2/p; s/^\[ *([0-9]+)%\].*/\1 100/p' "$log" | tail -n 1 |
            awk '{ print int(10 * $1 / $2) * 10 }')
        [ "${now:-0}" = "${shown:-0}" ] || echo "test.sh: $name ... $now%"
        shown=$now
    done
    wait "$job" && return
    tail -n 60 "$log" >&2
    echo "test.sh: $name failed" >&2
    failed=$((failed + 1))
    finish
}

# Installs what is missing, and prints it.
install_missing() {
    local missing
    missing=$("$root/scripts/install.sh" --missing "$@")
    [ -n "$missing" ] || return 0
    echo "test.sh: this is missing, and by hand it would be: sudo apt install $missing"
    need "installing (no network, if it takes long?)" 900 "$root/scripts/install.sh" "$@"
}

# Runs ctest and adds its counts, one for each test program.
run_ctest() {
    local line bad all
    all=$(ctest --test-dir "$build" -N "$@" | sed -n 's/^Total Tests: //p')
    if [ "$all" = 0 ]; then
        echo "test.sh: there are no such tests" >&2
        failed=$((failed + 1))
        return
    fi
    timeout 600 ctest --test-dir "$build" -j "$jobs" --timeout 300 --output-on-failure "$@" 2>&1 | tee "$log"
    line=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$log" | tail -n 1)
    if [ -z "$line" ]; then
        echo "test.sh: ctest did not come to an end" >&2
        failed=$((failed + 1))
        return
    fi
    bad=$(sed -E 's/^[0-9]+% tests passed, ([0-9]+) tests? failed out of [0-9]+.*/\1/' <<<"$line")
    all=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$line")
    passed=$((passed + all - bad))
    failed=$((failed + bad))
}

# pytest_on PROGRAM ARGUMENT ...: runs pytest, in $patience seconds.
pytest_on() {
    local program=$1
    shift
    LOCKKEEPER="$program" PYTHONDONTWRITEBYTECODE=1 timeout -k 20 "$patience" \
        "$python" -m pytest -q -p no:cacheprovider --tb=short "$@"
}

# alone PROGRAM TEST ...: whether tests that failed beside others pass by themselves, three times of three.
alone() {
    echo "test.sh: what failed beside other tests runs three times by itself"
    pytest_on "$@" && pytest_on "$@" && pytest_on "$@"
}

# run_pytest PROGRAM ARGUMENT ...: integration tests of that program. Beside others, a test may be without a processor for so
# long that it is a different test. So up to $unsteady_most failures of a run that has tests side by side get a second hearing, but not histories of clients.
run_pytest() {
    local status counts good bad tests several=() program=$1
    shift
    # Most tests spend their time waiting for servers: six at once keep two processors busy.
    ! "$python" -c 'import xdist' 2>/dev/null || several=(-n "${at_once:-6}")
    pytest_on "$program" ${several[@]+"${several[@]}"} --durations=5 --junitxml="$log.xml" "$@"
    status=$?
    counts=$("$python" - "$log.xml" <<'PYTHON'
import sys, xml.etree.ElementTree as tree
suites = list(tree.parse(sys.argv[1]).getroot().iter("testsuite"))
total, bad, skipped = (sum(int(s.get(name)) for s in suites for name in names)
                       for names in (["tests"], ["failures", "errors"], ["skipped"]))
print(max(total - bad - skipped, 0), bad)
for case in (case for suite in suites for case in suite.iter("testcase")):
    if case.find("failure") is not None or case.find("error") is not None:
        print("%s.py::%s" % (case.get("classname").rpartition(".")[2], case.get("name")))
PYTHON
    )
    if [ -z "$counts" ] || [ "$status" -gt 1 ]; then
        echo "test.sh: the integration tests did not come to an end (status $status)" >&2
        failed=$((failed + 1))
        [ -n "$counts" ] || return
    fi
    read -r good bad <<<"$counts"
    mapfile -t tests < <(tail -n +2 <<<"$counts" | sort -u)
    if [ "$bad" -gt 0 ] && [ "$bad" -le "$unsteady_most" ] && [ "${at_once:-6}" -gt 0 ] &&
        [[ "${tests[*]}" != *test_history* ]] && alone "$program" "${tests[@]/#/$root/tests/integration/}"; then
        unsteady+=("${tests[@]}")
        good=$((good + ${#tests[@]})) bad=0 status=0
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
    # Status 1 without a failed test: an error at the very end, for instance a proxy that did not stop cleanly.
    [ "$status" -ne 1 ] || [ "$bad" -gt 0 ] || failed=$((failed + 1))
}

# build_under FOLDER CMAKE-ARGUMENT ...: a build of the program that is made for one part.
build_under() {
    local folder=$root/$1
    shift
    need "configuring $folder" 120 cmake -S "$root" -B "$folder" "$@"
    need "the build in $folder" 1200 cmake --build "$folder" --target lockkeeper -j "$jobs"
}

# run_under FOLDER CMAKE-ARGUMENT ...: runs all integration tests with a build made for them.
run_under() {
    local patience=43200
    build_under "$@"
    run_integration "$root/$1/lockkeeper"
}

# Tests that depend on real time run one after another, by themselves: without a processor a worker is late, which would be a
# different test. They are left out of what runs side by side.
timed=("$root/tests/integration/test_no_harm.py" "$root/tests/integration/test_contention.py")
apart=("${timed[@]/#/--ignore=}")

# run_integration PROGRAM: runs all integration tests.
run_integration() {
    run_pytest "$1" "$root/tests/integration" "${apart[@]}"
    at_once=0 run_pytest "$1" "${timed[@]}"
}

# Runs the core of the integration tests.
run_core() {
    local core
    mapfile -t core < <(sed -n "s|^test_|$root/tests/integration/&|p" "$root/tests/integration/core.txt")
    run_pytest "$build/lockkeeper" "${core[@]}"
}

# run_one NAME: runs the tests of that name. A few names are those of a unit test and of an integration test.
run_one() {
    if has unit "$1" || has sim "$1"; then
        run_ctest -R "^$1\$"
    fi
    if has integration "$1"; then
        local unsteady_most=0
        [[ " ${timed[*]} " != *"/$1.py "* ]] || local at_once=0
        run_pytest "$build/lockkeeper" "$root/tests/integration/$1.py"
    fi
}

# count LINE: adds the counts of a script's last line, 'N passed, N failed'.
count() {
    if [[ $1 =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
    else
        echo "test.sh: it did not come to an end" >&2
        failed=$((failed + 1))
    fi
}

# run_counted SECONDS COMMAND ...: runs a script that prints its own counts.
run_counted() {
    timeout -k 20 "$@" | tee "$log"
    count "$(tail -n 1 "$log")"
}

# Runs the integration tests with the build that users have, on each server. What no server decides runs once: the traffic of
# the engine alone in `unit`, and the timed tests in `integration`. Without a sanitizer there is time for ten tests at once.
run_servers() {
    local build=$root/build-servers server
    need "configuring the build" 120 cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTESTS=ON -DWERROR=ON
    need "the build" 1200 cmake --build "$build" -j "$jobs"
    run_ctest -E "sim|traffic"
    for server in ${LOCKKEEPER_SERVERS:-redis-server valkey-server}; do
        if command -v "$server" >/dev/null; then
            echo "== $("$server" --version)"
            REDIS_SERVER=$server at_once=10 run_pytest "$build/lockkeeper" "$root/tests/integration" "${apart[@]}"
        elif [ -n "${LOCKKEEPER_SERVERS:-}" ]; then
            echo "test.sh: there is no $server here" >&2
            failed=$((failed + 1))
        else
            echo "no $server here"
        fi
    done
}

# Runs the tests that are only meaningful with the build that users have.
run_bench() {
    local program
    program=$("$root/scripts/build.sh" "$root/build-bench" Release) || {
        echo "test.sh: the Release build failed" >&2
        failed=$((failed + 1))
        return
    }
    if command -v valgrind >/dev/null; then
        step "tests/bench/check.py" 900 env PYTHONDONTWRITEBYTECODE=1 "$python" "$root/tests/bench/check.py" \
            --lockkeeper "$program"
    else
        echo "no valgrind here, so nothing is counted"
    fi
    run_pytest "$program" "$root/tests/integration/test_traps.py" "$root/tests/integration/test_soak_finds.py" \
        -k "trap_35 or 512_mb or memory"
}

wants() {
    local part
    for part in "${parts[@]}"; do
        [ "$part" != "$1" ] || return 0
    done
    return 1
}

# First, on an unchanged system.
if wants newcomer; then
    echo "== newcomer"
    SECONDS=0
    run_counted 1200 "$root/tests/adoption/newcomer.sh" ${LOCKKEEPER_FRESH:+--package}
    echo "== newcomer: $SECONDS s"
fi

purposes=(build test)
case " ${parts[*]} " in
" newcomer ") finish ;;
" servers " | " newcomer servers ") purposes=(build integration) ;;
" static " | " newcomer static ") purposes=(build static) ;;
esac
install_missing "${purposes[@]}"

if [ -n "$builds" ]; then
    generator=()
    [ -e "$build/CMakeCache.txt" ] || ! command -v ninja >/dev/null || generator=(-G Ninja)
    need "configuring the build" 120 cmake -S "$root" -B "$build" ${generator[@]+"${generator[@]}"} \
        -DCMAKE_BUILD_TYPE=Debug -DTESTS=ON -DWERROR=ON -DSANITIZE=address,undefined
    need "the build" 1200 cmake --build "$build" -j "$jobs"
fi

for part in "${parts[@]}"; do
    [ "$part" != newcomer ] || continue
    echo "== $part"
    SECONDS=0
    case $part in
    unit) run_ctest -E sim ${short[@]+"${short[@]}"} ;;
    sim) run_ctest -R sim ${short[@]+"${short[@]}"} ;;
    model) step "tests/model/check.sh" 900 "$root/tests/model/check.sh" ;;
    check)
        if [ -x "$root/scripts/check.sh" ]; then
            step "scripts/check.sh" 600 "$root/scripts/check.sh"
        fi
        ;;
    fuzz)
        if [ ! -x "$root/scripts/fuzz.sh" ]; then
            :
        elif ! command -v clang >/dev/null; then
            echo "no clang here, so no fuzzing"
        else
            # The same inputs every time; scripts/fuzz.sh searches for more.
            FUZZ_SEED=1 step "scripts/fuzz.sh" 590 "$root/scripts/fuzz.sh" 12
        fi
        ;;
    integration)
        if [ ${#short[@]} -gt 0 ]; then
            run_core
        else
            run_integration "$build/lockkeeper"
        fi
        ;;
    bench) run_bench ;;
    servers) run_servers ;;
    attacks) run_counted 600 "$root/scripts/attacks.sh" --short ;;
    static) run_counted 900 "$root/tests/adoption/static.sh" ;;
    threads) LOCKKEEPER_THREADS=4 run_under build-threads -DCMAKE_BUILD_TYPE=Debug -DSANITIZE=thread ;;
    races)
        build_under build-threads -DCMAKE_BUILD_TYPE=Debug -DSANITIZE=thread
        LOCKKEEPER_THREADS=4 run_pytest "$root/build-threads/lockkeeper" "$root"/tests/integration/test_{owners,learnt,sentinel,reload}.py
        ;;
    valgrind)
        LOCKKEEPER_UNDER="valgrind -q --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
            --error-exitcode=96 --num-callers=25 --vgdb=no" run_under build-valgrind -DCMAKE_BUILD_TYPE=RelWithDebInfo
        ;;
    *) run_one "$part" ;;
    esac
    echo "== $part: $SECONDS s"
done
finish
