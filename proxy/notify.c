/* sd_notify without libsystemd: one datagram. */
#include "proxy/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proxy/base/clock.h"

void notify_state(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(a.sun_path))
        return;
    size_t len = strlen(path);
    memcpy(a.sun_path, path, len);
    if (path[0] == '@')
        a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    ssize_t ignored = sendto(fd, state, strlen(state), 0, (struct sockaddr *)&a,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    (void)ignored;
    close(fd);
}

void notify_stopping(int64_t ms) {
    enum { MARGIN_MS = 10000 }; /* for the work after the last client has left */
    char state[80];
    snprintf(state, sizeof(state), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%lld", (long long)(ms + MARGIN_MS) * 1000);
    notify_state(state);
}

void notify_reloading(void) {
    char state[80];
    snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)clock_us());
    notify_state(state);
}
