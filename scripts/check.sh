#!/bin/sh
# Checks the source: clang-format over all C files, the permitted includes, the tables of includes in the pages, and clang-tidy
# over the program (.clang-tidy lists the checks). Changes nothing; exits 1 on an offence.
#
#   scripts/check.sh          print the offences
#   scripts/check.sh --fix    format the files with clang-format, then check
#
# Versions of clang-format and clang-tidy give different results, so both must be version 14 (Debian 12's). If version 14 is
# missing, the script says so and checks the rest.
set -u
cd "$(dirname "$0")/.." || exit 1

status=0

# The program of that name whose version is 14; nothing if there is none.
version_14() {
    for name in "$1-14" "$1"; do
        if command -v "$name" >/dev/null 2>&1 && "$name" --version | grep -q 'version 14\.'; then
            echo "$name"
            return
        fi
    done
}

clang_format=$(version_14 clang-format)
if [ -z "$clang_format" ]; then
    echo "layout: not checked, there is no clang-format 14 here"
else
    if [ "${1:-}" = "--fix" ]; then
        find parser proxy tests -name '*.[ch]' -exec "$clang_format" -i {} + || status=1
    fi
    offenders=0
    files=0
    for file in $(find parser proxy tests -name '*.[ch]' | sort); do
        files=$((files + 1))
        if ! where=$("$clang_format" --dry-run --Werror "$file" 2>&1); then
            offenders=$((offenders + 1))
            printf '%s\n' "$where" | grep -m 3 -E '^[^ ]+:[0-9]+:[0-9]+: ' | sed 's/ \[-Wclang-format-violations\]//'
        fi
    done
    if [ "$offenders" -eq 0 ]; then
        echo "layout: $files files as .clang-format has it"
    else
        echo "layout: $offenders of $files files differ from .clang-format (scripts/check.sh --fix lays them out)"
        status=1
    fi
fi

echo "includes:"
python3 tests/unit/test_includes.py || status=1
echo "pages:"
python3 tests/unit/test_pages.py || status=1
echo "words:"
python3 tests/unit/test_words.py || status=1

# Checks groups of files on all processors. A finding in a header occurs with each file that includes it, and is printed once.
clang_tidy=$(version_14 clang-tidy)
if [ -z "$clang_tidy" ]; then
    echo "clang-tidy: not run, there is no clang-tidy 14 here"
else
    found=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-tidy.XXXXXX")
    trap 'rm -f "$found"' EXIT
    flags="-std=c11 -D_GNU_SOURCE -I. -DLOCKKEEPER_VERSION=\"\" $(pkg-config --cflags hiredis uuid 2>/dev/null)"
    if find parser proxy -name '*.c' | sort |
        xargs -n 8 -P "$(nproc)" sh -c 'tidy=$1 flags=$2; shift 2; exec "$tidy" --quiet "$@" -- $flags 2>&1' sh "$clang_tidy" "$flags" \
            >"$found"; then
        echo "clang-tidy: $(find parser proxy -name '*.c' | wc -l) files without a finding"
    else
        sed -n -E "s|^$PWD/(\./)?(.*: )(warning\|error): |\2|p" "$found" | sort -u
        echo "clang-tidy: findings, see above"
        status=1
    fi
fi

exit $status
