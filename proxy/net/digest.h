/* SHA1, by which Redis names scripts. */
#ifndef LOCKKEEPER_NET_DIGEST_H
#define LOCKKEEPER_NET_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum { DIGEST_SHA1 = 20 /* bytes */ };

/* Writes the SHA1. */
void digest_sha1(const char *data, size_t len, unsigned char out[DIGEST_SHA1]);
/* The first 8 of its 20 bytes, as a number (the first 16 of its hex digits). */
uint64_t digest_sha1_head(const char *data, size_t len);

#endif
