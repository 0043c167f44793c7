"""The workers of a run as processes that can be stopped and killed, and a relay that cuts connections."""

import asyncio
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import time

import worker

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "127.0.0.1"


def now():
    return time.monotonic_ns() // 1000


class Member:
    """A place in the crew: an idiom, a lock, a client. Each process that fills it is a worker of its own in the history, and has
    the place's name as the name of its connection, as a restarted service has."""

    def __init__(self, crew, number, idiom, make, name):
        self.crew, self.number, self.idiom, self.make, self.name = crew, number, idiom, make, name
        self.lives = self.pid = 0
        self.stopped = False

    def worker(self):
        return "%s.%d.%d" % (self.idiom, self.number, self.lives)

    def start(self):
        self.lives += 1
        self.crew.inside(self, False)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                self.work()
            except BrokenPipeError:  # its hand was killed first
                os._exit(0)
            except BaseException as error:
                os.write(2, ("%s: %r\n" % (self.worker(), error)).encode())
                os._exit(1)
        os.setpgid(self.pid, self.pid)

    def work(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hand = self.make(self)
        one = worker.Worker(self.worker(), self.idiom, os.path.join(self.crew.folder, "worker-%d" % self.number), hand,
                            self.make(self, True) if self.idiom == "redlock" else None, "%s %s" % (self.crew.seed, self.worker()))
        while not self.crew.state[0]:
            one.round(lambda inside: self.crew.inside(self, inside))
        os._exit(0)

    def stop(self):
        self.crew.note(self.worker(), "stopped")
        os.killpg(self.pid, signal.SIGSTOP)
        self.stopped = True

    def go_on(self):
        os.killpg(self.pid, signal.SIGCONT)
        self.stopped = False

    def kill(self):
        self.crew.note(self.worker(), "dead")
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid, self.stopped = 0, False


class Crew:
    """All workers of a run. `folder` gets their histories; state[0] tells them to end, state[n + 1] says whether one is in its
    section."""

    def __init__(self, folder, seed):
        self.folder, self.seed, self.members = folder, seed, []
        self.state = mmap.mmap(-1, 4096)
        self.events = []

    def note(self, who, *words):
        self.events.append([now(), who, *words])

    def add(self, idiom, make, name):
        self.members.append(Member(self, len(self.members), idiom, make, name))

    def inside(self, member, yes):
        self.state[member.number + 1] = yes

    def aim(self, dice):
        """A worker that runs; three times of four, if there is one, a worker in its section."""
        running = [m for m in self.members if m.pid and not m.stopped]
        inside = [m for m in running if self.state[m.number + 1]]
        return dice.choice(inside if inside and dice.random() < 0.75 else running) if running else None

    def end(self):
        """Lets the workers finish what they do, and returns the history."""
        self.state[0] = 1
        deadline = time.monotonic() + 15
        for member in self.members:
            while member.pid and os.waitpid(member.pid, os.WNOHANG) == (0, 0):
                if member.stopped:
                    member.go_on()
                time.sleep(0.005)
                if time.monotonic() > deadline:
                    member.kill()
            member.pid = 0
        return self.history()

    def history(self):
        events = list(self.events)
        for name in os.listdir(self.folder):
            if name.startswith("worker-"):
                with open(os.path.join(self.folder, name)) as f:
                    events += [json.loads(line) for line in f if line.endswith("\n")]
        events.sort(key=lambda event: event[0])
        with open(os.path.join(self.folder, "history"), "w") as f:
            f.writelines(json.dumps(event) + "\n" for event in events)
        return events

    def abandon(self):
        for member in self.members:
            if member.pid:
                os.killpg(member.pid, signal.SIGKILL)
                os.waitpid(member.pid, 0)


# ---- the relay ----------------------------------------------------------------------------------


class Relay:
    """A process between some workers and their server, which cuts connections: `cut` all at once, or `half`: it says to the server
    that no more comes, and passes replies on."""

    def __init__(self, to, seed):
        with socket.create_server((HOST, 0)) as listener:
            self.port = listener.getsockname()[1]
            self.child = subprocess.Popen([sys.executable, __file__, str(listener.fileno()), str(to), str(seed)],
                                          stdin=subprocess.PIPE, pass_fds=[listener.fileno()], text=True)

    def do(self, how):
        self.child.stdin.write(how + "\n")
        self.child.stdin.flush()

    def stop(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()


class Passing:
    """The relay's own process."""

    def __init__(self, to, seed):
        self.to, self.dice, self.links = to, random.Random(seed), []

    async def connected(self, near_in, near_out):
        try:
            far_in, far_out = await asyncio.open_connection(HOST, self.to)
        except OSError:
            near_out.close()
            return
        link = (near_out, far_out)
        self.links.append(link)
        await asyncio.gather(self.pump(near_in, far_out), self.pump(far_in, near_out))
        self.links.remove(link)

    async def pump(self, source, target):
        try:
            while data := await source.read(65536):
                target.write(data)
        except (OSError, RuntimeError):  # RuntimeError: it was half-closed
            pass
        target.close()

    def told(self):
        how = sys.stdin.readline().strip()
        if not how:
            os._exit(0)
        for near, far in self.links:
            if how == "half" and self.dice.random() < 0.5:
                far.write_eof()
            elif how == "cut" or how == "all":
                near.transport.abort()
                far.transport.abort()

    async def serve(self, descriptor):
        asyncio.get_running_loop().add_reader(0, self.told)
        server = await asyncio.start_server(self.connected, sock=socket.socket(fileno=descriptor))
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(Passing(int(sys.argv[2]), sys.argv[3]).serve(int(sys.argv[1])))
