/* SHA1, by which Redis names scripts; and a keyed digest, which recognises a secret without storing it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first 8 of the SHA1's 20 bytes, as a number (the first 16 of its hex digits). */
uint64_t digest_sha1_head(const char *data, size_t len);

enum { DIGEST_KEYED = 32 };
/* The HMAC-SHA256 of a secret, under a key that only this process has. False: OpenSSL failed. */
bool digest_keyed(const void *key, size_t key_len, const char *data, size_t len, unsigned char out[DIGEST_KEYED]);
