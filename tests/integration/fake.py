"""A fake node: a TCP server whose replies the test defines, with a handler for each request. And a relay before a real one."""

import socket
import socketserver
import threading

from servers import HOST, SLOTS

RECORD = b"lockkeeper:{f2r}:lockkeeper-learnt"


class FakeNode:
    """handler(words, connection) returns the bytes to send back, or None to close. `words` is the request as a list
    of bytes; connection.send(bytes) sends more, at any time. With `strangers` the node itself answers what the proxy
    asks for clients that have not logged in, and the handler hears nothing of it."""

    def __init__(self, handler, strangers=True):
        node = self
        self.requests = []
        self.connections = []
        self.lock = threading.Lock()

        class Connection(socketserver.BaseRequestHandler):
            def handle(self):
                with node.lock:
                    node.connections.append(self)
                data = b""
                try:
                    while True:
                        words, data = split(data)
                        if words is None:
                            more = self.request.recv(65536)
                            if not more:
                                return
                            data += more
                            continue
                        reply = self.to_a_stranger(words)
                        if reply is None:
                            with node.lock:
                                node.requests.append(words)
                            reply = handler(words, self)
                        if reply is None:
                            return
                        self.request.sendall(reply)
                except OSError:
                    pass

            def to_a_stranger(self, words):
                """The reply to one of the proxy's own questions: the rights of clients without login (over a separate
                connection that begins with RESET), maxclients, and what other proxies have learnt. (A proxy without the
                right to read what others have learnt asks again after a minute.) None: it is another request."""
                if strangers and words[0] == b"XRANGE" and words[1] == RECORD:
                    return b"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n"
                if strangers and words == [b"INFO", b"clients"]:
                    return b"-NOPERM this user has no permissions to run the 'info' command\r\n"
                self.for_unauthenticated = strangers and (words == [b"RESET"] or getattr(self, "for_unauthenticated", False))
                if not self.for_unauthenticated:
                    return None
                return {b"RESET": b"+RESET\r\n", b"CONFIG": b"*0\r\n"}.get(words[0], b"+OK\r\n")

            def send(self, data):
                self.request.sendall(data)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 64

        self.server = Server((HOST, 0), Connection)
        self.address = self.server.server_address
        self.port = self.address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def count(self, name):
        with self.lock:
            return sum(1 for words in self.requests if words and words[0].upper() == name)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        with self.lock:
            for connection in self.connections:
                try:
                    connection.request.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Relay:
    """Stands between the proxy and a node. A subclass sees what passes in both directions of every connection."""

    def __init__(self, to):
        self.to = to
        self.listener = socket.create_server((HOST, 0))
        self.address = self.listener.getsockname()
        self.port = self.address[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def connected(self):
        """What the subclass keeps of a new connection."""

    def passes(self, kept, requests, data):
        """Whether data of this connection is passed on; if not, the connection ends. `requests`: it goes to the node."""
        return True

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far, kept = socket.create_connection(self.to), self.connected()
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.pump, args=(source, target, kept, source is near), daemon=True).start()

    def pump(self, source, target, kept, requests):
        try:
            while (data := source.recv(65536)) and self.passes(kept, requests, data):
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


class Link(Relay):
    """Once told to, it closes a connection instead of passing on the answer to what concerns locks."""

    def __init__(self, to):
        self.swallows, self.swallowed = False, 0
        super().__init__(to)

    def connected(self):
        return threading.Event()  # set: the next answer is not passed on

    def passes(self, marked, requests, data):
        if requests and self.swallows and b"lock:x" in data:
            self.swallows = False
            marked.set()
        elif marked.is_set() and not requests:
            self.swallowed += 1
            return False
        return True


def split(data):
    """(words, rest) of the first multibulk in data; (None, data) if it is not complete."""
    eol = data.find(b"\r\n")
    if eol < 0:
        return None, data
    count = int(data[1:eol])
    at = eol + 2
    words = []
    for _ in range(count):
        eol = data.find(b"\r\n", at)
        if eol < 0:
            return None, data
        size = int(data[at + 1 : eol])
        if len(data) < eol + 2 + size + 2:
            return None, data
        words.append(data[eol + 2 : eol + 2 + size])
        at = eol + 2 + size + 2
    return words, data[at:]


def slot_map(*ranges):
    """A reply to CLUSTER SLOTS: (first, last, host, port) each."""
    out = b"*%d\r\n" % len(ranges)
    for number, (first, last, host, port) in enumerate(ranges):
        out += b"*3\r\n:%d\r\n:%d\r\n*3\r\n$%d\r\n%s\r\n:%d\r\n$40\r\n%040d\r\n" % (
            first, last, len(host), host.encode(), port, number + 1)
    return out


def whole_map(port, host=HOST):
    return slot_map((0, SLOTS - 1, host, port))
