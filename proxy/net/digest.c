/* Digests by OpenSSL. SHA1 is not for secrets. */
#include "proxy/net/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

uint64_t digest_sha1_head(const char *data, size_t len) {
    unsigned char digest[SHA_DIGEST_LENGTH];
    uint64_t head = 0;
    SHA1((const unsigned char *)data, len, digest);
    for (size_t i = 0; i < sizeof(head); i++)
        head = head << 8 | digest[i];
    return head;
}

bool digest_keyed(const void *key, size_t key_len, const char *data, size_t len, unsigned char out[DIGEST_KEYED]) {
    unsigned int size = 0;
    return HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)data, len, out, &size) && size == DIGEST_KEYED;
}
