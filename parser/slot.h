/*
 * Redis Cluster's key slots: CRC16 (XMODEM) of the key or of its hash tag, modulo 16384.
 * Source: the Redis Cluster specification.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { SLOT_COUNT = 16384, SLOT_TAG_MAX = 4 };

/* Values that stand in the place of a slot number, if a command's keys have no single slot. */
enum {
    SLOT_NONE = -1,   /* no keys: any node */
    SLOT_SEVERAL = -2 /* keys in several slots */
};

uint16_t slot_crc16(const char *data, size_t len);

/* The slot of a key. If the key has text between the first '{' and the next '}', the slot is that text's. */
uint16_t slot_of_key(const char *key, size_t len);

/* A short text without braces whose slot is `slot`: NUL-terminated, at most SLOT_TAG_MAX bytes, static. It is the same
 * in every process and every version. main calls slot_tags_init before threads start. */
void slot_tags_init(void);
const char *slot_tag(uint16_t slot);
size_t slot_tag_len(uint16_t slot);
