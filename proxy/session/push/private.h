/*
 * The callbacks of tracking.c and incident_watch.c for the room's table, which is in pubsub.c.
 */
#pragma once

#include "proxy/session/push/push.h"

void watch_worker_closes(struct worker *w);

void tracking_tick(struct session *s);
void tracking_request_over(struct session *s);
void tracking_pin_lane(const struct session *s, struct upstream_lane *lane);
void tracking_lock_written(struct session *s, const char *key, size_t len);
struct call *tracking_before_call(struct session *s, struct call *c, const char **bytes, size_t *len);
