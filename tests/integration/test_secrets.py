"""Secrets are in the proxy's memory only for as long as they are needed.

The tests do not depend on time: once the proxy has noticed the end of a connection, the secrets sent over it are gone.
"""

import pytest

from resp import Client, Error, encode
from servers import HOST, free_port, memory_is_a_tool_s, until

HALF = "s3cret-of-ann"


def mappings_of(proxy):
    """The process's heap, data and stacks: the line that describes each, and its bytes."""
    with open("/proc/%d/maps" % proxy.pid) as maps, open("/proc/%d/mem" % proxy.pid, "rb", 0) as memory:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if line.split()[1].startswith("rw") and end - begin < 1 << 28:  # a sanitizer's own are larger
                memory.seek(begin)
                try:
                    yield line.strip(), memory.read(end - begin)
                except OSError:  # unmapped meanwhile
                    continue


def count_in_memory(proxy, secret):
    if memory_is_a_tool_s():
        pytest.skip("the proxy's memory is mostly a tool's")
    try:
        return sum(part.count(secret.encode()) for _, part in mappings_of(proxy))
    except PermissionError:
        pytest.skip("the memory of other processes can't be read here")


def no_trace(proxy, secret, what):
    """Waits until the secret is nowhere in memory; if it stays, the bytes around it show which buffer holds it."""
    try:
        until(lambda: count_in_memory(proxy, secret) == 0, what="no trace of '%s'" % what)
    except AssertionError as e:
        found = [(mapping, part, part.find(secret.encode())) for mapping, part in mappings_of(proxy)]
        places = ["%s at %#x: %r" % (mapping, at, part[max(0, at - 200) : at + 200]) for mapping, part, at in found if at >= 0]
        raise AssertionError("%s\n%s" % (e, "\n".join(places))) from None


def test_passwords_are_in_memory_only_while_they_are_needed(start_redis, start_proxy, connect):
    server = start_redis()
    server.run("ACL", "SETUSER", "ann", "on", ">right-s3cret", "~*", "+@all")
    proxy = start_proxy(server)

    def found(secret):
        return count_in_memory(proxy, secret)

    user, stranger = connect(proxy), connect(proxy)
    assert isinstance(stranger("AUTH", "ann", "wrong-s3cret"), Error)
    assert isinstance(stranger("HELLO", "3", "AUTH", "ann", "hello-s3cret"), Error)
    assert user("AUTH", "ann", "right-s3cret") == "OK" and user("SET", "k", "v") == "OK"
    assert found("right-s3cret") == 1  # for the next connection to a node
    user.close()
    until(lambda: found("s3cret") == 0, what="nothing left")


def requests_with(secret):
    """What a client may send that has a password in it, whole or not."""
    auth, acl = encode("AUTH", "ann", secret), encode("ACL", "SETUSER", "ann", ">" + secret)
    return {
        "auth": [auth], "hello": [encode("HELLO", "3", "AUTH", "ann", secret)], "syntax": [encode("AUTH", "ann", secret, "x")],
        "acl": [acl], "config": [encode("CONFIG", "SET", "masterauth", secret)],
        "migrate": [encode("MIGRATE", HOST, 1, "none", 0, 100, "AUTH2", "ann", secret)],
        "inline": [b"AUTH ann %s\r\n" % secret.encode()], "quoted": [b'CONFIG SET masterauth "%s"\r\n' % secret.encode()],
        "unbalanced": [b'AUTH ann "%s\r\n' % secret.encode()], "behind QUIT": [encode("QUIT") + auth],
        "irregular": [auth.replace(b"$3\r\nann", b"$03\r\nann")], "behind others": [encode("GET", "k") + auth + encode("GET", "k")],
        "queued": [encode("MULTI") + acl + auth + encode("DISCARD")], "executed": [encode("MULTI") + acl + auth + encode("EXEC")],
        "watching": [encode("WATCH", "k") + auth], "in pieces": [auth[i:i + 5] for i in range(0, len(auth), 5)],
        "half": [auth[: auth.index(HALF.encode()) + len(HALF)]], "paused": [encode("CLIENT", "PAUSE", 10, "ALL") + acl],
    }


@pytest.mark.parametrize("kind", ["plain", "cluster", "tls"])
def test_no_password_stays_in_a_buffer(start_redis, start_cluster, start_proxy, certificates, kind):
    """Each in turn on a connection of its own: once that is closed there is nothing to be found, whatever came of it."""
    server = start_cluster() if kind == "cluster" else start_redis(tls=certificates if kind == "tls" else None)
    port, lines = free_port(), []
    if kind == "tls":
        lines = [*certificates.server_lines(port, "tls-auth-clients no"), *certificates.upstream_lines()]
    proxy = start_proxy(server, *lines)
    context = certificates.context() if kind == "tls" else None
    for name, pieces in requests_with(HALF + "-whole").items():
        with Client((HOST, port) if context else proxy.address, tls=context) as c:
            for piece in pieces:
                c.send(piece)
            if name == "half":
                until(lambda: count_in_memory(proxy, HALF) > 0, what="the half request")
            else:
                c.read()
        no_trace(proxy, HALF, name)


def test_the_passphrase_of_a_private_key_is_forgotten(start_redis, start_proxy, certificates):
    port = free_port()
    lines = [line.replace("server.key", "locked.key") for line in certificates.server_lines(port, "tls-auth-clients no")]
    proxy = start_proxy(start_redis(), *lines, "tls-key-file-pass " + certificates.PASSPHRASE)
    for reload in (False, True):
        if reload:
            with proxy.client() as c:
                assert c("PROXY", "RELOAD") == "OK"
        with Client((HOST, port), tls=certificates.context()) as c:
            assert c("PING") == "PONG"
        assert count_in_memory(proxy, certificates.PASSPHRASE) == 0
