/* Key slots, and a short hash tag for each of them. */
#include "parser/slot.h"

#include <endian.h>
#include <stdbool.h>
#include <string.h>

#include "parser/invariant.h"

/* CRC16/XMODEM: polynomial 0x1021, most significant bit first, start 0. Entry i of table k is the remainder of byte i
 * with k zero bytes behind it: eight bytes of a key are taken in one step, which earns 13 % of the bound on a cluster's
 * pipelined requests. The remainder of a byte is the XOR of the remainders of its bits, eight for each table. */
#define CRC_BYTE(i, a, b, c, d, e, f, g, h)                                                                            \
    (((i)&1 ? a : 0) ^ ((i)&2 ? b : 0) ^ ((i)&4 ? c : 0) ^ ((i)&8 ? d : 0) ^ ((i)&16 ? e : 0) ^ ((i)&32 ? f : 0) ^     \
     ((i)&64 ? g : 0) ^ ((i)&128 ? h : 0))
#define CRC_FOUR(i, ...)                                                                                               \
    CRC_BYTE(i, __VA_ARGS__), CRC_BYTE(i + 1, __VA_ARGS__), CRC_BYTE(i + 2, __VA_ARGS__), CRC_BYTE(i + 3, __VA_ARGS__)
#define CRC_16(i, ...)                                                                                                 \
    CRC_FOUR(i, __VA_ARGS__), CRC_FOUR(i + 4, __VA_ARGS__), CRC_FOUR(i + 8, __VA_ARGS__), CRC_FOUR(i + 12, __VA_ARGS__)
#define CRC_64(i, ...)                                                                                                 \
    CRC_16(i, __VA_ARGS__), CRC_16(i + 16, __VA_ARGS__), CRC_16(i + 32, __VA_ARGS__), CRC_16(i + 48, __VA_ARGS__)
#define CRC_TABLE(...)                                                                                                 \
    { CRC_64(0, __VA_ARGS__), CRC_64(64, __VA_ARGS__), CRC_64(128, __VA_ARGS__), CRC_64(192, __VA_ARGS__) }
static const uint16_t crc_tables[8][256] = {
    CRC_TABLE(0x1021, 0x2042, 0x4084, 0x8108, 0x1231, 0x2462, 0x48c4, 0x9188),
    CRC_TABLE(0x3331, 0x6662, 0xccc4, 0x89a9, 0x0373, 0x06e6, 0x0dcc, 0x1b98),
    CRC_TABLE(0x3730, 0x6e60, 0xdcc0, 0xa9a1, 0x4363, 0x86c6, 0x1dad, 0x3b5a),
    CRC_TABLE(0x76b4, 0xed68, 0xcaf1, 0x85c3, 0x1ba7, 0x374e, 0x6e9c, 0xdd38),
    CRC_TABLE(0xaa51, 0x4483, 0x8906, 0x022d, 0x045a, 0x08b4, 0x1168, 0x22d0),
    CRC_TABLE(0x45a0, 0x8b40, 0x06a1, 0x0d42, 0x1a84, 0x3508, 0x6a10, 0xd420),
    CRC_TABLE(0xb861, 0x60e3, 0xc1c6, 0x93ad, 0x377b, 0x6ef6, 0xddec, 0xabf9),
    CRC_TABLE(0x47d3, 0x8fa6, 0x0f6d, 0x1eda, 0x3db4, 0x7b68, 0xf6d0, 0xfd81),
};

/* The tags are an agreement between all proxies that ever serve the same locks: a guard record is found by its
 * name, and the tag is part of that name. So the rule that gives them must never change:
 *
 *   The tag of a slot is the first text of that slot in this order: the texts of one letter, then those of
 *   two, three and four; among texts of one length, alphabetically; the alphabet is 0-9 and then a-z.
 *
 * All slots are reached within the texts of four letters (the last one by "09wh"). */
static const char alphabet[] = "0123456789abcdefghijklmnopqrstuvwxyz";

static char tags[SLOT_COUNT][SLOT_TAG_MAX + 1];

static inline unsigned crc_eight(unsigned crc, const unsigned char *p) {
    return crc_tables[7][crc >> 8 ^ p[0]] ^ crc_tables[6][(crc & 0xff) ^ p[1]] ^ crc_tables[5][p[2]] ^
           crc_tables[4][p[3]] ^ crc_tables[3][p[4]] ^ crc_tables[2][p[5]] ^ crc_tables[1][p[6]] ^ crc_tables[0][p[7]];
}

/* Fewer than eight bytes, with NULs in front to make eight: they do not change the CRC, since it starts at 0. */
static inline void pad(const unsigned char *p, size_t len, unsigned char out[8]) {
    invariant_debug(len < 8, "%zu bytes are padded to eight", len);
    uint32_t first, last;
    memset(out, 0, 8);
    if (len >= 4) {
        memcpy(&first, p, sizeof first);
        memcpy(&last, p + len - 4, sizeof last);
        memcpy(out + 8 - len, &first, sizeof first);
        memcpy(out + 4, &last, sizeof last);
    } else if (len > 0) {
        out[8 - len] = p[0];
        out[8 - len + len / 2] = p[len / 2];
        out[7] = p[len - 1];
    }
}

/* Has one of the eight top bits set if one of the eight bytes is a '{', and perhaps if none is. */
static inline uint64_t brace_bits(const unsigned char *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    word ^= 0x7b7b7b7b7b7b7b7bu;
    return (word - 0x0101010101010101u) & ~word;
}

/* The CRC of the bytes. Adds the brace bits of all words to *braces, unless it is NULL. */
static inline __attribute__((always_inline)) unsigned crc_of(const char *data, size_t len, uint64_t *braces) {
    const unsigned char *p = (const unsigned char *)data, *end = p + len;
    unsigned char first[8];
    unsigned crc = 0;
    if (len % 8) {
        pad(p, len % 8, first);
        if (braces)
            *braces |= brace_bits(first);
        crc = crc_eight(0, first);
    }
    for (p += len % 8; p < end; p += 8) {
        if (braces)
            *braces |= brace_bits(p);
        crc = crc_eight(crc, p);
    }
    return crc;
}

uint16_t slot_crc16(const char *data, size_t len) {
    return (uint16_t)crc_of(data, len, NULL);
}

static __attribute__((noinline)) uint16_t slot_of_tagged_key(const char *key, size_t len) {
    const char *open = len ? memchr(key, '{', len) : NULL;
    if (open) {
        const char *tag = open + 1;
        const char *close = memchr(tag, '}', (size_t)(key + len - tag));
        if (close && close > tag) {
            key = tag;
            len = (size_t)(close - tag);
        }
    }
    return slot_crc16(key, len) % SLOT_COUNT;
}

uint16_t slot_of_key(const char *key, size_t len) {
    uint64_t braces = 0;
    unsigned crc = crc_of(key, len, &braces);
    if (braces & 0x8080808080808080u)
        return slot_of_tagged_key(key, len);
    return (uint16_t)(crc % SLOT_COUNT);
}

/* Moves `text` to the next text in the order described above. */
static void next_text(char *text, size_t *len) {
    invariant(*len > 0 && *len <= SLOT_TAG_MAX, "a tag of %zu bytes", *len);
    for (size_t i = *len; i-- > 0;) {
        const char *letter = strchr(alphabet, text[i]);
        if (letter[1]) {
            text[i] = letter[1];
            return;
        }
        text[i] = alphabet[0];
    }
    text[(*len)++] = alphabet[0];
}

void slot_tags_init(void) {
    char text[SLOT_TAG_MAX + 1] = "0";
    size_t len = 1;
    size_t missing = 0;
    for (size_t slot = 0; slot < SLOT_COUNT; slot++)
        missing += tags[slot][0] == '\0';
    while (missing) {
        char *tag = tags[slot_crc16(text, len) % SLOT_COUNT];
        if (tag[0] == '\0') {
            memcpy(tag, text, len);
            missing--;
        }
        next_text(text, &len);
    }
}

const char *slot_tag(uint16_t slot) {
    invariant_debug(slot < SLOT_COUNT && tags[slot][0], "slot %u has no tag", slot);
    return tags[slot % SLOT_COUNT];
}

size_t slot_tag_len(uint16_t slot) {
    invariant_debug(slot < SLOT_COUNT && tags[slot][0], "slot %u has no tag", slot);
    uint32_t tag; /* the bytes after its end are NULs */
    memcpy(&tag, tags[slot % SLOT_COUNT], sizeof(tag));
    return (size_t)(4 - __builtin_clz(le32toh(tag)) / 8);
}
