/*
 * Places where a request's password may be:
 *
 *      worker's scratch, session->input   overwritten here, and where bytes move from one to the other
 *      chunks on their way to nodes       marked here, overwritten when they are free (iobuf.h)
 *      commands queued by MULTI           overwritten when they are freed
 *      logins                             upstream/login.c's, while a session is logged in with them
 *
 * The buffers belong to the worker or the session, so this file may write to them, although requests take them as
 * constant.
 */
#include <string.h>

#include "proxy/session/core/private.h"
#include "proxy/session/core/secret.h"

void secret_overwrite(const char *data, size_t len) {
    if (len > 0 && len <= WORKER_SCRATCH)
        explicit_bzero((char *)(uintptr_t)data, len);
}

void secret_forget(struct session *s, const struct resp_request *r, const char *bytes) {
    if (s->state == SESSION_CLOSED) /* the buffer is gone, or its bytes were overwritten */
        return;
    s->worker->secret = true;
    for (size_t i = 1; i < r->argc; i++)
        secret_overwrite(bytes + r->argv[i].off, r->argv[i].len);
    if (list_empty(&s->requests))
        return;
    struct request *request =
        LIST_ENTRY(s->requests.prev, struct request, link); /* this request's, or one that ends sooner */
    upstream_secret(&request->call.up);
    LIST_FOREACH(it, &request->parts)
    upstream_secret(&LIST_ENTRY(it, struct call, link)->up);
}
