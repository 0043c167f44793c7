"""A raw RESP client: bytes in, bytes out, and replies as Python values where a test wants them.

It is deliberately not a client library: it sends exactly the bytes it is given, keeps every reply's exact
bytes, and never reconnects or retries by itself.
"""

import socket
import ssl
import struct
import time

TIMEOUT = 20.0
WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Error(str):
    """An error reply, without its '-'."""


class Push(list):
    """A RESP3 push."""


class Closed(Exception):
    """The other side closed the connection."""


def encode(*args):
    """A request as a multibulk. str is sent as UTF-8, numbers as text."""
    out = [b"*%d\r\n" % len(args)]
    for arg in args:
        if isinstance(arg, str):
            arg = arg.encode("utf-8", "surrogateescape")
        elif not isinstance(arg, (bytes, bytearray)):
            arg = str(arg).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(arg), arg))
    return b"".join(out)


def reply_end(data, start=0):
    """The offset behind the reply that begins at `start`, or -1 if it is not complete."""
    pending = 1
    at = start
    while pending:
        eol = data.find(b"\r\n", at)
        if eol < 0:
            return -1
        kind = data[at : at + 1]
        line = bytes(data[at + 1 : eol])
        at = eol + 2
        if kind in b"+-:_#,(":
            pending -= 1
        elif kind in b"$=!":
            size = int(line)
            if size >= 0:
                at += size + 2
                if at > len(data):
                    return -1
            pending -= 1
        elif kind in b"*~>":
            pending += max(int(line), 0) - 1
        elif kind == b"%":
            pending += 2 * int(line) - 1
        elif kind == b"|":
            pending += 2 * int(line)
        else:
            raise AssertionError("not RESP: %r" % bytes(data[start : start + 200]))
    return at


def _text(data):
    return bytes(data).decode("utf-8", "surrogateescape")


def parse(data, at=0):
    """(value, end) of the complete reply at `at`. Errors are Error, maps dict, sets list."""
    eol = data.index(b"\r\n", at)
    kind = bytes(data[at : at + 1])
    line = bytes(data[at + 1 : eol])
    at = eol + 2
    if kind == b"+":
        return _text(line), at
    if kind == b"-":
        return Error(_text(line)), at
    if kind in b":":
        return int(line), at
    if kind == b"(":
        return int(line), at
    if kind == b",":
        return float(line), at
    if kind == b"#":
        return line == b"t", at
    if kind == b"_":
        return None, at
    size = int(line)
    if kind in b"$=!":
        if size < 0:
            return None, at
        value = _text(data[at : at + size])
        if kind == b"=":
            value = value[4:]
        return (Error(value) if kind == b"!" else value), at + size + 2
    if kind == b"|":
        for _ in range(2 * size):
            _, at = parse(data, at)
        return parse(data, at)
    if size < 0:
        return None, at
    items = []
    for _ in range(size * 2 if kind == b"%" else size):
        value, at = parse(data, at)
        items.append(value)
    if kind == b"%":
        keys = [k if isinstance(k, (str, int, float)) else str(k) for k in items[0::2]]
        return dict(zip(keys, items[1::2])), at
    if kind == b">":
        return Push(items), at
    return items, at


class Client:
    """One connection. `address` is (host, port) or the path of a unix socket; `tls` an SSLContext; `source` an address of
    this machine to come from."""

    def __init__(self, address, timeout=TIMEOUT, commands=(), tls=None, source=None):
        self.address = address
        self.timeout = timeout
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(timeout)
            self.sock.connect(address)
        else:
            self.sock = socket.create_connection(address, timeout=timeout, source_address=source and (source, 0))
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.sock = tls.wrap_socket(self.sock, server_hostname=address[0])
        self.buffer = bytearray()
        self.at = 0
        for command in commands:
            reply = self(*command)
            assert not isinstance(reply, Error), (command, reply)

    def close(self):
        self.sock.close()

    def crash(self):
        """As a machine that is gone: no FIN, a reset. A worker that closes in good order at once may be a one-shot client."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ---- bytes --------------------------------------------------------------------------------

    def send(self, data):
        self.sock.sendall(data)

    def shutdown(self):
        """Half-close: the other side sees the end of our bytes and can still answer."""
        self.sock.shutdown(socket.SHUT_WR)

    def fill(self):
        """Waits for more bytes. Raises Closed at the end, TimeoutError after the client's timeout."""
        try:
            data = self.sock.recv(262144)
        except ConnectionResetError:
            raise Closed("connection reset; unread: %r" % bytes(self.buffer[self.at :][:200])) from None
        if not data:
            raise Closed("connection closed; unread: %r" % bytes(self.buffer[self.at :][:200]))
        if self.at > 1 << 20:
            del self.buffer[: self.at]
            self.at = 0
        self.buffer += data

    def read_raw(self):
        """The exact bytes of the next reply."""
        needed = 0
        while True:
            if len(self.buffer) - self.at >= needed:
                end = reply_end(self.buffer, self.at) if len(self.buffer) > self.at else -1
                if end >= 0:
                    data = bytes(self.buffer[self.at : end])
                    self.at = end
                    if self.at == len(self.buffer):
                        self.buffer = bytearray()
                        self.at = 0
                    return data
                if len(self.buffer) - self.at > 65536:
                    needed = 2 * (len(self.buffer) - self.at)  # large replies are not scanned at each arrival
                    eol = self.buffer.find(b"\r\n", self.at)
                    if self.buffer[self.at : self.at + 1] == b"$":
                        needed = eol - self.at + int(self.buffer[self.at + 1 : eol]) + 4
                    else:
                        needed = 0
            self.fill()

    def read(self):
        """The next reply as a Python value."""
        return parse(self.read_raw())[0]

    def read_all(self):
        """All bytes up to the end of the connection."""
        data = bytearray(self.buffer[self.at :])
        self.buffer, self.at = bytearray(), 0
        while True:
            try:
                more = self.sock.recv(262144)
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
        return bytes(data)

    def complete(self):
        """Whether a whole reply has come that was not read yet."""
        return len(self.buffer) > self.at and reply_end(self.buffer, self.at) >= 0

    # ---- commands -----------------------------------------------------------------------------

    def __call__(self, *args):
        self.send(encode(*args))
        return self.read()

    def raw(self, *args):
        self.send(encode(*args))
        return self.read_raw()

    def at_once(self, *commands):
        """Sends all commands in one write and returns the replies as Python values. A loser's DEL in `finally` comes at once
        behind its lost attempt; a busy machine may delay a second write by more than the proxy takes for that."""
        self.send(b"".join(encode(*command) for command in commands))
        return [self.read() for _ in commands]

    def pipeline(self, commands):
        """Sends all commands at once and returns the exact bytes of every reply."""
        payload = b"".join(encode(*command) for command in commands)
        return self.exchange(payload, len(commands))

    def exchange(self, payload, count):
        """Sends bytes while reading replies, so that neither side's buffers can fill up for ever."""
        view = memoryview(payload)
        sent = 0
        replies = []
        deadline = time.monotonic() + self.timeout
        self.sock.setblocking(False)
        try:
            while sent < len(view):
                try:
                    sent += self.sock.send(view[sent : sent + 65536])
                    deadline = time.monotonic() + self.timeout
                except WAIT:
                    if time.monotonic() > deadline:
                        raise TimeoutError("the other side takes no bytes; %d of %d sent" % (sent, len(view)))
                    time.sleep(0.0005)
                try:
                    data = self.sock.recv(262144)
                    if not data:
                        raise Closed("closed after %d of %d bytes were sent" % (sent, len(view)))
                    self.buffer += data
                    deadline = time.monotonic() + self.timeout
                except WAIT:
                    pass
        finally:
            self.sock.settimeout(self.timeout)
        for _ in range(count):
            replies.append(self.read_raw())
        return replies


def leaves_out_refused_auth(client):
    """Whether the server is a Redis (7.2 to 8) that answers a refused AUTH behind another command with nothing, so that
    EXEC's array never ends: https://github.com/redis/redis/issues/15640."""
    client.send(encode("PING") + encode("AUTH", "nosuch", "x") + encode("ECHO", "end"))
    replies = [client.read_raw()]
    while replies[-1] != b"$3\r\nend\r\n":
        replies.append(client.read_raw())
    return len(replies) < 3
