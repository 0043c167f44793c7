"""A short run of the soak test (tests/soak): random clients and lock workers while nodes are killed, stopped and cut off,
slots move, and proxies die, reload and replace each other. Its longer runs are by hand.
"""

import os
import subprocess
import sys

import pytest

from servers import ROOT, binary

SECONDS, PERCENT = 20, 25
# Failovers need more patience than a short run has: test_failover.py and test_sentinel.py have them one by one.
FAULTS = "kill,stop,blink,connections,scripts,reload,second,handover,migrate,cut,mute"


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_chaos(rng, kind):
    run = subprocess.run([sys.executable, os.path.join(ROOT, "tests/soak/soak.py"), "--backend", kind, "--seconds",
                          str(SECONDS), "--faults", FAULTS, "--clients", str(PERCENT), "--seed", str(rng.randrange(10 ** 6))],
                         env={**os.environ, "LOCKKEEPER": binary()}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         timeout=140)
    print(run.stdout.decode("utf-8", "replace"))
    assert run.returncode == 0, "promises were broken: see above"
