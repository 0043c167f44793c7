/*
 * A load generator for sequences of commands (redis-benchmark repeats a single one): each connection repeats the
 * sequence (for instance SET, then DEL) with a key of its own. It checks every reply.
 *
 *   load -p PORT [-c CONNECTIONS] [-P DEPTH] [-n COMMANDS] COMMAND [';' COMMAND ...]
 *
 * A COMMAND is =REPLY and words: the reply line must start with REPLY ("=+OK SET k v"). "{c}" in a word is the number
 * of the connection. DEPTH commands are sent at once, and the next DEPTH when all their replies are there. A sequence
 * that was begun is finished. Prints one line of JSON; the exit status is 1 if any reply was not what it should be.
 *
 * It knows nothing of arrays: a reply is a line, or a bulk string. It keeps one thread and blocking sockets, so DEPTH
 * requests have to fit into a socket buffer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { COMMANDS_MAX = 16, WORDS_MAX = 32, REQUEST_MAX = 4096, READ_MAX = 64 * 1024 };

struct command {
    const char *expected;
    const char *words[WORDS_MAX];
    int count;
};

struct request {
    char *bytes;
    size_t length;
};

struct connection {
    int fd;
    struct request requests[COMMANDS_MAX];
    unsigned sent, answered; /* commands, since the start */
    unsigned batch;          /* replies outstanding */
    uint64_t sent_at;        /* ns */
    char *in;
    size_t in_length;
};

struct load {
    struct command commands[COMMANDS_MAX];
    int command_count;
    int port, connection_count, depth;
    unsigned total, sent, answered, wrong;
    char first_wrong[128];
    uint32_t *latency_us; /* one a reply */
    struct connection *connections;
    char *out;
};

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Appends word with every {c} replaced by the connection's number; returns the end. */
static char *expand(char *out, const char *word, int number) {
    while (*word) {
        if (strncmp(word, "{c}", 3) == 0) {
            out += sprintf(out, "%d", number);
            word += 3;
        } else {
            *out++ = *word++;
        }
    }
    *out = 0;
    return out;
}

static struct request encode(const struct command *command, int number) {
    char bytes[REQUEST_MAX], word[REQUEST_MAX];
    size_t length = (size_t)sprintf(bytes, "*%d\r\n", command->count);
    for (int i = 0; i < command->count; i++) {
        size_t n = (size_t)(expand(word, command->words[i], number) - word);
        if (length + n + 32 > sizeof bytes) {
            errno = E2BIG;
            die("command");
        }
        length += (size_t)sprintf(bytes + length, "$%zu\r\n", n);
        memcpy(bytes + length, word, n);
        memcpy(bytes + length + n, "\r\n", 2);
        length += n + 2;
    }
    struct request request = {malloc(length), length};
    if (request.bytes == NULL)
        die("malloc");
    memcpy(request.bytes, bytes, length);
    return request;
}

static void connect_all(struct load *load) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)load->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < load->connection_count; i++) {
        struct connection *c = &load->connections[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0)
            die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        c->in = malloc(READ_MAX);
        if (c->in == NULL)
            die("malloc");
        for (int k = 0; k < load->command_count; k++)
            c->requests[k] = encode(&load->commands[k], i);
    }
}

/* True while the connection has something to send; a sequence that was begun is finished, so that no key is left. */
static bool has_more(const struct load *load, const struct connection *c) {
    return load->sent < load->total || c->sent % (unsigned)load->command_count != 0;
}

static void send_batch(struct load *load, struct connection *c) {
    size_t length = 0;
    while (c->batch < (unsigned)load->depth && has_more(load, c)) {
        struct request *request = &c->requests[c->sent % (unsigned)load->command_count];
        memcpy(load->out + length, request->bytes, request->length);
        length += request->length;
        c->sent++;
        c->batch++;
        load->sent++;
    }
    c->sent_at = now_ns();
    for (size_t done = 0; done < length;) {
        ssize_t n = write(c->fd, load->out + done, length - done);
        if (n < 0)
            die("write");
        done += (size_t)n;
    }
}

/* The length of the reply at the start of the bytes; 0 if it isn't whole yet. */
static size_t reply_length(const char *bytes, size_t length) {
    const char *end = memchr(bytes, '\n', length);
    if (end == NULL)
        return 0;
    size_t whole = (size_t)(end - bytes) + 1;
    if (bytes[0] == '$' && bytes[1] != '-')
        whole += (size_t)atol(bytes + 1) + 2;
    return whole <= length ? whole : 0;
}

static void check_reply(struct load *load, struct connection *c, const char *bytes) {
    const char *expected = load->commands[c->answered % (unsigned)load->command_count].expected;
    if (strncmp(bytes, expected, strlen(expected)) == 0)
        return;
    if (load->wrong++ == 0) {
        size_t n = strcspn(bytes, "\r\n\"\\");
        if (n >= sizeof load->first_wrong)
            n = sizeof load->first_wrong - 1;
        memcpy(load->first_wrong, bytes, n);
    }
}

static void read_replies(struct load *load, struct connection *c) {
    ssize_t n = read(c->fd, c->in + c->in_length, READ_MAX - c->in_length);
    if (n == 0)
        errno = ECONNRESET;
    if (n <= 0)
        die("read");
    c->in_length += (size_t)n;
    uint32_t latency = (uint32_t)((now_ns() - c->sent_at) / 1000);
    size_t done = 0, length;
    while (done < c->in_length && (length = reply_length(c->in + done, c->in_length - done)) > 0) {
        if (c->batch == 0) {
            errno = EPROTO;
            die("a reply without a request");
        }
        check_reply(load, c, c->in + done);
        load->latency_us[load->answered++] = latency;
        c->answered++;
        c->batch--;
        done += length;
    }
    memmove(c->in, c->in + done, c->in_length - done);
    c->in_length -= done;
    if (c->batch == 0 && has_more(load, c))
        send_batch(load, c);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void report(struct load *load, double seconds) {
    qsort(load->latency_us, load->answered, sizeof *load->latency_us, by_size);
    printf("{\"requests\": %u, \"seconds\": %.6f, \"rps\": %.1f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"wrong\": %u, "
           "\"first_wrong\": \"%s\"}\n",
           load->answered, seconds, load->answered / seconds, load->latency_us[load->answered / 2] / 1000.0,
           load->latency_us[(size_t)(load->answered * 0.99)] / 1000.0, load->wrong, load->first_wrong);
}

static void run(struct load *load) {
    int epoll = epoll_create1(0);
    if (epoll < 0)
        die("epoll");
    uint64_t started = now_ns();
    for (int i = 0; i < load->connection_count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &load->connections[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, load->connections[i].fd, &event) != 0)
            die("epoll");
        if (has_more(load, &load->connections[i]))
            send_batch(load, &load->connections[i]);
    }
    while (load->answered < load->sent) {
        struct epoll_event events[256];
        int n = epoll_wait(epoll, events, 256, 30000);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ETIMEDOUT;
        if (n <= 0)
            die("waiting for replies");
        for (int i = 0; i < n; i++)
            read_replies(load, events[i].data.ptr);
    }
    report(load, (double)(now_ns() - started) / 1e9);
}

static bool parse_commands(struct load *load, int count, char **words) {
    struct command *command = NULL;
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], ";") == 0) {
            command = NULL;
        } else if (command == NULL) {
            if (load->command_count == COMMANDS_MAX || words[i][0] != '=')
                return false;
            command = &load->commands[load->command_count++];
            command->expected = words[i] + 1;
        } else {
            if (command->count == WORDS_MAX)
                return false;
            command->words[command->count++] = words[i];
        }
    }
    return load->command_count > 0;
}

int main(int argc, char **argv) {
    struct load load = {.connection_count = 50, .depth = 1, .total = 100000};
    int option;
    while ((option = getopt(argc, argv, "+p:c:P:n:")) != -1) {
        int value = optarg ? atoi(optarg) : 0;
        if (option == 'p')
            load.port = value;
        else if (option == 'c')
            load.connection_count = value;
        else if (option == 'P')
            load.depth = value;
        else if (option == 'n')
            load.total = (unsigned)value;
    }
    if (!parse_commands(&load, argc - optind, argv + optind) || load.port <= 0 || load.connection_count <= 0 ||
        load.depth <= 0 || load.total == 0) {
        fprintf(stderr, "usage: load -p PORT [-c CONNECTIONS] [-P DEPTH] [-n COMMANDS] =REPLY WORD ... [';' ...]\n");
        return 2;
    }
    load.latency_us = malloc((load.total + (size_t)load.connection_count * COMMANDS_MAX) * sizeof *load.latency_us);
    load.connections = calloc((size_t)load.connection_count, sizeof *load.connections);
    load.out = malloc((size_t)load.depth * REQUEST_MAX);
    if (load.latency_us == NULL || load.connections == NULL || load.out == NULL)
        die("malloc");
    connect_all(&load);
    run(&load);
    return load.wrong > 0;
}
