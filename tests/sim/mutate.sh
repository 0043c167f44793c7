#!/bin/bash
# Shows that the simulator would notice: breaks one check of the engine (or of the model's scripts) at a time in a copy
# of the sources, and expects a run to fail. Run by hand; takes some minutes. mutate.sh [NAME ...] runs only those.
set -u
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
STEPS=${STEPS:-6000000}
SEEDS=${SEEDS:-1 2 3}

# name | file | sed expression
MUTATIONS='
oldest-first|proxy/lock/attribute.c|s/return o->differ \&\& o->oldest_sighted ? o->oldest_sighted : o->oldest;/return o->newest_unended ? o->newest_unended : o->oldest;/
sightings-ignored|proxy/lock/attribute.c|s/return o->differ \&\& o->oldest_sighted ? o->oldest_sighted : o->oldest;/return o->oldest;/
foreign-claims|proxy/lock/attribute.c|s/        return c->peer == self;/        return true;/
other-clients|proxy/lock/attribute.c|s/        return c->peer->client == self->client;/        return true;/
connection-shares|proxy/lock/attribute.c|s/bool shared = owner != LOCK_OWNER_CONNECTION \&\& client_shares(.*;/bool shared = true;/
client-as-connection|proxy/lock/attribute.c|s/if (owner == LOCK_OWNER_CLIENT)/if (owner == LOCK_OWNER_ANY)/
closed-at-any-time|proxy/lock/attribute.c|s/ \&\& c->peer->closed \&\& c->peer->closed_at < self->id;/;/
loss-forgotten|proxy/lock/learn.c|s/    w->lost = true;/    w->lost = false;/
loser-adopts|proxy/lock/attribute.c|s/if (none_live \&\& (shared || (!lost_lately \&\& !may_acquire(plan->verb))))/if (none_live)/
acquirer-adopts|proxy/lock/attribute.c|s/(!lost_lately \&\& !may_acquire(plan->verb))/!lost_lately/
every-client-proven|proxy/lock/learn.c|s/if (c->peer == f->peer \&\& c->fence == f->result->fence \&\&/if (c->fence == f->result->fence \&\&/
release-is-proof|proxy/lock/learn.c|s/ \&\& !c->let_go)/)/
counter-uses-library|proxy/lock/attribute.c|s/if (!may_acquire(plan->verb))/if (true)/
not-set-aside|proxy/lock/attribute.c|s/        c->aside = true;/        c->aside = false;/
anyone-restores|proxy/lock/settle.c|s/    if (verb == LOCK_COUNT_DOWN)$/    if (true)/
refused-not-spent|proxy/lock/settle.c|/^static void settle_release/,/^}/s/^    spend(f, f->claim);/    if (released) spend(f, f->claim); else restore(f);/
late-claim-dropped|proxy/lock/attribute.c|s/c->end_ms + c->rule->claim_memory_ms/c->end_ms/
older-not-dropped|proxy/lock/settle.c|s/^        drop_older(f);/        ;/
auto-drops-older|proxy/lock/settle.c|s/    if (rule->owner == LOCK_OWNER_CONNECTION) {/    if (rule->owner != LOCK_OWNER_ANY) {/
used-claim-forgotten|proxy/lock/attribute.c|s/ || c->uses || c->asked)/)/
unsent-release-spent|proxy/lock/settle.c|/^static void restore/,/^}/s/    c->aside = false;/    spend(f, c); return;/
renews-for-nobody|proxy/lock/lease.c|s/if (!lease_owner_here(c) || now_ms/if (now_ms/
never-stops-renewing|proxy/lock/lease.c|s/ || now_ms >= c->granted_ms + c->rule->max_hold_ms) {/) {/
renews-in-vain|proxy/lock/lease.c|s/c->rule->renew == LOCK_RENEW_ALWAYS ||/true ||/
renews-too-late|proxy/lock/lease.c|s/since_ms + pttl_ms - c->period_ms \* 2 \/ 3/now_ms + c->period_ms \/ 3/
renews-once|proxy/lock/lease.c|/^void engine_renewed/,/^}/s/        c->asked = false;/        ;/
never-renews|proxy/lock/lease.c|s/^    c->renewing = wanted \&\&/    c->renewing = false \&\&/
claims-leak|proxy/lock/lease.c|s/    } else if (claim_is_over(c, now_ms)) {/    } else if (false) {/
witness-leaks|proxy/lock/lease.c|/^static void witness_due/,/^}/s/    if (now_ms < until) {/    if (true) {/
stale-token|tests/sim/scripts.c|s/if (is(s->lease_token, r->a->claim) || whoever)/if (r->a->claim[0] || whoever)/
any-adoption|tests/sim/scripts.c|s/ \&\& !is(s->proxy, r->a->proxy))/)/
blind-swap|tests/sim/scripts.c|s/    if (s.token \&\& read != 0 \&\& !stale)/    if (s.token)/
fence-stands-still|tests/sim/scripts.c|s/mine.fence = s->last_fence + 1 > r->m->us ? s->last_fence + 1 : r->m->us;/mine.fence = 1000;/
renewal-of-others|tests/sim/scripts.c|s/if (!s.token || !is(s.lease_token, claim))/if (!s.token)/
refused-writes|tests/sim/scripts.c|/^static struct model_envelope extend/,/^}/s/            return envelope(number(0), how, \&s, NOT_ASKED);/            { command(r); return envelope(number(0), how, \&s, NOT_ASKED); }/
no-lease|tests/sim/scripts.c|s/\*leased = pttl == -1 \&\& r->a->lease_ms > 0;/*leased = false;/
anyones-node|tests/sim/lists.c|s/    if (!is(record->identity, r->a->identity))$/    if (false)/
colleagues-node|tests/sim/lists.c|s/    if (is(record->party, r->a->seen))$/    if (true)/
heads-never-die|tests/sim/lists.c|s/    return now >= since + QUEUE_LOOKS_WITHIN_MS;/    return false;/
waiting-dies|tests/sim/lists.c|s/    return now >= since + QUEUE_LOOKS_WITHIN_MS;/    return true;/
leases-of-heads-never-end|tests/sim/lists.c|s/^    if (r->overdue)$/    if (false)/
anyone-pops|tests/sim/lists.c|s/    if (!may)$/    if (false)/
vacancy-forgotten|tests/sim/lists.c|s/    bool vacant = party \&\& party->vacant > 0;/    bool vacant = false;/
queue-without-end|tests/sim/lists.c|s/    if (r->a->lease_ms > 0 \&\& pttl < r->a->lease_ms) {/    if (false) {/
nobody-leaves|proxy/lock/lease.c|s/(c->queue \&\& c->rule->owner != LOCK_OWNER_ANY)/false/
nobody-is-told|proxy/lock/queue.c|s/^    if (!rule || rule->owner == LOCK_OWNER_ANY)$/    if (true)/
guard-comes-alive|tests/sim/model.c|s/(!g->expire_ms || g->expire_ms - m->now_ms >= MODEL_GUARD_OUTLIVES_MS)/true/
any-is-nobody|proxy/lock/attribute.c|s/plan->rule->owner == LOCK_OWNER_ANY/false/
only-own-readings|proxy/lock/attribute.c|/^static const struct witness \*newest_reading/,/^}/s/    const struct witness \*best = own;/    return own; const struct witness *best = own;/
everybodys-readings|proxy/lock/attribute.c|/^static bool reading_counts/,/^}/s/w->peer->client == self->client/true/
old-readings-first|proxy/lock/attribute.c|/^static uint64_t reading_rank/,/^}/s/    if (w->read_fence > en->gone_fence)/    if (true)/
readings-not-compared|proxy/lock/attribute.c|/^bool attribute_was_shown/,/^}/s/            return true;/            return false;/
written-is-read|proxy/lock/attribute.c|s/w->seen_known \&\& !w->wrote;/w->seen_known;/
enrols-for-anybody|proxy/lock/attribute.c|s/    if (live->token != plan->claim)/    if (false)/
enrols-nobody|proxy/lock/attribute.c|s/    plan->right = "enrol";/    plan->right = "claim";/
seen-is-enough-after-audit|proxy/lock/attribute.c|/^static void plan_enrolment/,/^}/s/    plan->seen_known = false;/    if (live->token != plan->claim) return;/
doubt-is-forgotten|proxy/lock/settle.c|s/            f->claim->doubtful = true;/            settle_spend(f, f->claim); return;/
drops-what-is-in-use|proxy/lock/settle.c|s/if (c->peer != f->peer || c->uses)/if (c->peer != f->peer)/
silence-is-said|proxy/lock/learn.c|/^static bool says_nothing/,/^}/s/            return true;/            return false;/
newer-leases-unknown|proxy/lock/learn.c|s/    learn_gone(f, fence - 1, why_others);/    ;/
old-answers-count|proxy/lock/learn.c|s/f->plan->attempt > f->entry->live_since/true/
crossing-answers-count|proxy/lock/settle.c|s/    if (!c || c->touch > f->plan->attempt)/    if (!c)/
disconnect-keeps|proxy/lock/lease.c|s/c->rule->on_disconnect == LOCK_DISCONNECT_RELEASE ||/false ||/
closed-session-unnoticed|proxy/lock/lease.c|/^bool lease_owner_here/,/^}/s/    if (!p->closed)/    if (true)/
client-never-leaves|proxy/lock/lease.c|s/ \&\& atomic_load(\&p->client->open) > 0 \&\&/ \&\&/
client-comes-back|proxy/lock/lease.c|s/        atomic_load(\&p->client->epoch) == p->epoch;/        true;/
audit-remembers-for-ever|proxy/lock/lease.c|/^static void bound_memory/,/^}/s/    if (c->end_ms/    if (true || c->end_ms/
audit-renews|proxy/lock/lease.c|s/ \&\& !c->reported \&\& !c->observed;/ \&\& !c->reported;/
audit-sees-no-wrong-release|proxy/lock/audit.c|/^static enum lock_outcome removed/,/^}/s/    if (a->mine)/    if (a->live)/
audit-victim-holds-on|proxy/lock/audit.c|/^static enum lock_outcome refuse/,/^}/s/    learn_gone(a->f, fence, LEASE_TAKEN);/    ;/
audit-end-stands-still|proxy/lock/audit.c|/^static enum lock_outcome changed/,/^}/s/        lease_set(a->f->sh, live.*/        ;/
audit-knows-no-value|proxy/lock/audit.c|/^static enum lock_outcome grant/,/^}/s/    learn_wrote(a->f);/    ;/
script-acquires-nothing|proxy/lock/adopt.c|/case LOCK_GRANTED:/,/break;/s/        settle_granted(f);/        ;/
script-extends-nothing|proxy/lock/adopt.c|/case LOCK_HELD:/,/break;/s/        settle_done(f);/        ;/
script-releases-nothing|proxy/lock/adopt.c|s/            script_released(f);/            ;/
rules-freed-too-soon|proxy/lock/ledger.c|s/        lock_rules_ref(rule->set);/        ;/
nothing-adopted|tests/sim/scripts.c|/^static struct model_envelope adopt/,/^}/s/ \&\& is(s.text, r->a->command.value))/ \&\& false)/
adopted-end-kept|tests/sim/scripts.c|/^static struct model_envelope adopt/,/^}/s/        if (moved) {/        if (false) {/
enrols-what-was-not-written|tests/sim/scripts.c|s/!is(r->a->right, "enrol") || !seen_is(r, \&s))/!is(r->a->right, "enrol") || !s.value || s.wrong_type)/
'

build() { # folder
    local d=$1
    cc -std=c11 -D_GNU_SOURCE -O1 -fno-strict-aliasing -w -I"$d" \
        "$d"/tests/sim/{main,world,rules,watched,flight,trouble,worker,list_worker,check,check_list,scenario,model,scripts,lists}.c "$d"/proxy/lock/*.c \
        "$d"/proxy/base/{memory,glob,units}.c "$d"/parser/slot.c -o "$d/sim" -lpthread
}

notices() { # folder
    for seed in $SEEDS; do
        timeout 120 "$1/sim" --steps "$STEPS" --seed "$seed" >"$1/out" 2>&1 || return 0
    done
    return 1
}

copy() { # folder
    mkdir -p "$1"
    cp -r "$ROOT/parser" "$ROOT/proxy" "$1"
    mkdir -p "$1/tests"
    cp -r "$ROOT/tests/sim" "$1/tests"
}

copy "$WORK/whole"
build "$WORK/whole" || exit 1
if notices "$WORK/whole"; then
    echo "the unbroken engine fails:"
    cat "$WORK/whole/out"
    exit 1
fi

failures=0
while IFS='|' read -r name file rest; do
    [ -n "$name" ] || continue
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    d="$WORK/$name"
    copy "$d"
    sed -i "$rest" "$d/$file"
    if cmp -s "$d/$file" "$ROOT/$file"; then
        echo "$name: the expression finds nothing in $file"
        failures=$((failures + 1))
    elif ! build "$d"; then
        echo "$name: does not compile"
        failures=$((failures + 1))
    elif notices "$d"; then
        echo "$name: noticed: $(grep -m1 FAILED "$d/out" || echo "it hangs or crashes")"
    else
        echo "$name: NOT NOTICED"
        failures=$((failures + 1))
    fi
    rm -rf "$d"
done <<<"$MUTATIONS"
echo "$failures not noticed"
[ $failures -eq 0 ]
