"""The permitted differences between two Redis servers that get the same requests. Replies that are not listed here are compared
byte for byte; errors always are."""

import re

from resp import parse, reply_end

# Never sent, or only with a wrong number of arguments.
LEFT_OUT = {
    "shutdown": "it would end the server", "debug": "it harms the server on purpose",
    "replicaof": "it would make the server a replica", "slaveof": "it would make the server a replica",
    "failover": "it waits for replicas", "sync": "it makes the connection a replica's",
    "psync": "it makes the connection a replica's", "replconf": "it has no reply, or makes the connection a replica's",
    "monitor": "others' commands follow", "quit": "it closes the connection; it has tests of its own",
    "save": "it writes a file", "bgsave": "it writes a file in the background, and answers by chance",
    "bgrewriteaof": "as bgsave", "migrate": "it connects to other servers",
    "subscribe": "several replies", "psubscribe": "several replies", "ssubscribe": "several replies",
    "unsubscribe": "several replies", "punsubscribe": "several replies", "sunsubscribe": "several replies",
    "client|reply": "replies stop", "client|kill": "the two servers have other clients", "client|pause": "time stops",
    "client|unblock": "the two servers have other clients", "client|tracking": "pushes may come at any time",
    "client|caching": "as client|tracking", "client|no-evict": "the server's own state",
    "config|set": "it changes how the server answers", "config|rewrite": "there is no file",
    "acl|setuser": "it changes what is allowed", "acl|deluser": "as acl|setuser", "acl|load": "as acl|setuser",
    "acl|save": "as acl|setuser", "module|load": "it needs a module", "module|loadex": "it needs a module",
    "module|unload": "it needs a module", "pfselftest": "it takes a second", "script|debug": "the connection changes",
    "acl|dryrun": "its command may be one of these", "command|getkeys": "as acl|dryrun",
    "spop": "it takes what chance says", "swapdb": "a cluster refuses it in words of its own",
    "function|restore": "its payload is the server's", "restore-asking": "as restore", "reset": "the connection changes",
    "script|kill": "nothing is running", "function|kill": "nothing is running",
    **{"cluster|" + name: "it changes the cluster" for name in (
        "addslots", "addslotsrange", "bumpepoch", "delslots", "delslotsrange", "failover", "flushslots", "forget", "meet",
        "replicate", "reset", "saveconfig", "set-config-epoch", "setslot")},
    "cluster|slot-stats": "a node's own figures, for which the proxy is not asked",
}

# Inside MULTI the proxy refuses these: they are about more than the transaction's one node, or about its own clients.
NOT_QUEUED = {"subscribe", "psubscribe", "unsubscribe", "punsubscribe", "sunsubscribe",
              *("client|" + name for name in ("id", "getname", "setname", "setinfo", "info", "list", "kill", "pause", "unpause",
                                              "unblock", "reply", "no-evict", "no-touch", "tracking", "trackinginfo",
                                              "getredir"))}


def by_chance(words):
    """Whether a server's random seed decides not only the order of the reply, but what is in it: SORT with equal weights,
    or with none, leaves a hash table's elements in their order, and takes some of them, or makes a list."""
    options = [word.lower() for word in words]
    if options[0] not in ("sort", "sort_ro") or "by" not in options or not {"limit", "store"} & set(options):
        return False
    return "alpha" in options or "*" not in "".join(options[options.index("by") + 1:][:1])


SHAPE, UNORDERED, CLOCK = "the same type", "the same elements", "numbers a few seconds apart"
ID = re.compile(rb"(\$2\r\nid\r\n):\d+")

# name: (how far, why)
DIFFERENT = {
    **dict.fromkeys(("smembers", "sinter", "sunion", "sdiff", "hgetall", "hkeys", "hvals", "keys", "sort", "sort_ro"), (
        UNORDERED, "the order of a hash table's elements depends on the server's random seed")),
    **dict.fromkeys(("command", "command|list", "command|docs", "command|info", "acl|cat", "function|list", "acl|list",
                     "acl|users", "pubsub|channels", "pubsub|shardchannels", "config|get"),
                    (UNORDERED, "as smembers: they come from a hash table")),
    **dict.fromkeys(("scan", "sscan", "hscan", "zscan"), (SHAPE, "cursors depend on the server's random seed")),
    **dict.fromkeys(("randomkey", "srandmember", "hrandfield", "zrandmember", "acl|genpass", "lolwut"),
                    (SHAPE, "chance")),
    "time": (SHAPE, "the clock"),
    **dict.fromkeys(("ttl", "pttl", "expiretime", "pexpiretime", "object|idletime", "lastsave", "xpending",
                     "xinfo|consumers", "xinfo|stream", "xinfo|groups", "xautoclaim", "xclaim"), (CLOCK, "the clock")),
    **dict.fromkeys(("dump", "function|dump"), (SHAPE, "as smembers, and times are in it")),
    **dict.fromkeys(("memory|usage", "memory|stats", "memory|doctor", "memory|malloc-stats", "memory|purge"),
                    (SHAPE, "the allocator, and samples by chance")),
    **dict.fromkeys(("info", "slowlog|get", "slowlog|len", "acl|log", "function|stats", "latency|histogram",
                     "latency|doctor", "latency|graph", "latency|latest", "latency|history", "latency|reset"),
                    (SHAPE, "the server's own figures")),
    **dict.fromkeys(("client|id", "client|info", "client|list", "client|getredir", "client|trackinginfo"),
                    (SHAPE, "the connection's own figures")),
    "hello": (ID, "the connection's id"),
    **dict.fromkeys(("cluster|nodes", "cluster|slots", "cluster|shards", "cluster|info", "cluster|myid", "cluster|myshardid", "cluster|links"),
                    (SHAPE, "another cluster")),
}


def same(name, expected, found):
    """Whether the proxy's reply to the command will do, given Redis's. name: 'get' or 'xgroup|create', as Redis calls it."""
    if expected == found:
        return True
    how, _ = DIFFERENT.get(name, (None, ""))
    if how is None or expected[:1] == b"-" or found[:1] == b"-":
        return False
    if how is SHAPE:
        return expected[:1] == found[:1] or {expected[:1], found[:1]} <= {b"$", b"_", b"*"}
    if how is ID:
        return ID.sub(rb"\1", expected) == ID.sub(rb"\1", found)
    a, b = parse(expected)[0], parse(found)[0]
    if how is UNORDERED:
        return flat(a) == flat(b)
    return close(a, b)


def flat(value):
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    return sorted(repr(flat(v)) for v in value) if isinstance(value, list) else value


def close(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    try:
        return a == b or (a is not None and b is not None and abs(int(a) - int(b)) <= 5000)
    except (TypeError, ValueError):
        return False


def elements(reply):
    """The elements of an array's reply, each as its bytes; None if it is no array."""
    if reply[:1] != b"*" or reply[:2] == b"*-":
        return None
    at = reply.index(b"\r\n") + 2
    out = []
    for _ in range(int(reply[1 : at - 2])):
        end = reply_end(reply, at)
        out.append(reply[at:end])
        at = end
    return out
