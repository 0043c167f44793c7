/*
 * What the files of proxy/ share: how the process starts, reloads, shows itself and ends.
 */
#pragma once

#include <ev.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "proxy/admin/admin.h"
#include "proxy/config/config.h"
#include "proxy/net/tls.h"
#include "proxy/session/core/session_worker.h"
#include "proxy/worker/worker.h"

/* ---- listen.c ---- */

#define HANDED_SOCKETS "LOCKKEEPER_HANDED"
#define HANDED_PATH    "LOCKKEEPER_HANDED_PATH"
#define HANDED_MARK    "LOCKKEEPER_HANDED_MARK"  /* see worker/same_redis.c; empty: there is none */
#define HANDED_BOARD   "LOCKKEEPER_HANDED_BOARD" /* base/handed_board.h: its descriptor, behind the sockets; 0: none */
/* What the new process writes to the pipe: it accepts clients; its Redis is another one, so let the clients go. */
#define HANDED_READY  '\0'
#define HANDED_LET_GO 'L'
/* A letter for each use of a socket (enum socket_use); a capital if systemd has passed it. */
#define HANDED_LETTERS "pPtTaA"

enum socket_use { SOCKET_PLAIN, SOCKET_TLS, SOCKET_ADMIN };

/* A listening socket that was passed to this process. */
struct handed_socket {
    int fd;
    enum socket_use use;
    bool managed; /* from systemd, which also keeps it open */
    bool taken;   /* in use in this process */
};

struct inherited {
    struct handed_socket *sockets;
    size_t count;
    bool managed;               /* some are systemd's: then the addresses in the configuration are not opened */
    char *path;                 /* the path of the predecessor's unix socket; NULL: none */
    char *mark;                 /* what the predecessor has written to its Redis; NULL: nothing */
    struct handed_board *board; /* the numbers of the process that leaves; NULL: there are none */
    int predecessor;            /* descriptor of the process that waits until clients are accepted; -1: none */
};

/* Reads the variables and removes them from the environment, so that programs started from here get no sockets. */
void inherit_read(struct inherited *in);
/* Closes the sockets that were not taken. Removes the file of the predecessor's unix socket if the path has changed. */
void inherit_close_rest(struct inherited *in);
/* Tells the predecessor HANDED_READY or HANDED_LET_GO. From any thread; at most once. */
void inherit_tell(struct inherited *in, char word);
/* Frees the set, but not the sockets that were taken. */
void inherit_free(struct inherited *in);

struct listen_claim {
    struct sockaddr_storage address; /* this process listens there */
    const char *directive;           /* "port", "tls-port" */
};

struct listen_set {
    bool trial; /* only checks; no socket stays open */
    struct worker_socket *sockets;
    size_t count, threads;
    int admin_fd;                /* of admin-bind x admin-port; -1: none */
    struct inherited *inherited; /* sockets to use before others are opened; borrowed */
    const char *unix_path;       /* NULL: no unix socket, or it is systemd's */
    ino_t unix_inode;            /* of the unix socket's file */
    struct listen_claim *claims;
    size_t claim_count;
    struct text text; /* the addresses, "127.0.0.1:6380, unix:/run/..." */
};

/* Opens bind x port and bind x tls-port for each thread (SO_REUSEPORT with several), unixsocket, and the admin port.
 * Inherited sockets (borrowed) are used first; if systemd has passed sockets, only these for clients. The workers own
 * the descriptors of clients, the caller admin_fd. False: all errors were added to `errors`, without those that follow
 * from others. trial: only checks; a port in use is no error then, since a proxy of this configuration may use it. */
bool listen_open(struct listen_set *set, const struct config *config, struct inherited *inherited, bool trial,
                 struct config_errors *errors);
/* Whether another process also listens on one of the addresses (SO_REUSEPORT), or has replaced the unix socket. Before
 * the workers close them. */
bool listen_has_rival(const struct listen_set *set);
/* Frees the set (not the descriptors), and removes this process's unix socket's file, unless it was `handed` on. */
void listen_close(struct listen_set *set, bool handed);

/* ---- live.c ---- */

enum secure_side { SECURE_CLIENTS, SECURE_NODES, SECURE_WITNESSES, SECURE_SIDES };
struct secure {
    struct tls_context *side[SECURE_SIDES]; /* NULL: plain */
};

/* Loads the files that the configuration names, and overwrites its passphrases. False: all errors were added to
 * `errors`, and nothing was kept. */
bool secure_load(struct secure *s, struct config *config, struct config_errors *errors)
    __attribute__((warn_unused_result));
void secure_clear(struct secure *s);

/* Tries each step of a start, and leaves nothing behind. All errors are added to `errors`, without those that follow
 * from others. `ports` false: sockets were passed to the process, and ports are not tried. True if there is no error at
 * all. */
bool live_check(const struct config *config, bool ports, struct config_errors *errors);
/* Reports each host name of upstream and witness that does not resolve here and now. */
void live_look_up(const struct config *config, void (*tell)(const char *text));
/* Raises the limit of descriptors to the number that maxclients and the nodes need. If the system permits fewer, fewer
 * clients are allowed (shared->maxclients), as in Redis. Called at the start, and when a reload changes maxclients. */
void live_raise_limit(struct proxy_shared *shared, const struct config *config, int64_t maxclients);

struct live {
    pthread_mutex_t mutex; /* guards the following fields */
    int argc;
    char **argv;
    const struct config *config;           /* in force; a reload replaces it */
    char *switched;                        /* the upstream's address since PROXY SWITCH; NULL: there was none */
    const struct config *witnesses_before; /* has the witnesses before their last change; NULL: there was none */
    int64_t witnesses_again_ms;            /* when there may be another change */
    struct secure *secure;
    struct proxy_shared *shared;
};

/* Borrows everything but the configuration, to which it takes a reference. */
void live_init(struct live *l, int argc, char **argv, const struct config *config, struct secure *secure,
               struct proxy_shared *shared);
void live_clear(struct live *l);
/* Reads the configuration anew, and logs the result. False: there was an error, and nothing has changed. True: `said`
 * (NULL: not wanted) gets the names of the changed directives that need a restart, separated by blanks, as many as
 * fit. Any thread may call it; shared->reload is this function, with the struct live as its argument. */
bool live_reload(void *l, char *said, size_t size);
/* PROXY SWITCH: reads the configuration anew, and writes the address of its `upstream standalone`. NULL, or the error,
 * static. live_switched notes that the address is the upstream now, and reloads. Any thread may call them. */
const char *live_next_upstream(void *l, char *address, size_t size);
void live_switched(void *l, const char *address);
/* Reports the directives that match the report's pattern, and their values in force. From any thread. */
void live_show(void *l, const struct report *report);

/* ---- own_password.c ---- */

/* Asks for the passwords, and sets the proxy's logins. A command gets 30 s; at a reload the thread runs it later.
 * False: `errors` says why not. */
bool own_password_ask(const struct config *config, bool reload, struct config_errors *errors);
/* Has the thread, if there is a login, ask by this configuration, to which it takes a reference. */
void own_password_watch(const struct config *config, bool reloaded);
/* Ends the thread; a command that runs is killed. */
void own_password_end(void);

/* ---- embedded.c ---- */

struct embedded;

struct embedded_role {
    const char *directive;                     /* for errors */
    const char *name;                          /* for the log: "The embedded Redis" */
    void (*ended)(void *arg, const char *how); /* called when it has ended by itself: "it was killed by signal 9" */
};

/* Starts redis-server (found by PATH), waits until it answers, and adds it to the front of `servers` (NULL: none yet).
 * Returns its address, "unix:/tmp/.../redis.sock", borrowed, or NULL: `error` has one line. The server ends with the
 * process. `role` is borrowed. embedded_pid is of the first server; the functions below act on all. */
const char *embedded_start(struct embedded **servers, const struct embedded_role *role, char *error, size_t size);
int embedded_pid(const struct embedded *e);
/* Watches them in the thread that has started them, which must live as long. Whenever a server ends, its role's `ended`
 * gets `arg` and the reason, and it is started again, empty, at the same address, after growing pauses. */
void embedded_watch(struct embedded *e, struct ev_loop *loop, void *arg);
/* Stops watching, before the loop is freed. NULL: there are none. */
void embedded_unwatch(struct embedded *e);
/* Stops the servers and removes their folders. NULL: there are none. */
void embedded_stop(struct embedded *e);

/* ---- ending.c ---- */

struct ending {
    /* Set by the program, which owns them. */
    struct proxy_shared *shared;
    const struct listen_set *listeners;
    void (*close_pages)(void *arg); /* ends the HTTP server */
    void *arg;
    struct embedded *embedded; /* NULL: none */
    char **argv;
    /* The state. */
    pid_t successor;      /* the new process, until it is ready; else 0 */
    int pipe;             /* what it reports */
    struct ev_io word;    /* of the pipe */
    struct ev_timer late; /* the new process is not ready in time */
    bool leaving, stopping;
    bool marking;               /* a take-over begins: its mark is being written to Redis */
    bool handed;                /* another process has the sockets */
    struct handed_board *board; /* what this process tells the next one; NULL: nothing yet */
    int board_file;
};

/* Does what SIGTERM, SIGINT, SIGQUIT or SIGUSR2 asks for. */
void ending_signal(struct ending *e, int number);
/* Tells the next process, once a second, how many clients and leases this one still has. `last`: no more clients. */
void ending_tell(const struct ending *e, bool last);
/* sd_notify(3): sends "READY=1", ... (79 bytes at most) to the socket named by NOTIFY_SOCKET, if there is one.
 * notify_reloading: the process changes its configuration, until it sends READY=1. */
void notify_state(const char *format, ...) __attribute__((format(printf, 1, 2)));
void notify_reloading(void);

/* ---- monitor_feed.c: --advise and --advise-from ---- */

/* Listens to all masters for `for_ms`; reads a file ("-": standard input). Both print the report on standard output and
 * errors on standard error. On SIGINT and SIGTERM they end early, with the report so far. `rules` are the rules to
 * compare patterns with. The exit status is 1 if MONITOR could not begin anywhere, or the file can't be read. */
int monitor_feed(const struct upstream_config *upstream, const struct lock_rules *rules, int64_t for_ms, uint64_t seed);
int monitor_feed_file(const char *path, const struct lock_rules *rules, uint64_t seed);
