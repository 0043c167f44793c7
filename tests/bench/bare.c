/*
 * The minimal work of a proxy with one connection to Redis, without pipelining. Its cost is the machine's price for a
 * hop; the difference to another proxy is the work of the other proxy.
 *
 *   bare PORT REDIS-PORT
 *
 *      clients ── one read each ──> batch ── one write ──> Redis
 *      clients <── one write each ── their turn (asked) <── one read
 *
 * It takes the bytes of one read from a client for one whole request, and recognises replies by their first line. So it
 * only works for a benchmark of short requests, one at a time. It listens on 127.0.0.1 only. It ends with a signal, or
 * with a message on unexpected input.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS_MAX = 1024, EVENTS_MAX = 128, REQUEST_MAX = 4096, REPLIES_MAX = 1 << 20 };

/* The clients that wait for a reply, oldest first; -1: the client has left since. */
static int asked[CLIENTS_MAX];
static unsigned asked_first, asked_count;
static char requests[EVENTS_MAX * REQUEST_MAX];
static size_t requests_length;
static char replies[REPLIES_MAX];
static size_t replies_length;

static void check(int fine, const char *what) {
    if (fine)
        return;
    perror(what);
    exit(1);
}

static struct sockaddr_in address(const char *port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static void watch(int loop, int fd) {
    int on = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    check(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static void forget(int client) {
    for (unsigned i = 0; i < asked_count; i++)
        if (asked[(asked_first + i) % CLIENTS_MAX] == client)
            asked[(asked_first + i) % CLIENTS_MAX] = -1;
    close(client);
}

static void take_request(int client) {
    ssize_t n = recv(client, requests + requests_length, REQUEST_MAX, 0);
    if (n <= 0) {
        forget(client);
        return;
    }
    check(n < REQUEST_MAX && asked_count < CLIENTS_MAX, "requests too long, or too many");
    requests_length += (size_t)n;
    asked[(asked_first + asked_count++) % CLIENTS_MAX] = client;
}

/* The length of the first reply; 0: not all of it is here. An array has to be alone and come at once. */
static size_t reply_length(const char *at, size_t length) {
    const char *end = memchr(at, '\n', length);
    if (!end)
        return 0;
    size_t whole = *at == '*' ? length : (size_t)(end + 1 - at);
    if (*at == '$' && at[1] != '-')
        whole += (size_t)atoi(at + 1) + 2;
    return whole <= length ? whole : 0;
}

static void give_replies(int redis) {
    ssize_t n = recv(redis, replies + replies_length, sizeof(replies) - replies_length, 0);
    check(n > 0, "Redis closed the connection");
    replies_length += (size_t)n;
    char *at = replies;
    size_t length;
    while (replies_length > 0 && (length = reply_length(at, replies_length)) > 0) {
        int client = asked[asked_first++ % CLIENTS_MAX];
        asked_count--;
        if (client >= 0)
            send(client, at, length, MSG_NOSIGNAL);
        at += length;
        replies_length -= length;
    }
    memmove(replies, at, replies_length);
}

static void turn(int loop, int listener, int redis) {
    struct epoll_event events[EVENTS_MAX];
    int answered = 0, count = epoll_wait(loop, events, EVENTS_MAX, -1);
    for (int i = 0; i < count; i++) {
        int fd = events[i].data.fd;
        if (fd == listener)
            watch(loop, accept(listener, NULL, NULL));
        else if (fd == redis)
            answered = 1;
        else
            take_request(fd);
    }
    if (answered)
        give_replies(redis);
    if (requests_length > 0)
        check(send(redis, requests, requests_length, MSG_NOSIGNAL) == (ssize_t)requests_length, "writing to Redis");
    requests_length = 0;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: bare PORT REDIS-PORT\n");
        return 2;
    }
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0), redis = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in here = address(arguments[1]), there = address(arguments[2]);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    check(bind(listener, (struct sockaddr *)&here, sizeof(here)) == 0 && listen(listener, 512) == 0, "listening");
    check(connect(redis, (struct sockaddr *)&there, sizeof(there)) == 0, "connecting to Redis");
    int loop = epoll_create1(0);
    watch(loop, listener);
    watch(loop, redis);
    for (;;)
        turn(loop, listener, redis);
}
