"""A neighbour of an attacker: a process that sends one request after the other, and measures the longest wait.

    neighbour.py HOST PORT KIND        KIND: own (what the proxy answers itself, and any answer will do), get, or lock (all
                                       that neighbours do, in turn)

Says a line when it is connected. Then each line that it reads is answered: "begin" begins anew, "end" prints the longest
wait since then in milliseconds, the number of requests, and what went wrong, if anything did.
"""

import select
import socket
import sys
import time

PAUSE = 0.001  # between two requests, so that the neighbour itself is no load
KINDS = {
    "own": [(b"CLIENT ID\r\n", None)],
    "get": [(b"GET neighbour\r\n", b"$1\r\nv\r\n")],
    "lock": [(b"PING\r\n", b"+PONG\r\n"), (b"GET neighbour\r\n", b"$1\r\nv\r\n"),
             (b"SETNX lock:neighbour 1\r\n", b":1\r\n"), (b"DEL lock:neighbour\r\n", b":1\r\n")],
}


class Neighbour:
    def __init__(self, address, kind):
        self.address, self.steps = address, KINDS[kind]
        self.begin()
        self.connect()

    def connect(self):
        self.sock = socket.create_connection(self.address, timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.steps) > 1 or self.steps[0][0].startswith(b"GET"):
            self.ask(b"SET neighbour v\r\n", b"+OK\r\n")
        self.step = 0

    def begin(self):
        self.longest, self.count, self.wrong = 0.0, 0, ""

    def ask(self, request, expected):
        begun = time.monotonic()
        self.sock.sendall(request)
        reply = b""
        while not reply.endswith(b"\r\n") or (reply[:1] == b"$" and reply[:3] != b"$-1" and reply.count(b"\r\n") < 2):
            more = self.sock.recv(4096)
            if not more:
                raise OSError("the connection was closed")
            reply += more
        self.longest = max(self.longest, time.monotonic() - begun)
        self.count += 1
        if expected and reply != expected and not self.wrong:
            self.wrong = "%s: %s" % (request.split()[0].decode(), reply[:60].decode("latin-1").strip())

    def turn(self):
        try:
            self.ask(*self.steps[self.step % len(self.steps)])
            self.step += 1
        except OSError as error:
            self.wrong = self.wrong or str(error)
            time.sleep(0.1)
            try:
                self.connect()
            except OSError:
                pass


def main():
    neighbour = Neighbour((sys.argv[1], int(sys.argv[2])), sys.argv[3])
    print("ready", flush=True)
    while True:
        if select.select([sys.stdin], [], [], PAUSE)[0]:
            line = sys.stdin.readline().strip()
            if line == "begin":
                neighbour.begin()
                print("begun", flush=True)
            elif line == "end":
                neighbour.turn()  # one more, so that a stall at the end counts
                print("%.1f %d %s" % (1000 * neighbour.longest, neighbour.count, neighbour.wrong), flush=True)
            else:
                return
        neighbour.turn()


main()
