/*
 * What tracking.c (a lane, its messages) and tracking_ask.c (how a client comes to have one) share, and nobody else.
 */
#ifndef LOCKKEEPER_SESSION_TRACKING_PRIVATE_H
#define LOCKKEEPER_SESSION_TRACKING_PRIVATE_H

#include "proxy/session/client.h"

struct tracking {
    struct session *session; /* NULL until the nodes have agreed */
    uint32_t own;
    bool on, bcast, optin, optout;
    bool no_touch;
    bool reopen; /* BCAST: a connection is missing */
    uint64_t epoch;
    enum caching caching; /* for the next command */
    bool caching_new;
    uint64_t redirect; /* the client who is told; 0: this one */
    bool broken;       /* it is gone */
    struct text said;  /* REDIRECT's last command, as wish->command; may be empty */
    /* The lane that was used before, for what was read over it, and the one that has taken its place. */
    struct tracking *before, *after;
    unsigned befores;
};

/* A lane of its own that nobody has yet; the caller's until it is taken or freed. */
struct tracking *tracking_new(struct worker *w);
/* With those that it has replaced. */
void tracking_free(struct worker *w, struct tracking *t);
/* The session's from now on: its requests go over that lane. It had none, or has put it aside. */
void tracking_take(struct session *s, struct tracking *t);
/* Tells who is told that all that the client has cached may be stale, if it is tracking. */
void tracking_all_stale(struct tracking *t);

#endif
