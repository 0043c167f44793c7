"""Random requests over all commands of a running Redis, made from what its COMMAND DOCS says of their arguments.

Most are well formed and find keys of the right type; the rest have arguments missing, doubled, swapped or spoilt. The same
generator in the same state gives the same requests. It does not know Redis's replies.
"""

from resp import encode

KEYS_A_TYPE = 3
TYPES = {"string": "s", "bitmap": "s", "list": "l", "hash": "h", "set": "e", "sorted-set": "z", "geo": "g", "stream": "x",
         "hyperloglog": "p"}
SCRIPTS = [
    "return redis.call('get', KEYS[1])",
    "return redis.call('set', KEYS[1], ARGV[1])",
    "return {1, 'two', {3, false, redis.status_reply('FINE')}}",
    "return redis.error_reply('My error')",
    "return redis.pcall('lpush', KEYS[1], unpack(ARGV))",
    "return {KEYS, ARGV}",
    "redis.setresp(3) return {map = {a = 1}, double = {double = 2.5}}",
    "return redis.call('zrange', KEYS[1], 0, -1, 'withscores')",
    "return (",
    "return 3.7",
    "return true",
]
LIBRARY = "#!lua name=lib%d\nredis.register_function('f%d', function(keys, args) return {keys, args} end)"
WORDS = ["a", "b", "c", "one", "10", "-1", "3.5", "hello world", "", "\r\n", "\x00\xff", "x" * 70]
SMALL = ["0", "1", "2", "3", "-1", "-2", "5", "10"]
NO_NUMBERS = ["abc", "", "1.5", "9223372036854775808", "-9223372036854775809", " 1", "1 ", "0x10", "01", "+1", "1e3"]
DOUBLES = ["1", "2.5", "-3", "inf", "-inf", "1e3", "0", "0.1"]
NO_DOUBLES = ["abc", "nan", "", "1..2", "1e999", "(1"]
LONG_TIME = 10 ** 6  # no key expires while it is being compared
FAR = 4102444800  # seconds: it lies ahead, as a time and as a date
NAMES = {
    "operation": ["AND", "OR", "XOR", "NOT", "and", "NAND"],
    "id": ["1-1", "2-1", "3", "0", "$", ">", "-", "+", "0-0", "5-*", "abc"],
    "start": ["0", "-", "1", "(1", "[a", "-inf", "1-1", "-2"],
    "stop": ["-1", "+", "3", "(3", "[z", "+inf", "3-1"],
    "end": ["-1", "+", "3", "(3-1", "3-1"],
    "min": ["-inf", "1", "(1", "[a", "-", "(b"],
    "max": ["+inf", "3", "(3", "[z", "+", "(c"],
    "group": ["g1", "g2"], "groupname": ["g1", "g2"], "consumer": ["c1", "c2"], "consumername": ["c1", "c2"],
    "encoding": ["u8", "i5", "u63", "i64", "u64", "x"], "offset": ["0", "1", "7", "#1", "100", "-1"],
    "encoding_offset": ["u8"], "longitude": ["13.361389", "2.3", "-200"], "latitude": ["38.115556", "48.8", "91"],
    "member": ["a", "b", "c", "Palermo", "Catania"], "field": ["f1", "f2", "f3", "10"], "element": ["a", "b", "c", "1"],
    "type": ["string", "list", "hash", "zset", "set", "stream", "other"], "channel": ["ch1", "ch2"],
    "shardchannel": ["ch1"], "command-name": ["get", "set", "nosuch", "xgroup|create"], "command": ["get", "SET", "nosuch"],
    "function": ["f1", "f2", "nosuch"], "library-name": ["lib1", "lib2", "nosuch"], "username": ["default", "nobody"],
    "serialized-value": ["", "\x00", "\x00\x01a\x0a\x00" + "\x00" * 8], "protover": ["2", "3", "4"], "iso": ["a"],
    "parameter": ["maxmemory-policy", "hash-max-*", "nosuch"], "category": ["read", "nosuch"],
    "connection-name": ["me", "you and me", ""], "clientname": ["me", "you"], "pivot": ["a", "b", "z"],
}


class Grammar:
    def __init__(self, redis, rng, tags=()):
        """`redis`: a client of the server. tags: hash tags for the keys of a cluster."""
        self.rng, self.tags = rng, list(tags)
        self.tag = self.mixed = None
        self.commands = {}  # "get" or "xgroup|create": (group, arguments)
        self.blocking = set()
        self.shas = []
        for name, doc in _map(redis("COMMAND", "DOCS")).items():
            doc = _map(doc)
            subs = _map(doc.get("subcommands", []))
            for sub, sub_doc in subs.items():
                self.commands[sub] = (doc["group"], [_argument(a) for a in _map(sub_doc).get("arguments", [])])
            if not subs or name == "command":
                self.commands[name] = (doc["group"], [_argument(a) for a in doc.get("arguments", [])])
        for row in redis("COMMAND"):
            if "blocking" in row[2]:
                self.blocking.add(row[0])
        self.names = sorted(self.commands)

    def key(self, group):
        letter = TYPES.get(group) if self.rng.random() < 0.9 else None
        letter = letter or self.rng.choice("slhezgxpn")
        name = "%s%d" % (letter, self.rng.randint(1, KEYS_A_TYPE))
        tag = self.rng.choice(self.tags) if self.mixed else self.tag
        return "{%s}%s" % (tag, name) if tag is not None else name

    def populate(self):
        """Requests that make some keys of each type."""
        requests = []
        for self.tag in self.tags or [None]:
            for n in range(1, KEYS_A_TYPE):
                for letter, command in (("s", ["SET", "", "value"]), ("l", ["RPUSH", "", "a", "b", "c", "1"]),
                                        ("h", ["HSET", "", "f1", "v1", "f2", "10"]), ("e", ["SADD", "", "a", "b", "c"]),
                                        ("z", ["ZADD", "", "1", "a", "2", "b", "2", "c"]),
                                        ("g", ["GEOADD", "", "13.361389", "38.115556", "Palermo", "15.08", "37.5", "Catania"]),
                                        ("x", ["XADD", "", "1-1", "f", "v"]), ("x", ["XGROUP", "CREATE", "", "g1", "0"]),
                                        ("x", ["XADD", "", "2-1", "f", "w"]), ("p", ["PFADD", "", "a", "b"])):
                    name = "%s%d" % (letter, n)
                    requests.append([("{%s}%s" % (self.tag, name) if self.tag is not None else name) if word == "" else word
                                     for word in command])
        requests += [["SCRIPT", "LOAD", script] for script in SCRIPTS if script != "return ("]
        requests += [["FUNCTION", "LOAD", "REPLACE", LIBRARY % (1, 1)]]
        return requests

    # ---- one request ----------------------------------------------------------------------------

    def request(self, name):
        """(words, whether nothing was spoilt)"""
        rng = self.rng
        self.tag = rng.choice(self.tags) if self.tags else None
        self.mixed = bool(self.tags) and rng.random() < 0.05
        group, arguments = self.commands[name]
        self.name = name
        words = name.split("|")
        if rng.random() < 0.3:
            words = [word.upper() for word in words]
        start = len(words)
        self.numkeys = None
        for argument in arguments:
            self.add(words, argument, group)
        spoilt = rng.random() < 0.25
        if spoilt:
            for _ in range(rng.randint(1, 2)):
                self.spoil(words, start)
        self.settle(words)
        return words, not spoilt

    def add(self, words, argument, group, depth=0):
        rng = self.rng
        if "optional" in argument["flags"] and rng.random() < 0.6:
            if argument["type"] == "key" and self.numkeys is not None:
                words[self.numkeys], self.numkeys = "0", None
            return
        times = rng.choice((1, 1, 2, 3)) if "multiple" in argument["flags"] else 1
        if argument["type"] == "key" and self.numkeys is not None:
            if rng.random() < 0.95:
                words[self.numkeys] = str(times)
            self.numkeys = None
        for n in range(times):
            token = argument.get("token")
            if token is not None and (n == 0 or "multiple_token" in argument["flags"]):
                words.append(token if self.name != "xadd" or token != "*" else "9-9")
            kind = argument["type"]
            if kind == "oneof":
                self.add(words, {**rng.choice(argument["arguments"]), "flags": []}, group, depth + 1)
            elif kind == "block":
                for inner in argument["arguments"]:
                    self.add(words, inner, group, depth + 1)
            elif kind != "pure-token":
                if argument["name"] == "numkeys":
                    self.numkeys = len(words)
                words.append(self.value(argument["name"], kind, group))

    def value(self, name, kind, group):
        rng = self.rng
        if kind == "key":
            return self.key(group)
        if kind == "pattern":
            return rng.choice(["*", "s*", "?1", "[a-c]*", "", "{*}s*"])
        if kind == "unix-time":
            return rng.choice(["1", str(FAR), str(FAR * 1000), "-1", "abc"])
        if name in ("script",):
            return rng.choice(SCRIPTS)
        if name == "sha1":
            return rng.choice(self.shas + ["0" * 40, "abc"])
        if name in ("function-code", "library-code"):
            n = rng.randint(1, 2)
            return rng.choice([LIBRARY % (n, n), "#!lua name=bad\nreturn (", "return 1"])
        if name in ("seconds", "milliseconds", "ttl"):
            return rng.choice([str(LONG_TIME * rng.randint(1, 10 ** 5)), str(LONG_TIME * rng.randint(1, 10 ** 5)), "0", "-1",
                               *NO_NUMBERS[:3]])
        if name == "timeout":
            return rng.choice(["0.01", "0.02", "-1", "abc"])
        if name == "cursor":
            return rng.choice(["0", "0", "0", "abc"])
        if name in NAMES and rng.random() < 0.9:
            return rng.choice(NAMES[name])
        if kind == "integer":
            return rng.choice(SMALL if rng.random() < 0.9 else NO_NUMBERS)
        if kind == "double":
            return rng.choice(DOUBLES if rng.random() < 0.9 else NO_DOUBLES)
        return rng.choice(WORDS)

    def spoil(self, words, start):
        rng = self.rng
        at = rng.randint(start, len(words))
        what = rng.randrange(5)
        if what == 0:
            del words[max(start, len(words) - rng.randint(1, 2)):]
        elif what == 1:
            words.insert(at, rng.choice(WORDS + NO_NUMBERS))
        elif at == len(words):
            words.append(rng.choice(WORDS))
        elif what == 2:
            del words[at]
        elif what == 3:
            words[at] = rng.choice(WORDS + NO_NUMBERS + SMALL)
        else:
            words.insert(at, words[at])

    def settle(self, words):
        """Nothing blocks for long, or for ever; and no time that is given ends while replies are being compared."""
        name, at, short = words[0].lower(), [], "0.01"
        if name == "function":  # Valkey 8.1 repeats an unknown argument with its line end: its error is two lines then
            words[2:] = [word.replace("\r\n", " ") for word in words[2:]]
        if name in ("blpop", "brpop", "bzpopmin", "bzpopmax", "blmove", "brpoplpush"):
            at = [len(words) - 1]
        elif name in ("blmpop", "bzmpop"):
            at = [1]
        elif name in ("xread", "xreadgroup"):
            at, short = _behind(words, "block"), "5"
        elif name in ("wait", "waitaof"):
            at, short = [len(words) - 1], "5"
        for n in at:
            if 0 < n < len(words):
                try:
                    if 0 < float(words[n]) <= (10 if short == "5" else 0.05) or float(words[n]) < 0:
                        continue
                except ValueError:
                    if not words[n].startswith("0x"):  # Redis reads those of its times that have fractions
                        continue
                words[n] = short
        far = str(FAR)
        if name in ("expire", "pexpire", "setex", "psetex", "restore", "restore-asking"):
            at = [2]
        elif name in ("set", "getex"):
            at = _behind(words, "ex", "px")
        elif name in ("xclaim", "xautoclaim"):
            at = [4]
        elif name == "xpending":
            at = _behind(words, "idle")
        else:
            at = []
        if name == "set":  # a key that has ended already counts until Redis finds it
            at, far = at + _behind(words, "exat", "pxat"), str(FAR * 1000)
        for n in at:
            if n < len(words) and words[n].isdigit() and 0 < int(words[n]) < LONG_TIME:
                words[n] = far


def _behind(words, *options):
    return [n + 1 for n, word in enumerate(words) if word.lower() in options]


def quoted(words):
    """The request as an inline command."""
    out = []
    for word in words:
        data = word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word
        if data.isalnum():
            out.append(data)
        else:
            out.append(b'"' + b"".join(b"%c" % c if chr(c).isalnum() and c < 128 else b"\\x%02x" % c for c in data) + b'"')
    return b" ".join(out) + b"\r\n"


def encoded(words, inline):
    return quoted(words) if inline else encode(*words)


def _map(value):
    return value if isinstance(value, dict) else dict(zip(value[0::2], value[1::2]))


def _argument(value):
    a = _map(value)
    a["flags"] = a.get("flags", [])
    a["arguments"] = [_argument(inner) for inner in a.get("arguments", [])]
    return a
