/*
 * What all workers share: facts of the process, the lock engine, the observer, some counts. The program owns it; all
 * threads borrow it. Each worker points to the configuration itself: session_worker.h.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/text.h"
#include "proxy/upstream/upstream.h"

struct observer;
struct permit_ledger;
struct slowlog;
struct latency;
struct lock_engine;
struct handed_board;
struct incident_watch;
struct incidents;
struct incidents_ear;
struct tls_context;
struct waiting;
struct worker;

/* The most arguments of PROXY, and the bytes of an argument that are kept while the command runs. */
enum { PROXY_WORDS_MAX = 16, PROXY_WORD_MAX = 256 };

/* The source of PROXY WATCH's lines. Only the application knows the incidents. */
struct watch_source {
    struct incidents *incidents;
    const char *(*kinds)(size_t i); /* the names of the kinds of incidents, from 0 on; NULL after the last */
    /* Until `deaf`, `wake` is called, from any thread, when there may be more lines: it must only set a flag. */
    struct incidents_ear *(*listen)(struct incidents *i, void (*wake)(void *arg), void *arg);
    void (*deaf)(struct incidents *i, struct incidents_ear *ear);
    /* Begins a watch for the arguments of WATCH, while the thread listens. NULL: `error` gets the reason. */
    struct incident_watch *(*begin)(struct incidents *i, const char *const *words, const size_t *lens, size_t count,
                                    const char *(*kinds)(size_t i), struct text *error);
    void (*end)(struct incident_watch *watch);
    /* Calls fn with some of the new lines, without their ends; returns whether there are more now. */
    bool (*lines)(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg);
};

/* What all workers share. Owned by main. */
struct proxy_shared {
    const char *version;
    const char *process_id; /* this process's UUID */
    int64_t started_ms;     /* wall clock */
    unsigned threads;
    const char *unix_path;   /* the unix socket's final path; it was bound under a temporary name. NULL: none */
    uint32_t stranger_login; /* the login of clients without login: the proxy's, 0, or UPSTREAM_LOGIN_STRANGER */
    struct tls_context *tls; /* borrowed; NULL: no TLS socket */
    struct tls_context *witness_tls; /* borrowed; NULL: plain */
    const char *upstream_text;       /* "cluster 127.0.0.1:7000 ...", as the process has started */
    _Atomic int64_t maxclients;      /* for the whole process; less than configured if descriptors are short */
    atomic_uint restart_needed;      /* how many directives have changed at a reload and need a restart */
    atomic_bool reload_failed;       /* the last reload failed; nothing was changed */
    atomic_int_fast64_t loaded_s;    /* when the configuration in force was read, since 1970 */
    atomic_int_fast64_t client_certificate_s,
        node_certificate_s; /* when the certificates expire, since 1970; 0: there is none */
    struct upstream_config upstream;
    struct lock_engine *engine;
    struct observer *observer;
    struct slowlog *slowlog;
    struct latency *latency;
    struct permit_ledger *permits; /* what sessions have taken from semaphores */
    struct waiting *waiting;       /* for waits/lock_wait.c; NULL: no worker was made yet */
    struct worker **workers;       /* one for each thread */
    atomic_uint_fast64_t next_session;
    atomic_uint_fast64_t clients; /* of all workers, to check maxclients */
    atomic_uint accepting;        /* workers whose listeners are open */
    bool reachable;               /* clients may come from other machines, as far as the listening sockets say */
    const char *space_mark;      /* for worker/same_redis.c: the mark of the process that leaves; NULL: there is none */
    struct handed_board *before; /* of the process that leaves; NULL: there was none */
    void (*let_go)(void *let_go_arg); /* tells the process that leaves to let its clients go */
    void *let_go_arg;
    atomic_bool lets_go;            /* this process lets its clients go: its leases get no last expiry */
    atomic_bool space_switches;     /* take-over switch: this process waits for the end of the process that leaves */
    atomic_int host_doubt;          /* for worker/same_redis.c */
    atomic_bool space_held;         /* no worker accepts clients, since the mark was not found yet */
    bool embedded;                  /* the node is a private redis-server, which is started again when it ends */
    atomic_uint embedded_ends;      /* how often it has ended */
    atomic_uint embedded_lost;      /* how many leases it held then */
    atomic_uint evictions;          /* for worker/questions.c */
    atomic_uint away;               /* for questions.c: how many processes have not followed, as far as is known */
    atomic_int_fast64_t came_ms;    /* when a session last got its identity */
    atomic_int_fast64_t paused;     /* how many requests wait for the end of a pause */
    atomic_uint pause_login;        /* the login of the session that sent PROXY PAUSE */
    atomic_int_fast64_t pause_mark; /* what PROXY PAUSE has written to Redis last of all; 0: nothing */
    /* Reloads the configuration; called from a worker's thread on an operator's request; may be NULL. False: it has
     * errors, which are in the log. True: `said` (of `size`) gets the names of changed directives that need a
     * restart. */
    bool (*reload)(void *arg, char *said, size_t size);
    /* For PROXY SWITCH: reads the address of the upstream in the configuration (NULL, or the error, static), and notes
     * that it is the upstream now. As reload. */
    const char *(*next_upstream)(void *reload_arg, char *address, size_t size);
    void (*switched)(void *reload_arg, const char *address);
    void *reload_arg;
    /* Runs the PROXY subcommands that only report: appends the reply to words[0] words[1] ... as RESP. False if it does
     * not know the subcommand. Called in the worker's thread. */
    bool (*admin)(void *arg, struct worker *w, const char *const *words, const size_t *lens, size_t count, bool resp3,
                  struct text *reply);
    void *admin_arg;
    const struct watch_source *watch; /* NULL: PROXY WATCH has no source */
};
