"""Shared by the Python programs of this folder: runs features and prints their results."""

import os
import signal
import sys

HOST = os.environ["LK_HOST"]
PORT = int(os.environ["LK_PORT"])
LOGIN_PORT = int(os.environ["LK_LOGIN_PORT"])
LOGIN_PASSWORD = os.environ["LK_LOGIN_PASSWORD"]
USER = os.environ["LK_USER"]
PASSWORD = os.environ["LK_PASSWORD"]
CLUSTER = os.environ["LK_BACKEND"] == "cluster"
FEATURE_SECONDS = 10

BYTES = bytes(range(256)) + b"\r\n$3\r\nfoo\r\n*1\r\n\0\0\r\n"


class NotInLibrary(Exception):
    pass


def say(*fields):
    print("\t".join(" ".join(str(field).split()) for field in fields), flush=True)


def expect(found, wanted):
    """Fails unless both are equal."""
    if found != wanted:
        raise AssertionError("expected %.200r, got %.200r" % (wanted, found))


def expect_error(words, error, call):
    """Fails unless `call` raises `error` with one of `words` in it."""
    try:
        result = call()
    except error as raised:
        if not any(word in str(raised) for word in words.split("|")):
            raise AssertionError("expected an error with %s: %s" % (words, raised)) from raised
        return
    raise AssertionError("expected an error with %s, got %r" % (words, result))


def restart_proxy():
    print("restart", flush=True)
    if not sys.stdin.readline():
        raise AssertionError("no restart")


def run(features):
    """Runs (name, function) pairs, each for a limited time."""

    def give_up(number, frame):
        raise TimeoutError("not done after %d s" % FEATURE_SECONDS)

    signal.signal(signal.SIGALRM, give_up)
    for name, feature in features:
        if os.environ.get("LK_ONLY", name) != name:
            continue
        signal.alarm(FEATURE_SECONDS)
        try:
            feature()
            say(name, "ok")
        except NotInLibrary as why:
            say(name, "none", why)
        except Exception as error:
            say(name, "fail", "%s: %s" % (type(error).__name__, error))
        finally:
            signal.alarm(0)
