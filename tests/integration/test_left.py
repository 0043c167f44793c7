"""A client that left while the proxy was stopped has left: its lease is not renewed once more."""

import signal

from servers import until

LEASE = 2000


def state_of(pid):
    with open("/proc/%d/stat" % pid) as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def test_a_proxy_that_stood_still_looks_who_has_left_before_it_renews(start_redis, start_proxy, connect):
    """A renewal is due, and the owner's end is there to be read, when the proxy goes on."""
    redis = start_redis()
    proxy = start_proxy(redis, "lock lock:* lease %dms" % LEASE)
    with redis.client() as direct:
        for turn in range(5):
            owner, name = connect(proxy), "lock:left:%d" % turn
            assert owner("SETNX", name, "1") == 1
            proxy.signal(signal.SIGSTOP)
            try:
                until(lambda: state_of(proxy.pid) == "T", 10, "the proxy's standing still")
                if direct("PTTL", name) < LEASE * 0.9:
                    continue  # it was renewed already, or is about to be: a busy machine
                owner.close()
                until(lambda: direct("PTTL", name) < LEASE * 0.4, 30, "the time of the renewal")
            finally:
                proxy.signal(signal.SIGCONT)
            last, left = LEASE, direct("PTTL", name)
            while left > LEASE * 0.1:
                assert left <= last and left < LEASE * 0.5, "renewed for nobody"
                last, left = left, direct("PTTL", name)
            return
