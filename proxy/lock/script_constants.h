/*
 * Numbers that the engine and its Lua scripts have in common. They are given here alone: where a script of scripts/lua/
 * has one of these names, scripts/embed_lua.cmake puts its value. A row is one line, the value a plain number.
 */
#ifndef LOCKKEEPER_LOCK_SCRIPT_CONSTANTS_H
#define LOCKKEEPER_LOCK_SCRIPT_CONSTANTS_H

enum {
    GUARD_OUTLIVES_MS = 10000,    /* a guard record is there for so long after its lock */
    GUARD_VACANT_MS = 60000,      /* one that says only that a lock is not there lives so long */
    WATERMARK_MS = 3600000,       /* a watermark is there for half of this at least after the last write */
    WAITS_MARK_MS = 300,          /* so long it is believed that somebody waits: three looks */
    WAITS_PROXIES = 16,           /* at so many proxies at once, at most */
    SUSPECTS_MAX = 3,             /* so many refused releases of losers are told of a lease: more say no more */
    SUSPECTS_SHIFTED = 4,         /* added to them where a release at another proxy counted for an older lease */
    QUEUE_LOOKS_WITHIN_MS = 5000, /* the owner of a list lock's head looks at it within so many ms, or it is dead */
    QUEUE_EARLY_MS = 2000,        /* who comes back before its former connection is seen to close is waited for */
    QUEUE_PRUNED_AT_ONCE = 100    /* dead heads that one script removes at most */
};

#endif
