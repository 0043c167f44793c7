#!/bin/bash
# Shows what each rule of attribution buys: takes one rule or exception away at a time, as ablations.txt says, and runs the cells
# of the traffic with an engine without it. Prints a table in Markdown: what the whole engine reaches, and what changes without
# each rule, beyond what other seeds change in the whole engine. The table of docs/decisions/learning.md is made with it.
#
#      ablate.sh [NAME ...]
#
# In the environment: JOBS (1); SEEDS ("1 2 3", of the whole engine; an ablation has the first); RUNS (0.4: so much of each
# cell's runs); CELLS (how the cells' names begin, with semicolons between; empty: all); TRIP (50: milliseconds of a round trip;
# the rules have times in milliseconds); FLIGHT (1: also with commands under way at once); RESULTS (a folder that keeps the
# counts: what is there is not run again).
#
# A line of ablations.txt is NAME|RULE|FILE|EXPRESSION. Run by hand; an ablation takes some 10 s of one core, twice that with
# FLIGHT. Works in a folder of its own.
set -u
OPTIMISE=-O2
DEFINES=-DTRAFFIC_TRIP_MS=${TRIP:-50}
. "$(dirname "$0")/broken.sh"
SEEDS=${SEEDS:-1 2 3}
RUNS=${RUNS:-0.4}
CELLS=${CELLS:-}
JOBS=${JOBS:-1}
FLIGHT=${FLIGHT:-}
RESULTS=${RESULTS:-$WORK/results}
export SEEDS RUNS CELLS FLIGHT RESULTS

# The counts of the cells, by a program: the whole engine's with all seeds, an ablation's with the first.
count() { # PROGRAM NAME SEED ...
    local program=$1 name=$2 seed mode cell cells
    shift 2
    for seed in "$@"; do
        for mode in instant ${FLIGHT:+in-flight}; do
            [ ! -s "$RESULTS/$name.$seed.$mode" ] || continue
            IFS=';' read -ra cells <<<"$CELLS"
            for cell in "${cells[@]:-}"; do
                nice "$program" --counts --runs "$RUNS" --cell "$cell" --seed "$seed" $([ "$mode" = instant ] || echo --in-flight) || return
            done >"$WORK/counts.$name"
            mv "$WORK/counts.$name" "$RESULTS/$name.$seed.$mode"
        done
    done
}

ablate() { # NAME|RULE|FILE|EXPRESSION
    local name rule file expression d
    IFS='|' read -r name rule file expression <<<"$1"
    d=$WORK/ablated/$name
    mkdir -p "$d"
    sed "$expression" "$ROOT/$file" >"$d/broken"
    if cmp -s "$d/broken" "$ROOT/$file"; then
        echo "$name: the expression finds nothing in $file" >&2
        return 1
    fi
    { compile_broken "$d" "$file" && link_traffic "$d"; } || return
    count "$d/traffic" "$name" "${SEEDS%% *}" || { echo "$name: the run fails" >&2; return 1; }
    rm -rf "$d"
}
export -f count ablate

mkdir -p "$WORK"/{whole,traffic,traffic_main,ablated} "$RESULTS"
engine_sources >"$WORK/sources"
for name in traffic traffic_cells; do
    echo "$ROOT/tests/sim/$name.c $WORK/traffic_main/$name.o"
done >>"$WORK/sources"
for name in traffic_{engine,world,worker}; do
    echo "$ROOT/tests/sim/$name.c $WORK/traffic/$name.o"
done >>"$WORK/sources"
xargs -P "$JOBS" -L 1 nice bash -c 'compile "$@"' compile <"$WORK/sources" || exit 1
compile_scripts "$ROOT/scripts/lua" "$WORK/whole/scripts.lua.o" || exit 1
link_traffic "$WORK/whole" || exit 1
count "$WORK/whole/traffic" whole $SEEDS || exit 1
while IFS= read -r line; do
    if [ $# -eq 0 ] || [[ " $* " == *" ${line%%|*} "* ]]; then printf '%s\0' "$line"; fi
done <"$ROOT/tests/sim/ablations.txt" >"$WORK/lines"
xargs -0 -P "$JOBS" -n 1 bash -c 'ablate "$1"' ablate <"$WORK/lines"
failed=$?
tr '\0' '\n' <"$WORK/lines" | python3 "$ROOT/tests/sim/ablate_table.py" "$RESULTS" && exit $failed
