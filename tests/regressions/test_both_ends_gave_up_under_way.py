"""A node whose peer was cut off died in UCX's TCP: both ends had given the connection up with bytes under way.

UCX uses one TCP connection for both directions. An end that is closed with bytes under way stays for what comes in, and
waits to write. When the other end says farewell on it, too, UCX frees it, and then writes to it.
"""

import os
import signal
import sys
from pathlib import Path

from served_words import stop
from ucx_words import Talk

ENDS = """
import sys, time
import numpy as np
from kvarter import Status
from kvarter.peers.ucx_library import load
from ucx_words import BLOCK, BLOCKS, Client, Side, whole

ucx = load().module
side = Side()
ours = side.engine.invite()
print(ours.hex(), flush=True)
peer = side.engine.connect(bytes.fromhex(sys.stdin.readline()), ours)
print("connected", flush=True)
sys.stdin.readline()
side.engine.message(peer, b"here")
assert side.wait(ucx.Message).data == b"here"
"""

SENDER = f"""{ENDS}
print("met", flush=True)
sys.stdin.readline()
all_of_it = np.arange(BLOCKS, dtype=np.int64) * BLOCK
ok, sums = np.zeros(BLOCKS, np.uint8), np.zeros(BLOCKS, np.uint64)
side.engine.send(peer, 1, 1, all_of_it, np.full(BLOCKS, BLOCK), ok, sums)
while not side.counter("stalls"):
    pass
side.engine.close_peer(peer)
time.sleep(0.5)
print("gave up", flush=True)
sys.stdin.readline()
assert side.wait(ucx.Sent).status == Status.Closed
assert side.wait(ucx.Closed).peer == peer
client = Client()
whole(client)
client.close()
side.engine.close()
print("alive", flush=True)
"""

RECEIVER = f"""{ENDS}
print("met", flush=True)
while not side.counter("dropped_unasked"):
    time.sleep(0.01)
time.sleep(0.5)  # what was under way has come, and the other end could write
side.engine.close_peer(peer)
assert side.wait(ucx.Closed).peer == peer
print("gave up", flush=True)
sys.stdin.readline()
"""


def end(program: str) -> Talk:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return Talk(sys.executable, "-c", program, env={**os.environ, "PYTHONPATH": path})


def test_an_end_that_both_gave_up_with_bytes_under_way_is_only_an_end() -> None:
    sender, receiver = end(SENDER), end(RECEIVER)
    try:
        sender.say(receiver.said())
        receiver.say(sender.said())
        assert (sender.said(), receiver.said()) == ("connected", "connected")
        sender.say("speak")
        receiver.say("speak")
        assert (sender.said(), receiver.said()) == ("met", "met")
        stop(receiver.process.pid)
        sender.say("send")
        assert sender.said() == "gave up"
        stop(sender.process.pid)
        os.kill(receiver.process.pid, signal.SIGCONT)
        assert receiver.said() == "gave up"
        os.kill(sender.process.pid, signal.SIGCONT)
        sender.say("go on")
        assert sender.said() == "alive"
    finally:
        sender.close()
        receiver.close()
