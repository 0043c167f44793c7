"""Celery (python3-celery) for docs/guides/django-celery.md: tasks over the proxy as broker and as backend, each done once by
two workers, if Redis is no cluster; and the lock of its documentation."""

import os
import subprocess
import sys
import tempfile
import textwrap
import time

try:
    import celery
    import redis
except ImportError as error:
    sys.exit(print("missing", error))

URL = "redis://%s:%s/0" % (os.environ["LK_HOST"], os.environ["LK_PORT"])
TASKS = 20
SOURCE = textwrap.dedent("""
    import celery, redis
    app = celery.Celery("tasks", broker="%s", backend="%s")

    @app.task(name="feed.count")
    def count(number):
        redis.Redis.from_url("%s").rpush("done", number)
        return number * 2
    """) % (URL, URL, URL)


def work():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tasks.py"), "w") as f:
            f.write(SOURCE)
        sys.path.insert(0, folder)
        import tasks

        log = open(os.path.join(folder, "log"), "w")
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", "solo", "--loglevel", "WARNING", "-n"]
        workers = [subprocess.Popen([*command, "w%d@host" % n], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                   for n in (1, 2)]
        try:
            results = [tasks.count.delay(n) for n in range(TASKS)]
            assert [result.get(timeout=60) for result in results] == [2 * n for n in range(TASKS)]
            assert sorted(map(int, redis.Redis.from_url(URL).lrange("done", 0, -1))) == list(range(TASKS))
        except Exception:
            print(open(log.name).read(), file=sys.stderr)
            raise
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(30)


if os.environ["LK_BACKEND"] != "cluster":  # its transactions have keys of several slots
    work()

# What Celery's documentation does for a task that must not run twice at once, without Django.
one, two = [redis.Redis.from_url(URL + "?client_name=" + name) for name in ("one", "two")]
assert one.set(":1:feed.count-lock-5ac1", "app", nx=True, ex=60)
assert not two.set(":1:feed.count-lock-5ac1", "app", nx=True, ex=60)
assert two.delete(":1:feed.count-lock-5ac1") == 0 and one.delete(":1:feed.count-lock-5ac1") == 1
print("held :1:feed.count-lock-5ac1")
print("done")
