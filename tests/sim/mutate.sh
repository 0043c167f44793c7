#!/bin/bash
# Shows that the tests notice a broken engine. mutations.txt names the mutations: each breaks one check of the engine or of a
# Lua script. For each one this script runs tests until one of them fails:
#
#   1. the simulator, and then the same with list locks, with waiting sessions, and with fenced data. If the broken file is
#      about waiting or about fenced data, only these runs
#   2. the unit tests of the engine
#   3. the search of short histories (traffic_hunt)
#   4. the cells of the traffic
#   5. an integration test, if mutations.txt names one: "# MUTATION TEST"
#
# It prints for each mutation which test has failed. The exit status is 0 if a test has failed for each of them. Exception:
# mutations.txt may say why no test fails, as "# MUTATION unnoticed: REASON".
#
#      mutate.sh [NAME ...]    JOBS (2), STEPS (6000000) and SEEDS ("1 2 3") in the environment
#
# Run it by hand after changes to the engine or the simulator. It takes some minutes, and works in a folder of its own.
set -u
. "$(dirname "$0")/broken.sh"
STEPS=${STEPS:-6000000}
SEEDS=${SEEDS:-1 2 3}
JOBS=${JOBS:-2}
UNITS="test_engine test_audit test_attribution test_waiting"
export STEPS SEEDS UNITS

# Links the programs of a folder. Objects of the folder replace those of the unbroken engine.
link() { # FOLDER
    local objects front o
    objects=($(objects_of "$1" whole))
    front=($(objects_of "$1" front))
    cc "${objects[@]}" "${front[@]}" "$WORK"/sim/*.o -o "$1/sim" $LUA_LIBRARY -lm -lpthread || return
    link_traffic "$1" || return
    cc "${objects[@]}" "$WORK"/traffic/*.o "$WORK/traffic_hunt.o" -o "$1/traffic_hunt" $LUA_LIBRARY -lm -lpthread || return
    local unit engine=()
    for o in "${objects[@]}"; do
        case $o in */proxy_* | */parser_*) engine+=("$o") ;; esac
    done
    for unit in $UNITS; do
        cc "${engine[@]}" "$WORK/unit/$unit.o" -o "$1/$unit" -lcmocka -lpthread || return
    done
}

out_of_bounds() { # FOLDER
    timeout "$LIMIT" "$1/traffic" --check 2>&1 | sed -n 's/^traffic: .* cells, \([0-9]*\) out of bounds.*/\1/p'
}

# Runs an integration test against a proxy with the broken file. All mutants share one build.
integration() { # FOLDER FILE TEST
    local tree=$WORK/tree
    (
        flock 9
        if [ ! -d "$tree" ]; then
            mkdir "$tree" && (cd "$ROOT" && git ls-files -z | xargs -0 cp --parents -t "$tree") &&
                cmake -G Ninja -S "$tree" -B "$tree/build" -DCMAKE_BUILD_TYPE=Release >/dev/null
        fi
        cp "$1/broken" "$tree/$2"
        if cmake --build "$tree/build" --target lockkeeper >"$1/out" 2>&1; then
            (cd "$tree" && LOCKKEEPER=$tree/build/lockkeeper /usr/bin/python3 -m pytest -q "$3" >"$1/out" 2>&1) || echo "integration: $3"
        fi
        cp "$ROOT/$2" "$tree/$2"
    ) 9>"$WORK/tree.lock"
}

# Prints which test notices the mutation, and how. Prints nothing if no test does.
noticed() { # FOLDER [FILE]
    local lists modes=("" --lists --waits --fences) seed status unit
    case ${2:-} in
    */wait*.c | */handover.c | */lock_wait.c | */release_channel.c) modes=(--waits) ;;
    */fence*) modes=(--fences) ;;
    esac
    for lists in "${modes[@]}"; do
        for seed in $SEEDS; do
            timeout "$LIMIT" "$1/sim" $lists --steps "$STEPS" --seed "$seed" >"$1/out" 2>&1
            status=$?
            [ $status -ne 0 ] || continue
            case $status in
            1) echo "sim${lists:+ $lists}: $(grep -m1 FAILED "$1/out")" ;;
            124) echo "sim${lists:+ $lists}: it hangs" ;;
            *) echo "sim${lists:+ $lists}: it crashes" ;;
            esac
            return
        done
    done
    for unit in $UNITS; do
        timeout "$LIMIT" "$1/$unit" >"$1/out" 2>&1 ||
            { echo "unit: $unit: $(grep -m1 -o '\[  FAILED  \] .*' "$1/out" || echo "it crashes or hangs")"; return; }
    done
    timeout "$LIMIT" "$1/traffic_hunt" --check >"$1/out" 2>&1 || { echo "hunt: $(tail -n 1 "$1/out")"; return; }
    status=$(out_of_bounds "$1")
    if [ "${status:-$((BOUNDS + 1))}" -gt "$BOUNDS" ]; then
        echo "traffic: $status cells out of bounds, $BOUNDS of the unbroken engine"
        return
    fi
    status=$(sed -n "s/^# ${1##*/} //p" "$ROOT/tests/sim/mutations.txt")
    case $status in
    "") ;;
    unnoticed:*) echo "$status" ;;
    *) integration "$1" "$2" "$status" ;;
    esac
}

mutate() { # NAME|FILE|EXPRESSION
    local name file expression d who
    IFS='|' read -r name file expression <<<"$1"
    d=$WORK/mutants/$name
    mkdir -p "$d"
    sed "$expression" "$ROOT/$file" >"$d/broken"
    if cmp -s "$d/broken" "$ROOT/$file"; then
        who="NOT NOTICED: the expression finds nothing in $file"
    elif ! { compile_broken "$d" "$file" && link "$d"; } >"$d/out" 2>&1; then
        who="NOT NOTICED: it does not compile"
    else
        who=$(noticed "$d" "$file")
        who=${who:-NOT NOTICED}
    fi
    echo "$name: $who"
    rm -rf "$d"
}
export -f link out_of_bounds integration noticed mutate

mkdir "$WORK"/{whole,front,sim,traffic,traffic_main,unit,mutants}
engine_sources >"$WORK/sources"
for file in proxy/session/locks/{handover,lock_command}.c proxy/session/waits/{lock_wait,release_channel}.c \
    proxy/session/fences/{fenced_command,fence_transaction}.c proxy/session/core/class.c; do
    echo "$ROOT/$file $WORK/front/$(object_of "$file")"
done >>"$WORK/sources"
for found in "$ROOT"/tests/sim/*.c "$ROOT"/tests/sim/waits/*.c "$ROOT"/tests/sim/fences/*.c; do
    case $found in
    */sim_model.c | */hashes.c | */lists.c | */record.c | */commands.c | */interpreter.c | */scripts.c) continue ;;
    */sim_call.c | */model_dump.c) continue ;;
    */traffic_hunt.c) echo "$found $WORK/traffic_hunt.o" ;;
    */traffic.c | */traffic_cells.c) echo "$found $WORK/traffic_main/$(basename "$found").o" ;;
    */traffic_*.c) echo "$found $WORK/traffic/$(basename "$found").o" ;;
    *) echo "$found $WORK/sim/$(basename "$found").o" ;;
    esac
done >>"$WORK/sources"
for unit in $UNITS; do
    echo "$ROOT/tests/unit/$unit.c $WORK/unit/$unit.o"
done >>"$WORK/sources"
xargs -P "$JOBS" -L 1 bash -c 'compile "$@"' compile <"$WORK/sources" || exit 1
compile_scripts "$ROOT/scripts/lua" "$WORK/whole/scripts.lua.o" || exit 1
link "$WORK/whole" || exit 1

LIMIT=600
BOUNDS=$(out_of_bounds "$WORK/whole")
export LIMIT BOUNDS
began=$SECONDS
who=$(noticed "$WORK/whole")
if [ -n "$who" ]; then
    echo "the unbroken engine fails: $who"
    cat "$WORK/whole/out"
    exit 1
fi
LIMIT=$(((SECONDS - began) * 5 + 60)) # a mutant that takes longer for one run is taken to hang

grep -v '^#' "$ROOT/tests/sim/mutations.txt" | while IFS= read -r line; do
    if [ $# -eq 0 ] || [[ " $* " == *" ${line%%|*} "* ]]; then printf '%s\0' "$line"; fi
done |
    xargs -0 -P "$JOBS" -n 1 bash -c 'mutate "$1"' mutate | tee "$WORK/result"

by() { # WORD: for how many mutations the result begins with it
    grep -c ": $1" "$WORK/result"
}
missed=$(by "NOT NOTICED")
echo "$(wc -l <"$WORK/result") mutations: $(by sim) noticed by the simulator, $(by unit) by unit tests, $(by hunt) by the search," \
    "$(by traffic) by the traffic, $(by integration) by integration tests, $(by unnoticed) by none with a reason, $missed by none"
[ "$missed" -eq 0 ] && [ -s "$WORK/result" ]
