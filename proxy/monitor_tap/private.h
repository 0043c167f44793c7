/* What the files of proxy/monitor_tap/ share. */
#pragma once

#include "parser/resp.h"
#include "proxy/base/text.h"
#include "proxy/lock/hash.h"
#include "proxy/monitor_tap/monitor_tap.h"

/* ---- monitor_tap.c: lines ---- */

/* The parts of a line. Borrowed. */
struct monitor_line {
    int64_t time_ms; /* since 1970 */
    uint32_t db;
    const char *from; /* "127.0.0.1:4000", "lua", "unix:/run/redis" */
    size_t from_len;
    const char *words; /* the command, each word between quotes */
    size_t words_len;
};

/* False: it is no line of MONITOR's. */
bool monitor_line_read(struct monitor_line *to, const char *line, size_t len);
/* Writes the command in RESP to *bytes, and scans it. False: it is no command. */
bool monitor_args_read(const struct monitor_line *line, struct text *bytes, struct resp_request *request);

/* ---- key_model.c: the state of keys ---- */

enum { MODEL_NODES = 16, MODEL_SETS = 4096, MODEL_WAYS = 8 };

enum model_state { MODEL_UNKNOWN, MODEL_ABSENT, MODEL_PRESENT };

struct model_key {
    uint64_t hash; /* 0: unused */
    enum model_state state;
    bool counted;    /* the counter's number is known */
    bool listed;     /* the list's nodes are known */
    bool end_known;  /* the expiry is known; for PRESENT */
    bool asked;      /* PTTL was asked for after the last command on it */
    bool assumed;    /* the last command's result is right if the key was free; no command on it was seen before */
    uint8_t nodes;   /* nodes in the list */
    int64_t end_ms;  /* 0: no expiry */
    int64_t count;   /* the counter's number */
    int64_t seen_ms; /* time of the last command on it */
    int64_t sure_ms; /* up to then it counts as there, if its end is not known */
    uint64_t field;  /* the field of the hash that is followed; 0: none */
    uint64_t node[MODEL_NODES]; /* hashes, the head's first */
    uint64_t shown;             /* the node of the last command */
    uint64_t value;             /* hash of the string, for commands that compare; 0: not known */
};

/* Zero: no key is known. */
struct model {
    struct model_key keys[MODEL_SETS][MODEL_WAYS];
};
/* The state of a key at this time, after expiries; NULL: it is not followed. Valid until the next call of model_follow.
 */
struct model_key *model_find(struct model *m, uint64_t hash, int64_t now_ms);
/* The state of a key, which is followed from now on. If its set is full, the key with the oldest last command makes
 * room. Valid until the next call. */
struct model_key *model_follow(struct model *m, uint64_t hash, int64_t now_ms);
/* Gives the sight its effect, as far as it follows from the state, and updates the state. `hash`: it concerns a field.
 * False: the result is not known. */
bool model_run(struct model_key *k, struct lock_event *sight, bool conditional, bool hash, int64_t now_ms);
/* PTTL has answered: the key was there, or not. */
void model_told(struct model_key *k, int64_t pttl_ms, int64_t at_ms);
