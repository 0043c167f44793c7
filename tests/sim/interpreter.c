/*
 * Lua with the scripts in it, and memory for what each run leaves behind: pieces of a few sizes, which are used again.
 */
#include "tests/sim/interpreter.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/resp.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/lock/rule.h"

enum {
    PIECE = 16,   /* sizes are multiples of it */
    PIECES = 32,  /* and of so many; what is larger is the system's */
    SLAB = 65536, /* what is taken from the system at once */
    PAUSE = 150,  /* in percent: how much of what is in use there may be before garbage is looked for */
    /* Where things are on the stack. */
    AT_KEYS = 1,
    AT_ARGV,
    AT_NAMES, /* of locks and guard records, two for each key */
    AT_SCRIPTS = AT_NAMES + 2 * MODEL_KEYS,
    KEYS_MAX = 8,
    AT_END = AT_SCRIPTS + SCRIPT_TOTAL /* the first place that is free */
};

union piece {
    union piece *next;
    char bytes[PIECE];
};

static lua_State *L;
static union piece *pieces[PIECES + 1]; /* free ones of PIECE * i bytes */
static union piece *slabs;              /* so that they are known to be in use */
static char *fresh;                     /* of the last slab */
static size_t fresh_left;
static int words, words_before; /* in ARGV; how many the last call had */
static int lock_at;             /* where the lock key's name is */

/* ---- memory -------------------------------------------------------------------------------------- */

static size_t class_of(size_t size) {
    return (size + PIECE - 1) / PIECE;
}

static void *take(size_t size) {
    size_t class = class_of(size);
    if (class > PIECES)
        return memory_alloc(size);
    union piece *p = pieces[class];
    if (p) {
        pieces[class] = p->next;
        return p;
    }
    if (fresh_left < class * PIECE) { /* what is left of the last one is lost */
        union piece *slab = memory_alloc(SLAB);
        slab->next = slabs;
        slabs = slab;
        fresh = (char *)(slab + 1);
        fresh_left = SLAB - sizeof(*slab);
    }
    void *new = fresh;
    fresh += class * PIECE;
    fresh_left -= class * PIECE;
    return new;
}

static void give_back(void *data, size_t size) {
    size_t class = class_of(size);
    if (class > PIECES) {
        memory_free(data);
        return;
    }
    union piece *p = data;
    p->next = pieces[class];
    pieces[class] = p;
}

static void *allocate(void *nothing, void *data, size_t size, size_t new_size) {
    (void)nothing;
    if (data && new_size && class_of(size) == class_of(new_size) && class_of(size) <= PIECES)
        return data;
    void *new = new_size ? take(new_size) : NULL;
    if (data && new)
        memcpy(new, data, size < new_size ? size : new_size);
    if (data)
        give_back(data, size);
    return new;
}

/* ---- beginning ----------------------------------------------------------------------------------- */

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, lua_tostring(L, -1));
    abort();
}

static void open_library(lua_CFunction open, const char *name) {
    lua_pushcfunction(L, open);
    lua_pushstring(L, name);
    lua_call(L, 1, 0);
}

/* Scripts in Redis can't make globals, nor ask for globals that are not there. */
static void close_globals(void) {
    static const char SOURCE[] = "setmetatable(_G, {__index = function(_, name) error('global ' .. name, 2) end,"
                                 "__newindex = function(_, name) error('global ' .. name, 2) end})";
    if (luaL_dostring(L, SOURCE))
        fail("globals");
}

/* cmsgpack as far as hash.lua needs it: a number, or an array of one text or nil. */
static void open_cmsgpack(void) {
    static const char SOURCE[] = "cmsgpack = {pack = function(v) "
                                 "return type(v) == 'number' and 'i' .. v or v[1] and 't' .. v[1] or 'n' end,"
                                 "unpack = function(t) local kind, rest = string.sub(t, 1, 1), string.sub(t, 2) "
                                 "return kind == 'i' and tonumber(rest) or {kind == 't' and rest} end}";
    if (luaL_dostring(L, SOURCE))
        fail("cmsgpack");
}

static void compile(enum script_id id) {
    const struct script *s = script_get(id);
    char name[32];
    snprintf(name, sizeof(name), "=%s.lua", s->name);
    if (luaL_loadbuffer(L, s->source, s->len, name))
        fail(s->name);
}

static void open_once(void) {
    if (L)
        return;
    L = lua_newstate(allocate, NULL);
    lua_gc(L, LUA_GCSETPAUSE, PAUSE);
    open_library(luaopen_base, "");
    open_library(luaopen_string, LUA_STRLIBNAME);
    open_library(luaopen_table, LUA_TABLIBNAME);
    open_library(luaopen_math, LUA_MATHLIBNAME);
    open_cmsgpack();
    commands_open(L);
    slot_tags_init();
    lua_setglobal(L, "redis");
    lua_checkstack(L, AT_END + LUA_MINSTACK);
    lua_createtable(L, 2, 0);
    lua_pushvalue(L, -1);
    lua_setglobal(L, "KEYS");
    lua_createtable(L, 32, 0);
    lua_pushvalue(L, -1);
    lua_setglobal(L, "ARGV");
    for (int key = 0; key < MODEL_KEYS; key++) {
        char guard[LOCK_GUARD_EXTRA + 20];
        const char *name = lua_pushfstring(L, "lock:%d", key);
        lua_pushlstring(L, guard, lock_guard_key(name, strlen(name), guard));
    }
    for (int id = 0; id < SCRIPT_TOTAL; id++)
        compile((enum script_id)id);
    close_globals();
}

/* ---- calls --------------------------------------------------------------------------------------- */

void interpreter_begin(struct model *m, int key) {
    open_once();
    lua_settop(L, AT_END - 1);
    lock_at = AT_NAMES + 2 * key;
    for (int i = 0; i < KEYS_MAX; i++) {
        if (i < 2)
            lua_pushvalue(L, lock_at + i);
        else
            lua_pushnil(L);
        lua_rawseti(L, AT_KEYS, i + 1);
    }
    commands_begin(m, key, lua_tostring(L, lock_at), lua_tostring(L, lock_at + 1));
    words = 0;
}

void interpreter_begin_witness(struct model *m, int key) {
    interpreter_begin(m, key);
    lua_pushvalue(L, lock_at + 1);
    lua_rawseti(L, AT_KEYS, 1);
    lua_pushliteral(L, WITNESS_MARK);
    lua_rawseti(L, AT_KEYS, 2);
}

static void add_word(void) {
    lua_rawseti(L, AT_ARGV, ++words);
}

void interpreter_text(const char *text) {
    lua_pushstring(L, text);
    add_word();
}

void interpreter_bytes(const char *text, size_t len) {
    lua_pushlstring(L, text, len);
    add_word();
}

void interpreter_push_digits(lua_State *to, int64_t n) {
    char text[24], *end = text + sizeof(text);
    char *begin = resp_digits_write(end, n < 0 ? -(uint64_t)n : (uint64_t)n);
    if (n < 0)
        *--begin = '-';
    lua_pushlstring(to, begin, (size_t)(end - begin));
}

void interpreter_number(int64_t n) {
    interpreter_push_digits(L, n);
    add_word();
}

void interpreter_key(void) {
    lua_pushvalue(L, lock_at);
    add_word();
}

lua_State *interpreter_run(enum script_id id) {
    for (int i = words + 1; i <= words_before; i++) {
        lua_pushnil(L);
        lua_rawseti(L, AT_ARGV, i);
    }
    words_before = words;
    lua_pushvalue(L, AT_SCRIPTS + (int)id);
    if (!lua_pcall(L, 0, 1, 0))
        return L;
    if (!lua_istable(L, -1))
        fail("a script ends with an error of its own");
    return NULL;
}

lua_State *interpreter_fence(struct model *m, int key, const struct interpreter_word *keys, int key_count,
                             const struct interpreter_word *args, int arg_count) {
    interpreter_begin(m, key);
    for (int i = 0; i < KEYS_MAX; i++) {
        if (i < key_count)
            lua_pushlstring(L, keys[i].text, keys[i].len);
        else
            lua_pushnil(L);
        lua_rawseti(L, AT_KEYS, i + 1);
    }
    for (int i = 0; i < arg_count; i++)
        interpreter_bytes(args[i].text, args[i].len);
    return interpreter_run(SCRIPT_FENCE);
}
