/*
 * What all workers share: the options, the lock engine, the advisor, a few counts. Made by the program, and borrowed by
 * all threads.
 */
#ifndef LOCKKEEPER_SESSION_CORE_SHARED_H
#define LOCKKEEPER_SESSION_CORE_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/text.h"
#include "proxy/upstream/upstream.h"

struct advisor;
struct lock_engine;
struct tls_context;
struct waiting;
struct worker;

/* What the sessions need of the configuration; borrowed by all workers. What is atomic may change at a reload, all else
 * is constant while they run. */
struct session_options {
    _Atomic int64_t bulk_max;
    _Atomic int64_t query_buffer_limit;
    _Atomic int64_t output_limit_hard, output_limit_soft, output_limit_soft_ms;
    _Atomic int64_t output_pubsub_hard, output_pubsub_soft, output_pubsub_soft_ms; /* of who subscribes: beside them */
    _Atomic int64_t timeout_ms;                                                    /* idle clients; 0: never */
    _Atomic int64_t keepalive_s;                                                   /* 0: off */
    _Atomic int64_t maxclients;                                                    /* of the whole process */
    _Atomic int64_t upstream_timeout_ms; /* as threads find it when they are woken; 0: as it was */
    _Atomic(const char *) requirepass;   /* NULL: none, from the start to the end; read under password_mutex */
    const char *unix_path;               /* the unix socket's, which had another name when it was made; NULL: none */
    uint32_t stranger_login;             /* of who has not logged in: the proxy's, 0, or UPSTREAM_LOGIN_STRANGER */
    char *const *admin_users;            /* who may use PROXY whatever Redis says; borrowed */
    size_t admin_user_count;
    unsigned identity; /* IDENTITY_ bits */
    const char *version;
    const char *process_id; /* this process's UUID */
    int64_t started_ms;     /* wall clock */
    unsigned threads;
    int port;
    const char *announce_ip;          /* what CLUSTER SLOTS and its kin show; NULL: where the client connected to */
    atomic_int announce_port;         /* 0: the same */
    atomic_int announce_tls_port;     /* the same for who came over TLS */
    struct tls_context *tls;          /* borrowed; NULL: there is no TLS socket */
    _Atomic int64_t tls_handshake_ms; /* tls-handshake-timeout */
    bool monitored;                   /* somebody may read metrics */
    const char *upstream_text;        /* "cluster 127.0.0.1:7000 ...", for PROXY INFO */
};

enum { IDENTIFY_ADDRESS = 1, IDENTIFY_USER = 2, IDENTIFY_NAME = 4, IDENTIFY_PORT = 8 };

/* Words behind PROXY, and bytes that those may have which are kept while the command is under way. */
enum { PROXY_WORDS_MAX = 16, PROXY_WORD_MAX = 256 };

/* Where PROXY WATCH's lines come from: what happens is the application's to know. */
struct watch_source {
    void *arg;
    /* `wake` is called, from any thread, when there may be more lines, until deaf: it must only take a note. */
    void *(*listen)(void *arg, void (*wake)(void *wake_arg), void *wake_arg);
    void (*deaf)(void *arg, void *ear);
    /* Begins to watch for what the words behind WATCH say, while the thread listens. NULL: `error` got why. */
    void *(*begin)(void *arg, const char *const *words, const size_t *lens, size_t count, struct text *error);
    void (*end)(void *watch);
    /* Calls fn with some of the lines that are new, without their ends; returns whether there are more now. */
    bool (*lines)(void *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg);
};

/* What all workers share. Owned by main. */
struct proxy_shared {
    struct session_options options;
    pthread_mutex_t password_mutex; /* of the bytes of options.requirepass */
    atomic_uint restart_needed;     /* directives that have changed at a reload and need one */
    struct upstream_config upstream;
    struct lock_engine *engine;
    struct advisor *advisor;
    struct waiting *waiting; /* locks/wait.c's; NULL: no worker has been made */
    struct worker **workers; /* options.threads of them */
    atomic_uint_fast64_t next_session;
    atomic_uint_fast64_t clients; /* of all workers, for maxclients */
    atomic_uint accepting;        /* workers whose listeners are open */
    bool embedded;                /* the node is a private redis-server, which is started again when it ends */
    atomic_uint embedded_ends;    /* how often it has ended */
    atomic_uint embedded_lost;    /* leases that it held then */
    atomic_uint evictions;        /* evictions.c's */
    atomic_int_fast64_t came_ms;  /* when a session last came to its identity */
    atomic_int_fast64_t paused;   /* of these, that wait for the end of a CLIENT PAUSE */
    /* Reloads the configuration: called from a worker's thread when an operator asks for it; may be NULL. False: it is
     * wrong, and the log has it. True: `said` (of `size`) has the names of changed directives that need a restart. */
    bool (*reload)(void *arg, char *said, size_t size);
    void *reload_arg;
    /* Runs the PROXY subcommands that only show something: appends the reply of words[0] words[1] ... as RESP; false if
     * it knows no such subcommand. Called in the worker's thread. */
    bool (*admin)(void *arg, struct worker *w, const char *const *words, const size_t *lens, size_t count, bool resp3,
                  struct text *reply);
    void *admin_arg;
    const struct watch_source *watch; /* NULL: there is nothing to be watched */
};

#endif
