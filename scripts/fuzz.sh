#!/bin/sh
# fuzz.sh SECONDS: builds the fuzz targets and runs each for so many seconds, starting from the kept corpus, as many at
# once as there are processors. Prints a line for each target with the number of runs. For a finding it prints the trace
# and the input, and the exit status is 1.
#
#   FUZZ_BUILD   where to build (default: build-fuzz)
#   FUZZ_SEED    the random seed (default: a different one each time)
#   FUZZ_OUT     where new corpus files and crashing inputs are kept (default: a temporary folder)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
seconds=${1:-}
case $seconds in
'' | *[!0-9]* | 0)
    echo "usage: fuzz.sh SECONDS" >&2
    exit 2
    ;;
esac
"$root/scripts/install.sh" test

build=${FUZZ_BUILD:-$root/build-fuzz}
out=${FUZZ_OUT:-$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-fuzz.XXXXXX")}
mkdir -p "$build" "$out"
log=$out/build.log
if ! { cmake -S "$root" -B "$build" -DFUZZ=ON -DCMAKE_C_COMPILER=clang &&
    cmake --build "$build" --target fuzzers -j "$(nproc)"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "fuzz.sh: the build failed (see above)" >&2
    exit 1
fi

# libFuzzer writes to the first folder; it only reads the kept corpus.
run() {
    mkdir -p "$out/$1"
    status=0
    "$build/tests/fuzz/fuzz_$1" -max_total_time="$seconds" -max_len=1024 -timeout=60 -rss_limit_mb=1024 \
        -len_control=0 -seed="${FUZZ_SEED:-0}" -print_final_stats=1 -dict="$root/tests/fuzz/resp.dict" \
        -artifact_prefix="$out/$1-" "$out/$1" "$root/tests/fuzz/corpus/$1" >"$out/$1.log" 2>&1 || status=$?
    echo "$status" >"$out/$1.status"
}

targets="proxy config request reply inline info header monitor"
started=0
for target in $targets; do
    run "$target" &
    started=$((started + 1))
    [ $((started % $(nproc))) -ne 0 ] || wait
done
wait

found=0
for target in $targets; do
    log=$out/$target.log
    status=$(cat "$out/$target.status")
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz_$target: ${runs:-0} runs"
    if [ "$status" -ne 0 ] || [ "${runs:-0}" -eq 0 ]; then
        found=1
        cat "$log" >&2
        echo "fuzz.sh: fuzz_$target failed with status $status; inputs and logs are in $out" >&2
    fi
done
if [ "$found" -eq 0 ] && [ -z "${FUZZ_OUT:-}" ]; then
    rm -rf "$out"
fi
exit "$found"
