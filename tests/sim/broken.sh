# What mutate.sh and ablate.sh share: the engine compiled once, and again with one file of it broken by sed. They source it.
# ROOT is the worktree, WORK a folder of its own that goes at the end, OPTIMISE the compiler's level, DEFINES more options of it.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORK=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-broken.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
OPTIMISE=${OPTIMISE:--O1}
DEFINES=${DEFINES:-}
LUA_FLAGS=$(pkg-config --cflags lua5.1)
LUA_LIBRARY=$(pkg-config --libs lua5.1)
LUA_NAMES=$(sed -n 's/^    SCRIPT_\([A-Z_]*\),$/\L\1/p' "$ROOT/proxy/upstream/script.h" | paste -sd,)
export ROOT WORK OPTIMISE DEFINES LUA_FLAGS LUA_LIBRARY LUA_NAMES

compile() { # SOURCE OBJECT
    cc -std=c11 -D_GNU_SOURCE "$OPTIMISE" $DEFINES -fno-strict-aliasing -w -I"$ROOT" $LUA_FLAGS -c "$1" -o "$2"
}

# The scripts of a folder, as the proxy has them.
compile_scripts() { # FOLDER OBJECT
    cmake -DFOLDER="$1" -DNAMES="$LUA_NAMES" -DCONSTANTS="$ROOT/proxy/lock/script_constants.h" -DOUT="$2.c" -P "$ROOT/scripts/embed_lua.cmake" && compile "$2.c" "$2"
}

object_of() { # FILE
    case $1 in
    *.lua) echo scripts.lua.o ;;
    *) echo "${1//\//_}.o" ;;
    esac
}

# The broken file's object in place of the whole one's.
compile_broken() { # FOLDER FILE
    case $2 in
    *.lua)
        cp -r "$ROOT/scripts/lua" "$1/lua"
        cp "$1/broken" "$1/lua/$(basename "$2")"
        compile_scripts "$1/lua" "$1/$(object_of "$2")"
        ;;
    *)
        cp "$1/broken" "$1/broken.c"
        compile "$1/broken.c" "$1/$(object_of "$2")"
        ;;
    esac
}

# The engine and the model of Redis: each source, and its object in the folder of the unbroken engine.
engine_sources() {
    local file found
    for file in proxy/lock/*.c proxy/base/*.c parser/*.c tests/sim/{sim_model,hashes,lists,record,commands,interpreter,scripts,sim_call}.c; do
        for found in "$ROOT"/$file; do
            echo "$found $WORK/whole/$(object_of "${found#"$ROOT/"}")"
        done
    done
}

# The objects of a folder: its own objects replace the unbroken engine's.
objects_of() { # FOLDER KIND
    local o
    for o in "$WORK/$2"/*.o; do
        [ ! -e "$1/${o##*/}" ] || o=$1/${o##*/}
        echo "$o"
    done
}

link_traffic() { # FOLDER
    cc $(objects_of "$1" whole) "$WORK"/traffic/*.o "$WORK"/traffic_main/*.o -o "$1/traffic" $LUA_LIBRARY -lm -lpthread
}
export -f compile compile_scripts object_of compile_broken objects_of link_traffic
