/* Releases under a rule with `wait`: the lock's queue is told when a release is sent, so that the first waiting attempt
 * goes right behind it, and when a call has found the lock free. */
#include "proxy/lock/waiting.h"
#include "proxy/session/locks/lock_call.h"

uint64_t lock_handover_way(const struct upstream_lane *lane) {
    return (uint64_t)lane->login << 32 | (uint64_t)lane->dedicated << 8 | lane->protocol;
}

void lock_handover_sent(struct session *s, struct lock_call *l) {
    bool may = l->plan.claim_len > 0 || (l->plan.right != RIGHT_CLAIM && l->plan.right != RIGHT_SUSPECT);
    struct worker *w = s->worker;
    if (may && s->lane.dedicated == 0)
        l->handed = waiting_handover(w->shared->waiting, &l->plan.key, l->plan.hash, w->index,
                                     lock_handover_way(&s->lane), worker_steady_ms(w), &w->waits->waited.here_ms);
}

void lock_handover_learnt(struct worker *w, const struct lock_call *l, const struct lock_result *r) {
    /* The script does not know the fence of a release that was repeated. */
    uint64_t fence = r->fence || r->outcome != LOCK_RELEASED ? r->fence : l->plan.claim_fence;
    if (r->outcome == LOCK_RELEASED || r->outcome == LOCK_FREE ||
        (r->outcome != LOCK_UNKNOWN && r->outcome != LOCK_NOT_SENT && r->pttl_ms == PTTL_GONE))
        waiting_freed(w->shared->waiting, &l->plan.key, l->plan.hash, fence, l->handed);
}
