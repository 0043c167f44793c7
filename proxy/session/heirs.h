/*
 * Leases whose owners may come back at another proxy: a list of them in Redis, for all proxies before it.
 */
#ifndef LOCKKEEPER_SESSION_HEIRS_H
#define LOCKKEEPER_SESSION_HEIRS_H

#include <stddef.h>
#include <stdint.h>

struct worker;
struct lock_left;
struct text;

/* Appends the entry that says so. */
void heirs_entry(const struct lock_left *left, struct text *out);
/* Puts an entry on the list. It is of no use beyond until_ms. */
void heirs_write(struct worker *w, uint32_t login, int64_t until_ms, const char *entry, size_t len);
/* To be called once a second, by the first worker: takes over what is on the list and somebody has come for lately. */
void heirs_tick(struct worker *w);

#endif
