/*
 * Numbers that the engine and its Lua scripts share, defined only here. scripts/embed_lua.cmake replaces these names in
 * the scripts of scripts/lua/ by their values. A row is one line, the value a plain number.
 */
#pragma once

enum {
    GUARD_OUTLIVES_MS = 10000,    /* a guard record outlives its lock by so long */
    GUARD_VACANT_MS = 60000,      /* a guard record that says only that there is no lock lives so long */
    SHORT_APART_MS = 100,         /* a lock and its guard record in the short form end so far apart, at most */
    WATERMARK_MS = 3600000,       /* a watermark lives for half of this at least after the last write */
    WAITS_MARK_MS = 300,          /* a proxy's mark that a session waits there is valid for so long: three looks */
    WAITS_PROXIES = 16,           /* marks in one guard record, at most */
    SUSPECTS_MAX = 3,             /* refused releases of losers are counted up to this number */
    SUSPECTS_SHIFTED = 4,         /* added to that count if a release at another proxy counted for an older lease */
    QUEUE_LOOKS_WITHIN_MS = 5000, /* the owner of a list lock's head looks at it within so many ms, or it is dead */
    QUEUE_EARLY_MS = 2000,        /* a new connection may come so long before the old one is seen to close */
    QUEUE_PRUNED_AT_ONCE = 100,   /* one script removes so many dead heads at most */
    PRESENCE_FORK_S = 30,         /* a process that was there so long before the data's new id was there when it came */
    PRESENCE_AWAY_S = 60,         /* a process that has said nothing for so long is not there */
    PRESENCE_KEPT_S = 86400       /* so long its last word is kept */
};
