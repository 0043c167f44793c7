#!/usr/bin/env python3
"""Runs legacy lock code directly on Redis and through the proxy, and prints a table of the results.

demo.py PROGRAM starts two redis-servers and PROGRAM in front of the second one, and lets the same worker processes, each with
one connection of its own, run five lock idioms on both. The workers themselves count the failures, not Redis or the proxy. A
last run has a Redis that forgets locks, as a failover does, without and with `quorum yes`.
Exit status: 0, or 1 if something went wrong through the proxy.

What is counted:

dead lock       A lock whose owner was killed, and which none of the workers that kept asking for it got within
                PATIENCE, several times the expiry that the workers meant it to have.
wrong release   A DEL answered 1 (something was deleted) and sent by a worker that did not hold the lock: its own
                lease had ended for certain before it sent the DEL, or it had never acquired.
double holder   A worker that entered while its own lease was live and another worker was inside whose lease was live
                too. A lease's end is reckoned from before the acquiring command was sent, less MARGIN, so a slow
                machine makes us count less, never more. A worker inside with an ended lease is not counted: no lock
                service can stop the clock.
two holders     A lock that a second worker got while the first one was at work, with a minute's lease.
"""
import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PATIENCE = 2.5  # s to wait for a dead owner's lock
MARGIN = 0.005  # s between our clock and Redis's milliseconds
LEASE = "1s"  # the proxy's lease for locks without an expiry; 30s by default, too long for a demonstration

processes = multiprocessing.get_context("fork")


class RedisError(Exception):
    pass


class Connection:
    """One blocking RESP2 connection, like the ones that legacy code has."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def __call__(self, *words):
        parts = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
        return self.reply()

    def reply(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise RedisError("the connection was lost")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2].decode(errors="replace")
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        raise RedisError(rest.decode(errors="replace"))


def die():
    """Ends the process, as a crash, the kernel's out-of-memory killer or a deployment can between two commands."""
    os.kill(os.getpid(), signal.SIGKILL)


class Truth:
    """The worker inside the critical section of one lock, and until when it is certain to be inside: shared by all
    workers."""

    def __init__(self, workers):
        self.mutex = processes.Lock()
        self.until = processes.Array("d", workers, lock=False)  # 0: not inside
        self.double_holders = processes.Value("i", 0, lock=False)

    def enter(self, worker, lease_end):
        with self.mutex:
            now = time.monotonic()
            others = [end for i, end in enumerate(self.until) if i != worker]
            if now < lease_end and any(now < end for end in others):
                self.double_holders.value += 1
            self.until[worker] = lease_end

    def leave(self, worker):
        with self.mutex:
            self.until[worker] = 0


class Counter:
    def __init__(self):
        self.value = processes.Value("i", 0)

    def add(self):
        with self.value.get_lock():
            self.value.value += 1

    def get(self):
        return self.value.value


def run_together(workers):
    """Runs each (function, arguments) as a process of its own, and waits for them. A worker ends by itself or by
    die(); any other end is an error."""
    started = [processes.Process(target=function, args=arguments) for function, arguments in workers]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode not in (0, -signal.SIGKILL):
            raise RuntimeError("a worker failed")


# Idiom 1: SETNX, EXPIRE, work, DEL, and a crash between the first two.


def crash_owner(port, key):
    redis = Connection(port)
    if redis("SETNX", key, "1") == 1:
        die()
    raise RedisError("the lock was not free")


def crash_successor(port, key, acquired):
    redis = Connection(port)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if redis("SETNX", key, "1") == 1:
            redis("EXPIRE", key, 1)
            acquired.add()
            redis("DEL", key)
            return
        time.sleep(0.05)


def crash(port):
    keys = ["lock:crash:%d" % i for i in range(10)]
    acquired = Counter()
    run_together([(crash_owner, (port, key)) for key in keys])
    run_together([(crash_successor, (port, key, acquired)) for key in keys])
    return [("%d of %d" % (len(keys) - acquired.get(), len(keys)), len(keys) - acquired.get())]


# Idiom 2: SETNX, EXPIRE whether won or lost; the owner crashes, and the losers' EXPIRE keeps its lock alive.


def refresh_owner(port, key):
    redis = Connection(port)
    if redis("SETNX", key, "1") == 1:
        redis("EXPIRE", key, 1)
        die()
    raise RedisError("the lock was not free")


def refresh_contender(port, key, acquired):
    redis = Connection(port)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        won = redis("SETNX", key, "1") == 1
        redis("EXPIRE", key, 1)
        if won:
            acquired.add()
            return  # and keeps the lock, so that it is counted once
        time.sleep(0.1)


def refresh(port):
    """A contender that wins keeps the lock, and the other's EXPIRE is then an EXPIRE on a live lock. So a lock may be
    acquired more than once, and is dead only if no contender ever got it."""
    keys = ["lock:refresh:%d" % i for i in range(8)]
    acquired = [Counter() for _ in keys]
    run_together([(refresh_owner, (port, key)) for key in keys])
    run_together([(refresh_contender, (port, key, acquired[i // 2])) for i, key in enumerate(sorted(keys * 2))])
    dead = sum(1 for counter in acquired if counter.get() == 0)
    return [("%d of %d" % (dead, len(keys)), dead)]


# Idiom 3: SET k 1 NX PX, work that outlives the expiry every second time, bare DEL.

OVERRUN_PX = 200


def overrun_worker(port, key, worker, truth, counters, deadline):
    redis = Connection(port)
    acquisitions, late, wrong = counters
    turn = worker
    while time.monotonic() < deadline:
        asked = time.monotonic()
        if redis("SET", key, "1", "NX", "PX", OVERRUN_PX) != "OK":
            time.sleep(0.01)
            continue
        answered = time.monotonic()
        acquisitions.add()
        truth.enter(worker, asked + OVERRUN_PX / 1000 - MARGIN)
        time.sleep(0.3 if turn % 2 == 0 else 0.08)
        turn += 1
        truth.leave(worker)
        too_late = time.monotonic() > answered + OVERRUN_PX / 1000 + MARGIN
        deleted = redis("DEL", key)
        if too_late:
            late.add()
            if deleted != 0:
                wrong.add()


def overrun(port):
    deadline = time.monotonic() + 3
    truths = [Truth(4) for _ in range(3)]
    acquisitions, late, wrong = counters = Counter(), Counter(), Counter()
    run_together([(overrun_worker, (port, "lock:overrun:%d" % i, worker, truth, counters, deadline))
                  for i, truth in enumerate(truths) for worker in range(4)])
    doubles = sum(truth.double_holders.value for truth in truths)
    return [("%d of %d late DELs" % (wrong.get(), late.get()), wrong.get()),
            ("%d of %d entries" % (doubles, acquisitions.get()), doubles)]


# Idiom 4: DEL in finally, also after a failed acquire.

FINALLY_PX = 5000


def finally_worker(port, key, worker, truth, counters, deadline):
    redis = Connection(port)
    acquisitions, losers, wrong = counters
    while time.monotonic() < deadline:
        won = False
        try:
            asked = time.monotonic()
            won = redis("SET", key, "1", "NX", "PX", FINALLY_PX) == "OK"
            if won:
                acquisitions.add()
                truth.enter(worker, asked + FINALLY_PX / 1000 - MARGIN)
                time.sleep(0.03)
                truth.leave(worker)
        finally:
            deleted = redis("DEL", key)
        if not won:
            losers.add()
            if deleted != 0:
                wrong.add()
        time.sleep(0.012)


def finally_del(port):
    deadline = time.monotonic() + 1.5
    truths = [Truth(4) for _ in range(3)]
    acquisitions, losers, wrong = counters = Counter(), Counter(), Counter()
    run_together([(finally_worker, (port, "lock:finally:%d" % i, worker, truth, counters, deadline))
                  for i, truth in enumerate(truths) for worker in range(4)])
    doubles = sum(truth.double_holders.value for truth in truths)
    return [("%d of %d losers' DELs" % (wrong.get(), losers.get()), wrong.get()),
            ("%d of %d entries" % (doubles, acquisitions.get()), doubles)]


# Idiom 5: data that is read, changed and written under a lock, by workers that pause in between for longer than its lease.

PAUSE_PX = 150


def pause_worker(port, number, worker, written, deadline):
    redis = Connection(port)
    lock, data, turn = "lock:stock:%d" % number, "stock:%d" % number, worker
    while time.monotonic() < deadline:
        mine = "%d:%d" % (worker, turn)
        if redis("SET", lock, mine, "NX", "PX", PAUSE_PX) != "OK":
            time.sleep(0.01)
            continue
        read = int(redis("GET", data) or 0)
        time.sleep(0.3 if turn % 3 == 0 else 0.01)
        turn += 1
        try:
            redis("SET", data, read + 1)
            written.add()
        except RedisError as error:
            if not str(error).startswith("FENCED "):
                raise
        if redis("GET", lock) == mine:
            redis("DEL", lock)


def pause(port):
    """An update is lost if the number at the end is less than the count of writes that were answered OK."""
    deadline = time.monotonic() + 3
    written = Counter()
    run_together([(pause_worker, (port, number, worker, written, deadline)) for number in range(3) for worker in range(4)])
    redis = Connection(port)
    lost = written.get() - sum(int(redis("GET", "stock:%d" % number) or 0) for number in range(3))
    return [("%d of %d updates" % (lost, written.get()), lost)]


# A failover: Redis is killed and comes back empty, like a replica that has not got the last acquisitions.

FAILOVER_PX = 60000


def first_reply(port, *words):
    """The reply, once Redis is back."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return Connection(port)(*words)
        except (OSError, RedisError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def failover(port, restart):
    """Owners of locks are at work while their Redis forgets them. Counts the locks that a second worker gets."""
    keys = ["lock:failover:%d" % i for i in range(10)]
    owners = [Connection(port) for _ in keys]
    for owner, key in zip(owners, keys):
        if owner("SET", key, "1", "NX", "PX", FAILOVER_PX) != "OK":
            raise RedisError("the lock was not free")
    restart()
    doubles = sum(first_reply(port, "SET", key, "1", "NX", "PX", FAILOVER_PX) == "OK" for key in keys)
    return "%d of %d locks" % (doubles, len(keys)), doubles


def run_failover(program, folder):
    """The same on a Redis of its own, directly and through a proxy with three witnesses: the table's row, and the count
    through the proxy."""
    with contextlib.ExitStack() as stack:
        port, proxy = free_port(), free_port()
        command = redis_command(port, folder)
        running = [stack.enter_context(server("redis-failover", port, command, folder))]

        def restart():
            running[-1].kill()
            running[-1].wait()
            running.append(stack.enter_context(server("redis-failover", port, command, folder)))

        directly, _ = failover(port, restart)
        restart()
        stack.enter_context(server("lockkeeper-quorum", proxy, [
            program, "--port", str(proxy), "--bind", "127.0.0.1", "--upstream", "standalone", "127.0.0.1:%d" % port,
            "--witness", "embedded", "--lock", "lock:*", "quorum", "yes"], folder))
        behind, doubles = failover(proxy, restart)
    return ["SET k 1 NX PX 60000, [a failover forgets k]", "two holders", directly, behind + ", quorum yes"], doubles


IDIOMS = [
    ("SETNX k 1, [killed], EXPIRE k 1 ... DEL k", crash, ["dead locks"]),
    ("SETNX k 1, EXPIRE k 1 whether won or lost", refresh, ["dead locks"]),
    ("SET k 1 NX PX 200, work for 300 ms, DEL k", overrun, ["wrong releases", "double holders"]),
    ("SET k 1 NX PX 5000 ... finally: DEL k", finally_del, ["wrong releases", "double holders"]),
    ("SET k v NX PX 150, GET d, [a pause], SET d", pause, ["lost updates"]),
]


def measure(function, port, pipe):
    pipe.send(function(port))


def measure_both(function, ports):
    """Runs the same idiom on both at the same time, on separate servers."""
    runs = []
    for port in ports:
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(target=measure, args=(function, port, sender))
        process.start()
        sender.close()
        runs.append((process, receiver))
    results = []
    for process, receiver in runs:
        try:
            results.append(receiver.recv())
        except EOFError:
            results.append(None)
        process.join()
    return results


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def server(name, port, command, folder):
    """Runs a server until the block ends; it must answer PING within ten seconds."""
    log = os.path.join(folder, "%s.log" % name)
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                Connection(port)("PING")
                break
            except (OSError, RedisError) as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    with open(log, errors="replace") as output:
                        sys.exit("%s did not start: %s\n%s" % (name, error, output.read()))
                time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def redis_command(port, folder):
    return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", folder]


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for i, row in enumerate(rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        if i == 0:
            print("  ".join("-" * width for width in widths))


def print_incidents(port):
    """The proxy's incidents of these runs, by kind; no figure of the table is taken from them."""
    try:
        info = Connection(port)("PROXY", "INFO", "locks")
    except (OSError, RedisError) as error:
        sys.exit("PROXY INFO failed: %s" % error)
    counts = [line[len("incidents_"):].split(":") for line in info.splitlines() if line.startswith("incidents_")]
    print("\nThe proxy's own record (PROXY INCIDENTS has each with its time, client and command):")
    print("  " + ", ".join("%s %s" % (kind, count) for kind, count in counts if count.strip() != "0"))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: demo.py PROGRAM")
    program = sys.argv[1]
    folder = tempfile.mkdtemp(prefix="lockkeeper-demo-")
    try:
        with contextlib.ExitStack() as stack:
            direct, behind, proxy = free_port(), free_port(), free_port()
            stack.enter_context(server("redis-direct", direct, redis_command(direct, folder), folder))
            stack.enter_context(server("redis-behind", behind, redis_command(behind, folder), folder))
            stack.enter_context(server("lockkeeper", proxy, [
                program, "--port", str(proxy), "--bind", "127.0.0.1",
                "--upstream", "standalone", "127.0.0.1:%d" % behind, "--lock", "lock:*", "lease", LEASE,
                "--fence", "stock:*", "by", "lock:stock:*"], folder))
            print("The same workers, one process and one connection each, directly on Redis and through the proxy\n"
                  "(lock lock:* lease %s; fence stock:* by lock:stock:*). Counted by the workers; about fifteen seconds ...\n"
                  % LEASE, flush=True)
            rows = [["what the application sends", "what goes wrong", "directly", "through the proxy"]]
            wrong_through_proxy = 0
            for idiom, function, faults in IDIOMS:
                on_redis, on_proxy = measure_both(function, (direct, proxy))
                for i, fault in enumerate(faults):
                    rows.append([idiom if i == 0 else "", fault] +
                                [result[i][0] if result else "failed" for result in (on_redis, on_proxy)])
                    wrong_through_proxy += on_proxy[i][1] if on_proxy else 1
            row, doubles = run_failover(program, folder)
            rows.append(row)
            wrong_through_proxy += doubles
            print_table(rows)
            print_incidents(proxy)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if wrong_through_proxy:
        sys.exit("\nSomething went wrong through the proxy: that is a defect, please report it.")


if __name__ == "__main__":
    main()
