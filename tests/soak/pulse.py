"""Whether the nodes themselves have processor time: each is asked around the proxy, again and again.

On a busy machine a server may be as silent as a stopped one, for as long as upstream-timeout. The errors that clients
get then are not the proxy's fault, and a waiting client does not hang. It knows nothing of clients.
"""

import asyncio

PAUSE = 0.2
LATE = 0.5  # seconds without an answer after which a node is short of time


async def answer(address):
    """Waits for a word of the node, or the end of its connection."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(b"PING\r\n")
        await reader.readline()
    finally:
        writer.close()


async def watch(net, node):
    """Notes a stop if a node is silent that no fault has stopped, and stops the net's clock meanwhile."""
    while True:
        task = asyncio.ensure_future(answer(node.address))
        window = None
        try:
            while not (await asyncio.wait([task], timeout=LATE))[0]:
                if node.harmed:
                    break
                if not window:
                    window = net.record.begin("stop", "port %d has no time" % node.port, "no time")
                    net.held += 1
            if task.done():
                task.exception()
        finally:
            task.cancel()
            if window:
                net.held -= 1
                net.record.end(window)
        await asyncio.sleep(PAUSE)
