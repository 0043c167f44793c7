"""Who gets in: passwords that were revoked, a Redis that nobody has asked yet, wrong passwords by the thousand, and who
may look into the proxy.
"""

import time

import pytest

from resp import Error
from servers import until

WRONG = "WRONGPASS invalid username-password pair or user is disabled."


def refused(answer, words):
    return isinstance(answer, Error) and str(answer).startswith(words)


# ---- revoked credentials ------------------------------------------------------------------------


REVOKED = {
    "another password": ["ACL", "SETUSER", "alice", "<old", ">new"],
    "off": ["ACL", "SETUSER", "alice", "off"],
}


@pytest.mark.parametrize("way", REVOKED)
@pytest.mark.parametrize("words", [("AUTH", "alice", "old"), ("HELLO", "3", "AUTH", "alice", "old")], ids=["AUTH", "HELLO"])
def test_a_revoked_password_lets_nobody_in(start_redis, start_proxy, connect, way, words):
    """While who has logged in with it before is still there, and stays, as at a Redis itself."""
    server = start_redis()
    server.run("ACL", "SETUSER", "alice", "on", ">old", "~*", "+@all")
    proxy = start_proxy(server)
    old, late = connect(proxy), connect(proxy)
    assert not isinstance(old(*words), Error) and old("SET", "k", "v") == "OK"
    server.run(*REVOKED[way])
    assert refused(late(*words), WRONG) and late("ACL", "WHOAMI") == "default"
    assert old("ACL", "WHOAMI") == "alice"
    if way == "another password":
        assert late("AUTH", "alice", "new") == "OK" and late("ACL", "WHOAMI") == "alice"


def test_a_changed_requirepass_is_the_one_that_counts(start_redis, start_proxy, connect):
    server = start_redis("--requirepass", "old")
    proxy = start_proxy(server)
    old, late = connect(proxy), connect(proxy)
    assert old("AUTH", "old") == "OK" and old("CONFIG", "SET", "requirepass", "new") == "OK"
    assert refused(late("AUTH", "old"), WRONG) and refused(late("GET", "k"), "NOAUTH")
    assert late("AUTH", "new") == "OK" and late("GET", "k") is None
    assert old("GET", "k") is None


@pytest.mark.parametrize("words", [["ACL", "SETUSER", "default", "off"], ["CONFIG", "SET", "requirepass", "new"]],
                         ids=["default off", "requirepass"])
def test_who_comes_after_a_password_was_set_needs_it(start_redis, start_proxy, connect, words):
    """Who was there before stays, as at a Redis itself; RESET makes him one who comes."""
    server = start_redis()
    server.run("ACL", "SETUSER", "root", "on", ">p", "~*", "+@all")
    proxy = start_proxy(server)
    old = connect(proxy)
    assert old("SET", "k", "v") == "OK"
    time.sleep(1.2)  # as long as the proxy takes to ask for those who have come
    assert old("GET", "k") == "v"
    server.run(*words)
    time.sleep(1.2)

    def shut():
        with proxy.client() as late:
            return refused(late("GET", "k"), "NOAUTH")

    until(shut, timeout=3, what="a refusal")
    for _ in range(10):
        assert shut()
    assert old("GET", "k") == "v"
    assert old("RESET") == "RESET" and refused(old("GET", "k"), "NOAUTH")
    assert old("AUTH", "root", "p") == "OK" and old("GET", "k") == "v"
