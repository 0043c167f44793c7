"""Short runs of the soak test (tests/soak): random clients and lock workers while nodes are killed, stopped and cut off,
slots move, masters give way to their replicas, and proxies die, reload and replace each other. Longer runs are by hand.
"""

import os
import subprocess
import sys

import pytest

from servers import ROOT, binary

# Failovers are requested here, so that none waits for an election on a busy machine; test_failover.py and test_sentinel.py
# test elected ones one by one.
WITHOUT = "kill,stop,blink,connections,scripts,reload,second,handover,migrate,cut,mute"
WITH = "connections,scripts,reload,handed,takeover"


@pytest.mark.parametrize("kind, faults, seconds, percent", [
    ("standalone", WITHOUT, 20, 25), ("cluster", WITHOUT, 20, 25), ("cluster", WITH, 12, 20),
], ids=["standalone", "cluster", "failovers"])
def test_chaos(rng, kind, faults, seconds, percent):
    run = subprocess.run([sys.executable, os.path.join(ROOT, "tests/soak/soak.py"), "--backend", kind, "--seconds",
                          str(seconds), "--faults", faults, "--clients", str(percent), "--seed", str(rng.randrange(10 ** 6))],
                         env={**os.environ, "LOCKKEEPER": binary()}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         timeout=140)
    print(run.stdout.decode("utf-8", "replace"))
    assert run.returncode == 0, "promises were broken: see above"
