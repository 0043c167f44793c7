/*
 * Fenced data whose lock is in another slot of the cluster.
 *
 *      SET stock:1 5 ──> fence.lua in the lock's slot ──┬─ FENCED: nothing is written
 *                                                       └─ the lock's fence ──> fence.lua in the data's slot
 *      FENCED, or the command's reply <── the watermark beside the data: refused if it is greater, else raised <──┘
 *
 * S7: no step covers both slots. The look at the lock's slot refuses a session that has lost the lock, as soon as
 * another session has acquired it. An acquisition may come between the look and the write. Then the watermark refuses
 * the write, once the new holder has written data of this lock to the slot.
 */
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/fences/private.h"

#define NO_SENSE "-UPSTREAM the answer about the lock of fenced data makes no sense; nothing was written\r\n"

struct fence_looks {
    struct session *session; /* NULL: the session no longer needs the answers */
    fence_looked_fn done;
    void *arg;
    size_t left;       /* how many answers are still to come, plus 1 until all looks are sent */
    struct text error; /* the first error, for the client; empty: there is none */
};

/* One look under way. */
struct look {
    struct request_owner owner; /* must be the first field */
    struct fence_looks *looks;
    struct fence_question *question;
    size_t at; /* the index of the key in the question */
};

bool fence_is_elsewhere(const struct fence_question *q) {
    return q->here < q->count;
}

struct fence_looks *fence_looks_new(struct session *s, fence_looked_fn done, void *arg) {
    struct fence_looks *l = memory_zalloc(sizeof(*l));
    l->session = s;
    l->done = done;
    l->arg = arg;
    l->left = 1;
    return l;
}

/* Also called for each answer: the looks that are being sent count as one. */
void fence_looks_go(struct fence_looks *l) {
    invariant(l->left > 0, "more answers come than looks were sent");
    if (--l->left > 0)
        return;
    if (l->session)
        l->done(l->arg, l->error.len > 0 ? l->error.data : NULL, l->error.len);
    text_clear(&l->error);
    memory_free(l);
}

void fence_looks_forget(struct fence_looks *l) {
    if (l)
        l->session = NULL;
}

/* Takes an answer: the fence of the lock's last lease, or an error that forbids the write. */
static void look_read(const struct look *look, const struct call_end *end) {
    struct fence_looks *l = look->looks;
    struct asked *a = &look->question->keys[look->at];
    invariant(look->at >= look->question->here && look->at < look->question->count, "look %zu of %zu", look->at,
              look->question->count);
    struct resp_item item;
    const char *p = end->reply;
    int64_t fence;
    if (end->error)
        text_printf(&l->error, "-UPSTREAM the lock of fenced data can't be looked at; nothing was written: %s\r\n",
                    end->error);
    else if (end->reply[0] == '-')
        fence_reply_from(l->session, look->question, look->at, end->reply, end->len, &l->error);
    else if (!resp_item_read(&p, p + end->len, &item) || item.type != '$' || item.null ||
             !resp_integer(item.str, item.len, &fence) || fence <= 0)
        text_printf(&l->error, NO_SENSE);
    else if (a->writing.how == WRITER_NONE)
        a->mark = (uint64_t)fence;
}

static void look_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct look *look = REQUEST_OWNER(r, struct look);
    struct fence_looks *l = look->looks;
    if (l->session && l->error.len == 0)
        look_read(look, end);
    request_disown(r);
    memory_free(look);
    request_reply(r, "", 0, true);
    fence_looks_go(l);
}

void fence_looks_add(struct fence_looks *l, struct fence_question *q) {
    struct worker *w = l->session->worker;
    struct upstream_lane lane = l->session->lane;
    invariant(l->left > 0 && q->here <= q->count, "%zu locks of %zu are here", q->here, q->count);
    lane.dedicated = 0; /* the dedicated connection may be in MULTI */
    for (size_t i = q->here; i < q->count; i++) {
        const struct asked *a = &q->keys[i];
        struct request *r = request_internal(w);
        struct look *look = memory_zalloc(sizeof(*look));
        look->looks = l;
        look->question = q;
        look->at = i;
        l->left++;
        request_own(r, &look->owner, &request_owner_silent);
        r->call.done = look_done;
        r->call.up.script = script_get(SCRIPT_FENCE);
        fence_look_build(l->session, q, i);
        call_submit_lane(&r->call, slot_of_key(q->names.data + a->lock, a->lock_len), &lane, w->build.data,
                         w->build.len);
    }
}
