/*
 * The scripts of scripts/lua/, as the proxy sends them, in an interpreter of Lua 5.1 as Redis has it. Compiled once;
 * one for the whole program, which has one thread.
 *
 *      interpreter_begin(m, key); interpreter_text("..."); ...   ARGV, one after another
 *      interpreter_run(SCRIPT_ACQUIRE)                           the answer is on top of the stack
 */
#pragma once

#include <lua.h>

#include "proxy/upstream/script.h"
#include "tests/sim/model.h"

/* A call on the key begins: KEYS are it and its guard record, ARGV is empty. */
void interpreter_begin(struct model *m, int key);
/* A call of a witness's script on the key begins, and ARGV is empty: KEYS are the record of the lock, which is the
 * key's guard record, and the mark of the witness. */
#define WITNESS_MARK "lockkeeper-witness"
void interpreter_begin_witness(struct model *m, int key);
/* The next of ARGV: a text, copied; a number in digits; the lock key's name. */
void interpreter_text(const char *text);
void interpreter_bytes(const char *text, size_t len);
void interpreter_number(int64_t n);
void interpreter_key(void);
/* Runs the script. Its answer is on top of the stack that is returned until the next call begins; NULL: it has ended
 * with an error of redis.call. An error of its own ends the program, which says what it was. */
lua_State *interpreter_run(enum script_id id);
/* Runs fence.lua on that key with these KEYS and ARGV in the same way. Data is named data:N, and its watermark mark:N.
 */
struct interpreter_word {
    const char *text;
    size_t len;
};
lua_State *interpreter_fence(struct model *m, int key, const struct interpreter_word *keys, int key_count,
                             const struct interpreter_word *args, int arg_count);
/* Pushes the number's digits, as a text. */
void interpreter_push_digits(lua_State *to, int64_t n);

/* commands.c: the table `redis`, with what scripts call, is on top of the stack. */
void commands_open(lua_State *L);
/* Commands are for that key from here on, whose names are these, as the interpreter has interned them. */
void commands_begin(struct model *m, int key, const char *lock, const char *guard);
