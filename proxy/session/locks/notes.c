/*
 * Notes of what the engine asks the session layer to do: renew a lease, release a lease whose owner has left, declare
 * queue nodes dead, and record a lease whose owner may come back. The engine calls these functions in the worker's
 * thread.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/locks/leases.h"

/* A note of one call that the engine asks for. The engine calls with a shard locked, so the worker makes the call after
 * the engine has returned. */
struct lease_note {
    struct worker_job job; /* must be the first field */
    enum { NOTE_RENEWAL, NOTE_RELEASE, NOTE_LEAVING, NOTE_LEFT } kind;
    struct lock_lease lease;
    struct lock_leaving leaving;
    bool waits; /* NOTE_RELEASE: other sessions may be waiting for the lock. NOTE_LEAVING: the nodes are kept for a
                   while */
    int64_t until_ms;
    char name[]; /* the key, followed by the party that leaves; of NOTE_LEFT, the entry for the list of successors.c */
};

static void note_run(struct worker *w, struct worker_job *job) {
    struct lease_note *note = (struct lease_note *)(void *)job;
    switch (note->kind) {
    case NOTE_RENEWAL:
        lock_renew(w, &note->lease);
        break;
    case NOTE_RELEASE:
        lock_release(w, &note->lease, note->waits);
        break;
    case NOTE_LEFT:
        successors_write(w, note->lease.login, note->until_ms, note->name, note->lease.key.len);
        break;
    case NOTE_LEAVING:
        lock_leave(w, &note->leaving, note->lease.lease_ms, note->waits);
        break;
    }
}

/* Has the note carried out by the worker of this thread, at the end of its turn. */
static void note_add(struct lease_note *note) {
    note->job.run = note_run;
    worker_add_job(worker_here(), &note->job);
}

static void note_lease(const struct lock_lease *lease, bool renewal) {
    struct lease_note *note = memory_alloc(sizeof(*note) + lease->key.len);
    note->kind = renewal ? NOTE_RENEWAL : NOTE_RELEASE;
    note->lease = *lease;
    memcpy(note->name, lease->key.name, lease->key.len);
    note->lease.key.name = note->name;
    note->waits = lease->rule->wait_ms > 0;
    note->lease.rule = NULL;
    note_add(note);
}

void lock_note_renewal(void *arg, const struct lock_lease *lease) {
    note_lease(lease, true);
}

void lock_note_release(void *arg, const struct lock_lease *lease) {
    note_lease(lease, false);
}

void lock_note_leaving(void *arg, const struct lock_leaving *leaving) {
    struct lease_note *note = memory_alloc(sizeof(*note) + leaving->key.len + leaving->party_len);
    note->kind = NOTE_LEAVING;
    note->leaving = *leaving;
    note->lease.lease_ms = leaving->rule->lease_ms;
    note->waits = leaving->rule->on_disconnect == LOCK_DISCONNECT_KEEP;
    memcpy(note->name, leaving->key.name, leaving->key.len);
    memcpy(note->name + leaving->key.len, leaving->party, leaving->party_len);
    note->leaving.key.name = note->name;
    note->leaving.party = note->name + leaving->key.len;
    note->leaving.rule = NULL;
    note_add(note);
}

void lock_note_left(void *arg, const struct lock_left *left) {
    struct text entry = {0};
    successors_entry(left, &entry);
    struct lease_note *note = memory_alloc(sizeof(*note) + entry.len);
    note->kind = NOTE_LEFT;
    note->lease = (struct lock_lease){.key.len = entry.len, .login = left->login};
    note->until_ms = left->until_ms;
    memcpy(note->name, entry.data, entry.len);
    text_clear(&entry);
    note_add(note);
}
