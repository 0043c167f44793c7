/* What the files of proxy/overhear/ share. */
#ifndef LOCKKEEPER_OVERHEAR_PRIVATE_H
#define LOCKKEEPER_OVERHEAR_PRIVATE_H

#include "parser/resp.h"
#include "proxy/base/text.h"
#include "proxy/lock/hash.h"
#include "proxy/overhear/overhear.h"

/* ---- line.c ---- */

/* A line, taken apart. Borrowed. */
struct overheard_line {
    int64_t time_ms; /* since 1970 */
    uint32_t db;
    const char *from; /* "127.0.0.1:4000", "lua", "unix:/run/redis" */
    size_t from_len;
    const char *words; /* the command, each word between quotes */
    size_t words_len;
};

/* False: it is none of MONITOR's. */
bool overheard_line_read(struct overheard_line *to, const char *line, size_t len);
/* Writes the command as a client sends it to *bytes, and scans it. False: it is none. */
bool overheard_words_read(const struct overheard_line *line, struct text *bytes, struct resp_request *request);

/* ---- model.c: what is known of keys ---- */

enum { MODEL_NODES = 16 };

enum model_state { MODEL_UNKNOWN, MODEL_ABSENT, MODEL_PRESENT };

struct model_key {
    uint64_t hash; /* 0: the place is empty */
    enum model_state state;
    bool counted;               /* what the counter says is known */
    bool listed;                /* so is what the list has */
    bool end_known;             /* PRESENT */
    bool asked;                 /* PTTL was asked for behind the last command on it */
    bool assumed;               /* the last command acquired it, if it was free, as nobody had touched it */
    uint8_t nodes;              /* of the list */
    int64_t end_ms;             /* 0: none */
    int64_t count;              /* the counter's number */
    int64_t seen_ms;            /* the last command on it */
    int64_t sure_ms;            /* so long it counts as there, where its end is not known */
    uint64_t field;             /* of the hash: the one that is followed; 0: none */
    uint64_t node[MODEL_NODES]; /* hashes, the head first */
    uint64_t shown;             /* the one that the last command was about */
};

struct model;
struct model *model_new(void);
void model_free(struct model *m);
/* What is known of a key, at this time: an expiry may have come. NULL: it is not followed. Valid until the next call of
 * model_follow. */
struct model_key *model_find(struct model *m, uint64_t hash, int64_t now_ms);
/* What is known of a key that is followed from now on, if it was not before: then the one of its set whose last command
 * is longest ago makes room. Valid until the next call. */
struct model_key *model_follow(struct model *m, uint64_t hash, int64_t now_ms);
/* Nothing is known of any key any more. */
void model_forget(struct model *m);
/* Gives the sight the effect that its command had, as far as that follows from what is known, and follows what is known
 * then. `hash`: it is about a field. False: the outcome is not known. */
bool model_run(struct model_key *k, struct lock_sight *sight, bool conditional, bool hash, int64_t now_ms);
/* The key was there, or not, as PTTL said. */
void model_told(struct model_key *k, int64_t pttl_ms, int64_t at_ms);

#endif
