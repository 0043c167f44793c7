"""Same bytes in, same bytes out: compares Redis's reaction to a client's bytes with the proxy's."""

import select
import time

from resp import Client, Closed


class Outcome:
    """What became of a connection: the bytes that came back, and whether the other side closed it by itself."""

    def __init__(self, data, closed):
        self.data = data
        self.closed = closed

    def __repr__(self):
        return "%s%r" % ("closed after " if self.closed else "", self.data[:600])


def drain(client):
    """What has arrived so far: (bytes, closed)."""
    data = bytearray()
    client.sock.setblocking(False)
    try:
        while True:
            more = client.sock.recv(262144)
            if not more:
                return bytes(data), True
            data += more
    except BlockingIOError:
        return bytes(data), False
    except ConnectionResetError:
        return bytes(data), True
    finally:
        client.sock.settimeout(client.timeout)


def send(client, pieces):
    """Sends as much as the other side takes. It may close in the middle."""
    try:
        for piece in pieces:
            client.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass


def ask_redis(server, pieces, prelude=()):
    """Redis is single-threaded: once it has answered a few later requests of another connection, whatever it has
    to say to these bytes has been said."""
    size = sum(len(p) for p in pieces)
    with Client(server.address) as client, server.client() as control:
        for command in prelude:
            client(*command)
        send(client, pieces)
        data, closed = b"", False
        for _ in range(8 + size // 8192):
            control("PING")
            more, closed = drain(client)
            data += more
            if closed:
                return Outcome(data, True)
        try:
            client.shutdown()
            data += client.read_all()
        except OSError:
            pass
        return Outcome(data, False)


def ask_proxy(address, pieces, expected, prelude=()):
    """The same bytes to the proxy, which gets the time it needs to say as much as `expected` has."""
    with Client(address) as client:
        for command in prelude:
            client(*command)
        send(client, pieces)
        data, closed = bytearray(), False
        deadline = time.monotonic() + client.timeout
        while not closed and (len(data) < len(expected.data) or expected.closed) and time.monotonic() < deadline:
            select.select([client.sock], [], [], 0.1)
            more, closed = drain(client)
            data += more
        if not closed:
            more, closed = drain(client)
            data += more
        if closed:
            return Outcome(bytes(data), True)
        try:
            client.shutdown()
            data += client.read_all()
        except OSError:
            pass
        return Outcome(bytes(data), False)


def compare(server, address, pieces, prelude=(), abrupt=False):
    """Asserts that the proxy does to these bytes what Redis does. `abrupt`: where Redis closes without writing what
    it had to say, the proxy may say more."""
    if isinstance(pieces, (bytes, bytearray)):
        pieces = [pieces]
    expected = ask_redis(server, pieces, prelude)
    found = ask_proxy(address, pieces, expected, prelude)
    whole = b"".join(pieces)
    if abrupt and expected.closed and found.data.startswith(expected.data):
        found.data = expected.data
    assert found.data == expected.data and found.closed == expected.closed, (
        "to %d bytes in %d pieces: %r\nRedis: %r\nproxy: %r" % (len(whole), len(pieces), whole[:600], expected, found))
    return expected


__all__ = ["Closed", "Outcome", "ask_proxy", "ask_redis", "compare"]
