/*
 * common.lua on the model: what every script of string locks begins with, and what they share. Private to the model's
 * scripts.
 */
#ifndef LOCKKEEPER_SIM_SCRIPT_H
#define LOCKKEEPER_SIM_SCRIPT_H

#include <string.h>

#include "tests/sim/model.h"

enum { NOT_ASKED = -3 };

/* look() */
struct script_state {
    bool value, wrong_type; /* the key exists; it is no string */
    bool list;              /* it is a list lock */
    bool token;             /* a lease is live */
    bool leased, keeps_lease;
    bool same, elsewhere; /* it is of the caller's identity; another proxy gave it */
    unsigned suspects;
    char text[MODEL_VALUE], lease_token[MODEL_TOKEN], owner[MODEL_NAME], proxy[MODEL_NAME];
    char attempt[MODEL_TOKEN], reply[MODEL_VALUE];
    uint64_t fence, last_fence;
};

/* A script at work. */
struct script_run {
    struct model *m;
    int key;
    const struct model_args *a;
    struct model_key *k;
    struct model_guard *g;
};

static inline bool is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

/* look(), with what `enrol` does there. */
struct script_state script_look(struct script_run *r);
/* examine(): the same without enrolling. */
struct script_state script_examine(struct script_run *r);
/* Whether what stands there is nobody's lock for the caller. */
bool script_is_data(const struct script_run *r, const struct script_state *s);
/* Whether the key holds what the caller was shown last. */
bool script_seen_is(const struct script_run *r, const struct script_state *s);
/* may_touch(): the outcome; *may says whether it is one. */
enum lock_outcome script_may_touch(const struct script_run *r, struct script_state *s, bool *may);

struct model_reply script_number(int64_t n);
struct model_reply script_plain(enum model_reply_kind kind);
struct model_reply script_text(const char *t);
/* What the command's success or refusal looks like. */
struct model_reply script_success(const struct script_run *r);
struct model_reply script_refusal(const struct script_run *r);
/* `s` may be NULL. */
struct model_envelope script_envelope(struct model_reply reply, enum lock_outcome outcome, const struct script_state *s,
                                      int64_t pttl_ms);

/* The command itself. */
struct model_reply script_command(struct script_run *r);
bool script_failed(const struct model_reply *reply);
/* bound(): the key's expiry, the rule's lease where it has none. */
int64_t script_bound(struct script_run *r, bool *leased);
void script_keep_guard(struct script_run *r, int64_t pttl);
/* A new lease for the attempt. */
struct script_state script_take(struct script_run *r, const struct script_state *s, const char *value, int64_t *pttl);
/* What is left of the guard record where no lease is live. */
void script_disown(struct script_run *r, const struct script_state *s);
/* The guard record follows what was changed within the lease; its expiry. */
int64_t script_follow(struct script_run *r, struct script_state *s, const char *value, bool anew);
/* The attempt's reply, for its repeat. */
void script_remember(struct script_run *r, const char *reply);
/* The lease is over, and that was the reply. */
void script_forget(struct script_run *r, const char *reply);

#endif
