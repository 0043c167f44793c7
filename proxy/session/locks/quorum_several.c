/*
 * A rule's `quorum yes` and commands that acquire several locks, or none (MSETNX, MSETEX NX): witnesses are asked about
 * each lock. If they refuse one, all are released again.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/sending.h"

struct several;

struct several_part {
    struct several *all;
    struct lock_call *lock;
    bool confirmed;
};

/* The locks of a command while witnesses are asked, and while they are released again. */
struct several {
    struct worker *worker;
    lock_vote_fn done;
    void *arg;
    size_t due; /* of how many locks an answer is due, and 1 while they are being asked for */
    bool refused, undoing;
    struct lock_refusal why; /* the first refusal */
    size_t count;
    struct several_part parts[];
};

static void part_over(void *arg);

static void undo_confirmed(struct several *v) {
    v->undoing = true;
    v->due = 1;
    for (size_t i = 0; i < v->count; i++)
        if (v->parts[i].confirmed) {
            v->due++;
            lock_undo(v->worker, v->parts[i].lock, part_over, v);
        }
    part_over(v);
}

static void part_over(void *arg) {
    struct several *v = arg;
    invariant(v->due > 0, "witnesses decide twice about one of several locks");
    if (--v->due > 0)
        return;
    if (v->refused && !v->undoing) {
        undo_confirmed(v);
        return;
    }
    v->done(v->arg, v->refused ? &v->why : NULL);
    memory_free(v);
}

static void heard(void *arg, const struct lock_refusal *why) {
    struct several_part *part = arg;
    struct several *v = part->all;
    part->confirmed = !why;
    if (why && !v->refused)
        v->why = *why;
    v->refused |= why != NULL;
    part_over(v);
}

void lock_vote_all(struct worker *w, struct lock_call *first, const struct lock_result *r, lock_vote_fn done,
                   void *arg) {
    size_t count = 0;
    struct lock_call *l = first;
    if (!first->clobbers || lock_call_next(first) == first) {
        lock_vote(w, first, r, done, arg);
        return;
    }
    do
        count++;
    while ((l = lock_call_next(l)) != first);
    struct several *v = memory_zalloc(sizeof(*v) + count * sizeof(v->parts[0]));
    v->worker = w;
    v->done = done;
    v->arg = arg;
    v->count = count;
    v->due = 1;
    for (size_t i = 0; i < count; i++, l = lock_call_next(l)) {
        v->parts[i] = (struct several_part){.all = v, .lock = l};
        v->due++;
        lock_vote(w, l, r, heard, &v->parts[i]);
    }
    part_over(v);
}
