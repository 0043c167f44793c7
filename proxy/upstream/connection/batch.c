/*
 * Requests that consist of several commands, from MULTI to EXEC, with a script among them or none, without requests of
 * others between them, although the connection is shared:
 *
 *      ──> MULTI  step  EVAL ...  step  EXEC
 *      <── +OK  +QUEUED  +QUEUED  +QUEUED  *3 ...
 *          └────────────┬────────────┘     └── the reply: reply.c
 *                  the leading ones: batch_take
 *
 * Of the leading replies only the first error is kept: a redirect, or the reason for an EXECABORT. If the node refuses
 * MULTI, each command has run by itself, and the reply of the middle command is delivered.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"
#include "proxy/upstream/script.h"

char *request_by_source(const struct upstream_request *r, size_t at, size_t *len) {
    static const char evalsha[] = "$7\r\nEVALSHA\r\n$40\r\n";
    const size_t sha1_len = 40;
    const char *end = r->bytes + r->len;
    const char *header_end = memchr(r->bytes + at, '\n', r->len - at);
    if (!header_end)
        return NULL;
    header_end++;
    const char *rest = header_end + sizeof(evalsha) - 1 + sha1_len + 2;
    if (rest > end || memcmp(header_end, evalsha, sizeof(evalsha) - 1) != 0)
        return NULL;

    const struct script *s = r->script;
    size_t cap = r->len + s->len + 64;
    char *bytes = memory_alloc(cap), *p = bytes;
    memcpy(p, r->bytes, (size_t)(header_end - r->bytes));
    p += header_end - r->bytes;
    p = resp_bulk_write(p, "EVAL", 4);
    p = resp_bulk_write(p, s->source, s->len);
    memcpy(p, rest, (size_t)(end - rest));
    p += end - rest;
    *len = (size_t)(p - bytes);
    invariant(*len <= cap, "%zu bytes in %zu", *len, cap);
    return bytes;
}

void batch_send(struct upstream_conn *c, struct upstream_request *r) {
    size_t len;
    char *bytes = !r->script || c->has_script || r->eval ? NULL : request_by_source(r, r->script_at, &len);
    c->has_script |= r->script != NULL;
    if (bytes) {
        r->eval = true;
        r->len = len;
        r->bytes = iobuf_append_held(&c->out, bytes, len, &r->chunk);
        memory_free(bytes);
        return;
    }
    r->bytes = iobuf_append_held(&c->out, r->bytes, r->len, &r->chunk);
}

static void keep_refusal(struct upstream_conn *c, const char *data, size_t len) {
    if (c->refusal.len > 0 && c->refused_at != c->led)
        return;
    c->refused_at = c->led;
    if (c->refusal.len + len <= REPLY_HELD_MAX)
        text_append(&c->refusal, data, len);
}

void batch_take(struct upstream_conn *c, struct upstream_request *r, const char *data, size_t len, bool last) {
    invariant(c->led < r->leading && r->conn == c, "leading reply %u of %u", c->led, r->leading);
    bool counts = r->multi_refused && c->led == r->leading / 2u;
    if (c->scan.type == '-')
        keep_refusal(c, data, len);
    if (last && c->led == 0 && c->scan.type == '-')
        r->multi_refused = true;
    c->led += last;
    if (!counts)
        return;
    r->streaming = true;
    r->ops->reply(r, data, len, false);
}

void batch_end(struct upstream_conn *c, bool executed) {
    c->has_script = c->has_script && executed;
    c->led = 0;
    text_clear(&c->refusal);
}

void upstream_script_unknown(struct upstream *u) {
    LIST_FOREACH(it, &u->conns)
    LIST_ENTRY(it, struct upstream_conn, link)->has_script = false;
}
