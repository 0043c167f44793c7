"""A name server for one program: it answers, is silent, or knows no names, as the test says."""

import os
import socket
import struct
import tempfile
import threading

A, NO_SUCH_NAME = 1, 3


class Names:
    """Serves from its own address on port 53; `before` goes in front of the command line of the program that will ask it."""

    def __init__(self):
        self.known = {}  # a name: its addresses
        self.asked = []  # the names, in the order of the questions
        self.silent = set()  # names about which nothing is said
        self.waiting = []  # what was asked about them
        self.lock = threading.Lock()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        address = "127.53.%d.%d" % (os.getpid() // 250 % 250, os.getpid() % 250 + 1)
        self.socket.bind((address, 53))
        self.file = tempfile.NamedTemporaryFile("w", prefix="lockkeeper-resolv-")
        self.file.write("nameserver %s\noptions timeout:30 attempts:1\n" % address)
        self.file.flush()
        os.chmod(self.file.name, 0o644)
        self.before = ["unshare", "--mount", "sh", "-c", "mount --bind %s /etc/resolv.conf && exec \"$@\"" % self.file.name, "sh"]
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            packet, sender = self.socket.recvfrom(2000)
            if sender == self.socket.getsockname():  # close()
                return
            with self.lock:
                name = self.name(packet)[0]
                self.asked.append(name)
                if name in self.silent:
                    self.waiting.append((packet, sender))
                else:
                    self.answer(packet, sender)

    @staticmethod
    def name(packet):
        """The question's name, and where it ends."""
        at, labels = 12, []
        while packet[at]:
            labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
            at += 1 + packet[at]
        return ".".join(labels), at + 1

    def answer(self, packet, sender):
        name, end = self.name(packet)
        kind = struct.unpack(">H", packet[end : end + 2])[0]
        addresses = self.known.get(name, []) if kind == A else []
        code = 0 if name in self.known else NO_SUCH_NAME
        header = packet[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(addresses), 0, 0)
        records = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 0, 4) + socket.inet_aton(a) for a in addresses)
        self.socket.sendto(header + packet[12 : end + 4] + records, sender)

    def hold(self, *names):
        with self.lock:
            self.silent.update(names)

    def release(self):
        """Answers all waiting questions."""
        with self.lock:
            self.silent.clear()
            for packet, sender in self.waiting:
                self.answer(packet, sender)
            self.waiting.clear()

    def close(self):
        self.socket.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()
        self.file.close()
