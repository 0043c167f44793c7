/* What stands in Host headers: RFC 9110, 7.2. */
#include "proxy/admin/host.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { NAME_MAX_LEN = 255 };

/* Removes the port, and a dot at the end of a name. False if the text is no host. */
static bool bare_name(const char *host, char *out, size_t size) {
    size_t len = host[0] == '[' ? strcspn(host, "]") : strcspn(host, ":");
    const char *end = host + len;
    if (host[0] == '[') {
        if (*end != ']')
            return false;
        host++;
        len--;
        end++;
    }
    if (*end == ':')
        end += 1 + strspn(end + 1, "0123456789");
    if (*end || len == 0 || len >= size)
        return false;
    memcpy(out, host, len);
    if (out[len - 1] == '.')
        len--;
    out[len] = '\0';
    return true;
}

static bool is_this_machine(const char *name) {
    char own[NAME_MAX_LEN + 1];
    if (gethostname(own, sizeof(own)) != 0)
        return false;
    own[NAME_MAX_LEN] = '\0';
    return own[0] && strcasecmp(name, own) == 0;
}

bool host_is_ours(const char *host, const char *const *names, size_t count) {
    char name[NAME_MAX_LEN + 1];
    unsigned char bytes[16];
    if (!bare_name(host, name, sizeof(name)))
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(names[i], name) == 0 || strcmp(names[i], "*") == 0)
            return true;
    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1 ||
           strcasecmp(name, "localhost") == 0 || is_this_machine(name);
}
