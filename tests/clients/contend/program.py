"""Runs a client's program with a limit of time, and says of one that does not end how far it came.

A program that gets the word ready=1 connects its workers, prints the line `ready`, and waits for a line before they begin.
A Gate lets several programs begin at the same moment, however long each takes to start.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading

START = 90  # seconds that a program may take until it is ready
END = 40  # seconds that it may take beyond its workers' time


class Disturbed(Exception):
    """A program did not get to its end: an error on a connection, or no time."""


class Gate:
    """It opens when so many programs are ready, or have ended before they were."""

    def __init__(self, programs):
        self.awaited = programs
        self.lock = threading.Lock()
        self.opened = threading.Event()

    def arrive(self):
        with self.lock:
            self.awaited -= 1
            if self.awaited == 0:
                self.opened.set()

    def wait(self):
        """Returns when it is open. Each program has START seconds, so it opens by then."""
        self.opened.wait(START + END)


def stat(pid):
    """A process's fields of /proc, from its state on, or None where it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()
    except OSError:
        return None


def family_of(pid):
    """The process and all that descend from it."""
    parents = {int(name): stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found = [pid]
    for one in found:
        found += [child for child, fields in parents.items() if fields and int(fields[1]) == one]
    return found


def processor_seconds(pids):
    """What processes have used, with the time of their children that have ended."""
    fields = [stat(pid) for pid in pids]
    return sum(int(ticks) for f in fields if f for ticks in f[11:15]) / os.sysconf("SC_CLK_TCK")


class Program:
    """A running program. Its whole family of processes is killed where a limit of time is over, and on leaving."""

    def __init__(self, command, ready, **options):
        self.errors = tempfile.TemporaryFile("w+")
        self.late = ""  # why it was killed
        self.process = subprocess.Popen([*command, *(["ready=1"] if ready else [])], stdout=subprocess.PIPE, stderr=self.errors,
                                        stdin=subprocess.PIPE if ready else subprocess.DEVNULL, text=True, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill(family_of(self.process.pid))
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):
                if file:
                    file.close()

    def kill(self, pids):
        if self.process.poll() is None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def time_over(self, what):
        pids = family_of(self.process.pid)
        self.late = "%s (%d processes used %.1f s of processor time; load %.1f)" % (what, len(pids), processor_seconds(pids),
                                                                                os.getloadavg()[0])
        self.kill(pids)

    @contextlib.contextmanager
    def limit(self, seconds, what):
        timer = threading.Timer(seconds, self.time_over, ["%s after %d s" % (what, seconds)])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def ready(self):
        with self.limit(START, "not ready"):
            return self.process.stdout.readline() == "ready\n"

    def begin(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def result(self, seconds):
        with self.limit(seconds + END, "not done"):
            said = self.process.stdout.read()
            status = self.process.wait()
        if self.late:
            raise Disturbed(self.late)
        if status:
            self.errors.seek(0)
            raise Disturbed("status %d: %s" % (status, " ".join(self.errors.read().split())[:300]))
        try:
            return json.loads(said)
        except ValueError:
            raise Disturbed("it said: " + (said[-300:] or "nothing")) from None


def run(command, seconds, gate=None, **options):
    """Runs a program whose workers contend for so many seconds, and returns what it says. With a gate they begin when it opens."""
    awaited = gate is not None
    try:
        with Program(command, awaited, **options) as program:
            if gate and program.ready():
                gate.arrive()
                awaited = False
                gate.wait()
                program.begin()
            return program.result(seconds)
    finally:
        if awaited:
            gate.arrive()
