/*
 * The Lua scripts of scripts/lua/, embedded at build time with the SHA1 of their exact bytes. scripts/embed_lua.cmake
 * lists which other files are part of each script. common.lua and arguments.lua describe the contract of all scripts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct script {
    const char *name; /* "acquire" */
    const char *source;
    size_t len;
    const char *sha1; /* 40 hex digits */
    const char *call; /* RESP of a call with two keys: EVALSHA, the SHA1 and "2", SCRIPT_CALL_LEN bytes; they follow the
                         number of arguments */
};

enum { SCRIPT_CALL_LEN = 13 + 47 + 7 }; /* EVALSHA, the SHA1, 2 */

enum script_id {
    SCRIPT_ACQUIRE,
    SCRIPT_ACQUIRE_USUAL,
    SCRIPT_REPLACE,
    SCRIPT_SWAP,
    SCRIPT_SET_IF,
    SCRIPT_RELEASE,
    SCRIPT_RELEASE_USUAL,
    SCRIPT_EXTEND,
    SCRIPT_COUNT,
    SCRIPT_CLOBBER,
    SCRIPT_READ,
    SCRIPT_RENEW,
    SCRIPT_RENEW_ALL,
    SCRIPT_INSPECT,
    SCRIPT_ADOPT,
    SCRIPT_HASH,
    SCRIPT_FIELDS,
    SCRIPT_PASS,
    SCRIPT_FENCE,
    SCRIPT_LIST_PUSH,
    SCRIPT_LIST_READ,
    SCRIPT_LIST_REMOVE,
    SCRIPT_LIST_SET,
    SCRIPT_LIST_POP,
    SCRIPT_LIST_TRIM,
    SCRIPT_LIST_LEAVE,
    SCRIPT_FREE,
    SCRIPT_FREE_ALL,
    SCRIPT_GIVE_BACK,
    SCRIPT_WITNESS_TAKE,
    SCRIPT_WITNESS_FREE,
    SCRIPT_WITNESS_TRUST,
    SCRIPT_WITNESS_JOIN,
    SCRIPT_RAISE_FENCE,
    SCRIPT_PRESENCE,
    SCRIPT_TOTAL
};

/* CMake generates the table from the names above: SCRIPT_LIST_POP is scripts/lua/list_pop.lua. */
extern const struct script script_table[SCRIPT_TOTAL];

static inline const struct script *script_get(enum script_id id) {
    return &script_table[id];
}

/* Writes the error that the command would have had outside of a script to `out` (at most `size` bytes, no NUL). It cuts
 * the script and the line, which Redis adds, from `error`. Both texts are without '-' and CR LF. Returns false if
 * `error` names no script, or if there is no room. */
bool script_error_plain(const char *error, size_t len, char *out, size_t size, size_t *out_len);
