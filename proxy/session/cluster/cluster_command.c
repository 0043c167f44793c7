/*
 * CLUSTER, for cluster clients. In front of a cluster the proxy presents itself as a cluster of one master with all
 * slots. Its address is the one that the client connected to (or cluster-announce-ip, cluster-announce-port). So a
 * cluster client sends everything to the proxy, which routes it. In front of a standalone, Redis itself answers, and
 * nothing comes here. The replies have Redis 7.0's structure.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/core/session.h"

enum { ID_LEN = 40, BUS_PORT_OFFSET = 10000 };

/* ---- the proxy's identity ------------------------------------------------------------------------ */

struct self {
    char host[256];
    int port;
    char id[ID_LEN + 1];
};

/* The address is the one that the client connected to. For a client of the unix socket only the TCP port is known. */
static struct self self_of(const struct session *s) {
    const struct config *c = s->worker->config;
    struct self self = {.host = "127.0.0.1", .port = (int)c->port};
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof(at);
    if (s->reached)
        at = *s->reached;
    else if (getsockname(s->fd, (struct sockaddr *)&at, &len) != 0)
        at.ss_family = AF_UNSPEC;
    if (at.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)&at;
        inet_ntop(AF_INET, &in->sin_addr, self.host, sizeof(self.host));
        self.port = ntohs(in->sin_port);
    } else if (at.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)&at;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr);
        inet_ntop(mapped ? AF_INET : AF_INET6, &in6->sin6_addr.s6_addr[mapped ? 12 : 0], self.host, sizeof(self.host));
        self.port = ntohs(in6->sin6_port);
    }
    if (c->cluster_announce_ip)
        snprintf(self.host, sizeof(self.host), "%s", c->cluster_announce_ip);
    int port = (int)(s->tls ? c->cluster_announce_tls_port : c->cluster_announce_port);
    if (port)
        self.port = port;
    /* a node's id has 40 digits: it is the process's UUID without dashes, followed by its beginning */
    const char *from = s->worker->shared->process_id, *p = from;
    for (size_t i = 0; i < ID_LEN; p++) {
        if (*p == '\0')
            p = from;
        if (*p != '-')
            self.id[i++] = *p;
    }
    return self;
}

/* ---- answers ------------------------------------------------------------------------------------- */

static void put_map(const struct session *s, struct text *out, int pairs) {
    bool resp3 = s->lane.protocol == 3;
    text_printf(out, "%c%d\r\n", resp3 ? '%' : '*', resp3 ? pairs : 2 * pairs);
}

static enum dispatch_result answer_page(struct session *s, const struct request_class *k, struct text *page) {
    struct text reply = {0};
    append_page(&reply, s->lane.protocol == 3, page->data, page->len);
    text_clear(page);
    return session_answer_text(s, k->command, &reply);
}

static enum dispatch_result answer_slots(struct session *s, const struct request_class *k) {
    struct self self = self_of(s);
    struct text reply = {0};
    text_printf(&reply, "*1\r\n*3\r\n:0\r\n:%d\r\n*4\r\n$%zu\r\n%s\r\n:%d\r\n$%d\r\n%s\r\n", SLOT_COUNT - 1,
                strlen(self.host), self.host, self.port, ID_LEN, self.id);
    put_map(s, &reply, 0); /* the other names of the node: none */
    return session_answer_text(s, k->command, &reply);
}

static enum dispatch_result answer_shards(struct session *s, const struct request_class *k) {
    struct self self = self_of(s);
    struct text reply = {0};
    text_printf(&reply, "*1\r\n");
    put_map(s, &reply, 2);
    text_printf(&reply, "$5\r\nslots\r\n*2\r\n:0\r\n:%d\r\n$5\r\nnodes\r\n*1\r\n", SLOT_COUNT - 1);
    put_map(s, &reply, 7);
    text_printf(&reply,
                "$2\r\nid\r\n$%d\r\n%s\r\n$4\r\nport\r\n:%d\r\n$2\r\nip\r\n$%zu\r\n%s\r\n"
                "$8\r\nendpoint\r\n$%zu\r\n%s\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
                "$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline\r\n",
                ID_LEN, self.id, self.port, strlen(self.host), self.host, strlen(self.host), self.host);
    return session_answer_text(s, k->command, &reply);
}

static enum dispatch_result answer_nodes(struct session *s, const struct request_class *k) {
    struct self self = self_of(s);
    struct text page = {0};
    text_printf(&page, "%s %s:%d@%d myself,master - 0 0 0 connected 0-%d\n", self.id, self.host, self.port,
                self.port + BUS_PORT_OFFSET, SLOT_COUNT - 1);
    return answer_page(s, k, &page);
}

static enum dispatch_result answer_info(struct session *s, const struct request_class *k) {
    unsigned covered = upstream_slots_covered(s->worker->upstream);
    struct text page = {0};
    text_printf(&page,
                "cluster_state:%s\r\ncluster_slots_assigned:%u\r\ncluster_slots_ok:%u\r\ncluster_slots_pfail:0\r\n"
                "cluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:1\r\ncluster_current_epoch:0\r\n"
                "cluster_my_epoch:0\r\ncluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n"
                "total_cluster_links_buffer_limit_exceeded:0\r\n",
                covered == SLOT_COUNT ? "ok" : "fail", covered, covered);
    return answer_page(s, k, &page);
}

static enum dispatch_result answer_myid(struct session *s, const struct request_class *k) {
    struct self self = self_of(s);
    struct text reply = {0};
    text_bulk(&reply, self.id, ID_LEN);
    return session_answer_text(s, k->command, &reply);
}

static enum dispatch_result answer_keyslot(struct session *s, const struct request_class *k) {
    char number[RESP_HEADER_MAX];
    size_t len;
    const char *key = class_arg(k, 2, &len);
    return session_answer(s, k->command, number, resp_header_write(number, ':', slot_of_key(key, len)));
}

/* Answers `reply`, if argument 2 is the proxy's own id or missing; else the error. */
static enum dispatch_result answer_about(struct session *s, const struct request_class *k, const char *reply) {
    struct self self = self_of(s);
    size_t len = ID_LEN;
    const char *id = k->request->argc > 2 ? class_arg(k, 2, &len) : self.id;
    if (len == ID_LEN && memcmp(id, self.id, len) == 0)
        return session_answer(s, k->command, reply, strlen(reply));
    return session_refuse(s, k->command, "ERR Unknown node %.*s", (int)len, id);
}

/* ---- forwarded to the slot's node ---------------------------------------------------------------------- */

static int slot_argument(const struct request_class *k) {
    int64_t slot;
    return request_arg_integer(k->request, k->bytes, 2, &slot) && slot >= 0 && slot < SLOT_COUNT ? (int)slot : -1;
}

/* Forwards a subcommand to the node of its slot, or to any node if it has none. */
static enum dispatch_result forward(struct session *s, const struct request_class *k) {
    return class_pass(s, k, k->request->argc > 2 ? slot_argument(k) : SLOT_NONE);
}

static enum dispatch_result forward_keys(struct session *s, const struct request_class *k) {
    return keyspace_forward(s, k, slot_argument(k));
}

/* ---- the way ------------------------------------------------------------------------------------------ */

static const struct subcommand {
    const char *name;
    size_t argc;
    enum dispatch_result (*serve)(struct session *s, const struct request_class *k);
    const char *about; /* with no `serve`: the reply of answer_about */
} SUBCOMMANDS[] = {
    {"slots", 2, .serve = answer_slots},
    {"shards", 2, .serve = answer_shards},
    {"nodes", 2, .serve = answer_nodes},
    {"info", 2, .serve = answer_info},
    {"myid", 2, .serve = answer_myid},
    {"links", 2, .about = "*0\r\n"},
    {"keyslot", 3, .serve = answer_keyslot},
    {"replicas", 3, .about = "*0\r\n"},
    {"slaves", 3, .about = "*0\r\n"},
    {"count-failure-reports", 3, .about = ":0\r\n"},
    {"countkeysinslot", 3, .serve = forward},
    {"getkeysinslot", 4, .serve = forward_keys},
    {"myshardid", 2, .serve = forward}, /* since 7.2 */
    {"help", 2, .serve = forward},
};
/* Subcommands that change the cluster. */
static const char *const CHANGES[] = {"addslots", "addslotsrange", "bumpepoch",        "delslots", "delslotsrange",
                                      "failover", "flushslots",    "forget",           "meet",     "replicate",
                                      "reset",    "saveconfig",    "set-config-epoch", "setslot",  NULL};

static const struct subcommand *subcommand_of(const struct request_class *k) {
    for (size_t i = 0; i < ARRAY_SIZE(SUBCOMMANDS); i++)
        if (class_arg_is(k, 1, SUBCOMMANDS[i].name))
            return &SUBCOMMANDS[i];
    return NULL;
}

const char *cluster_wrong(const struct request_class *k, char *out, size_t size) {
    const struct subcommand *sub = subcommand_of(k);
    char word[129];
    if (sub ? sub->argc == k->request->argc : class_arg_choice(k, 1, CHANGES) >= 0)
        return NULL;
    if (sub)
        snprintf(out, size, "ERR wrong number of arguments for 'cluster|%s' command", sub->name);
    else
        snprintf(out, size, "ERR unknown subcommand '%s'. Try CLUSTER HELP.",
                 request_arg_text(k->request, k->bytes, 1, word, sizeof(word)));
    return out;
}

enum dispatch_result cluster_dispatch(struct session *s, const struct request_class *k) {
    char text[CLUSTER_WRONG_MAX];
    const char *wrong = cluster_wrong(k, text, sizeof(text));
    const struct subcommand *sub = subcommand_of(k);
    if (wrong)
        return session_refuse(s, k->command, "%s", wrong);
    if (sub)
        return sub->serve ? sub->serve(s, k) : answer_about(s, k, sub->about);
    return session_refuse(s, k->command,
                          "ERR CLUSTER %s changes the cluster, which lockkeeper does not do; send it to a node",
                          CHANGES[class_arg_choice(k, 1, CHANGES)]);
}
