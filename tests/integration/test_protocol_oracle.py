"""Malformed, odd and random bytes: the proxy answers and closes exactly as Redis does."""

import re

import pytest

import oracle as bytes_oracle
import servers
from resp import Error, encode

PING = b"*1\r\n$4\r\nPING\r\n"
SET = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n"
GET = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"

# Short ones; each is sent whole, byte by byte, and with a valid request behind it.
VECTORS = {
    "request": SET + GET,
    "lower case": b"*2\r\n$3\r\nget\r\n$1\r\nk\r\n",
    "no arguments": b"*0\r\n",
    "minus one arguments": b"*-1\r\n",
    "minus ten arguments": b"*-10\r\n",
    "count zero zero": b"*00\r\n",
    "count leading zero": b"*01\r\n$4\r\nPING\r\n",
    "count plus": b"*+1\r\n$4\r\nPING\r\n",
    "count space": b"* 1\r\n$4\r\nPING\r\n",
    "count space behind": b"*1 \r\n$4\r\nPING\r\n",
    "count word": b"*abc\r\n",
    "count empty": b"*\r\n",
    "count float": b"*1.5\r\n",
    "count hex": b"*0x1\r\n",
    "count over int": b"*2147483648\r\n",
    "count over 64 bits": b"*92233720368547758080\r\n",
    "count minus zero": b"*-0\r\n",
    "count bare LF": b"*1\n$4\nPING\n",
    "count CR without LF": b"*1\rX$4\r\nPING\r\n",
    "count with NUL": b"*1\0\r\n$4\r\nPING\r\n",
    "bulk minus one": b"*1\r\n$-1\r\n",
    "bulk minus two": b"*2\r\n$4\r\nECHO\r\n$-2\r\n",
    "bulk plus": b"*1\r\n$+4\r\nPING\r\n",
    "bulk space": b"*1\r\n$ 4\r\nPING\r\n",
    "bulk leading zero": b"*1\r\n$04\r\nPING\r\n",
    "bulk word": b"*1\r\n$abc\r\n",
    "bulk empty length": b"*1\r\n$\r\n",
    "bulk too long": b"*1\r\n$536870913\r\n",
    "bulk over 64 bits": b"*1\r\n$18446744073709551616\r\n",
    "no bulk": b"*1\r\n:4\r\nPING\r\n",
    "no bulk but array": b"*1\r\n*1\r\n$4\r\nPING\r\n",
    "no bulk but letter": b"*2\r\n$4\r\nECHO\r\nx\r\n",
    "no bulk but CR": b"*1\r\n\r\n",
    "no bulk but NUL": b"*1\r\n\0\r\n",
    "no bulk but high byte": b"*1\r\n\xff\r\n",
    "bulk without CRLF": b"*2\r\n$4\r\nECHO\r\n$3\r\nabcXY",
    "bulk without CRLF in front of another": b"*2\r\n$4\r\nECHOXX$3\r\nabc\r\n",
    "bulk longer than said": b"*2\r\n$4\r\nECHO\r\n$3\r\nabcdef\r\n",
    "bulk shorter than said": b"*2\r\n$4\r\nECHO\r\n$5\r\nabc\r\n" + PING,
    "empty name": b"*1\r\n$0\r\n\r\n",
    "empty argument": b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    "empty key": b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
    "name with NUL": b"*1\r\n$5\r\nPI\0NG\r\n",
    "name with newline": b"*1\r\n$5\r\nPI\nNG\r\n",
    "name with high bytes": b"*1\r\n$4\r\n\xff\xfe\xfd\xfc\r\n",
    "name with quote": b"*2\r\n$3\r\na'b\r\n$3\r\nc'd\r\n",
    "name too long": b"*1\r\n$300\r\n" + b"n" * 300 + b"\r\n",
    "unknown with long arguments": b"*4\r\n$3\r\nfoo\r\n$200\r\n" + b"a" * 200 + b"\r\n$1\r\nb\r\n$1\r\nc\r\n",
    "inline": b"PING\r\n",
    "inline bare LF": b"PING\n",
    "inline spaces": b"   ECHO    hello   \r\n",
    "inline tabs": b"ECHO\thello\r\n",
    "inline empty": b"\r\n",
    "inline empty lines": b"\r\n\n\r\nPING\r\n",
    "inline only spaces": b"    \r\nPING\r\n",
    "inline quotes": b'ECHO "two words"\r\n',
    "inline escapes": b'ECHO "\\x41\\x7a\\n\\r\\t\\b\\a\\\\\\"\\q\\x4"\r\n',
    "inline single quotes": b"ECHO 'it\\'s \\x41'\r\n",
    "inline empty string": b'ECHO ""\r\n',
    "inline unbalanced": b'ECHO "abc\r\n',
    "inline unbalanced single": b"ECHO 'abc\r\n",
    "inline text behind a quote": b'ECHO "abc"def\r\n',
    "inline quote inside": b'ECHO a"b c"\r\n',
    "inline CR inside": b"ECHO a\rb\r\n",
    "inline two CR": b"ECHO a\r\r\n",
    "inline NUL": b"ECHO a\0b\r\n",
    "inline NUL first": b"\0PING\r\n",
    "inline high bytes": b"ECHO \xc3\xa4\xff\r\n",
    "inline many": b"ECHO 1\r\nECHO 2\nECHO 3\r\n",
    "inline dollar": b"$4\r\nPING\r\n",
    "inline minus": b"-ERR\r\n",
    "inline unknown": b"nosuch a b c\r\n",
    "inline arity": b"GET\r\n",
    "inline star in the middle": b"ECHO *1\r\n",
    "http get": b"GET / HTTP/1.1\r\nAccept: */*\r\n\r\n",
    "http post": b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a b\r\n",
    "http host": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nPING\r\n",
    "quit": b"*1\r\n$4\r\nQUIT\r\n",
    "quit with bytes behind": b"*1\r\n$4\r\nQUIT\r\n" + SET + GET,
    "quit inline": b"QUIT\r\nPING\r\n",
    "quit in lower case": b"quit\r\n",
    "quit with arguments": b"*2\r\n$4\r\nQUIT\r\n$1\r\nx\r\n",
    "unfinished": SET + b"*2\r\n$3\r\nGET\r\n$1\r\n",
    "unfinished length": b"*2\r\n$3",
    "unfinished star": b"*",
    "unfinished inline": b"PING",
    "good, then bad": SET + GET + b"*1\r\n:1\r\n" + PING,
    "names in errors": encode("HELLO", "3", "o" * 1000, "b") + encode("HELLO", "3", "a\0b") + encode("HELLO", "3", "a\r\nb\r\n")
    + encode("CLIENT", "x" * 300) + encode("CONFIG", "\0x"),
    "error, then bad": b"*1\r\n$3\r\nGET\r\n*x\r\n",
}

# Here Redis closes at once, and replies to earlier requests are lost where they were not written yet.
ABRUPT = ("http post", "http host")

# Long ones; sent whole and in pieces.
LONG = {
    "inline of 64 KiB": b"ECHO " + b"a" * (65536 - 7) + b"\r\n",
    "inline of 64 KiB and one": b"ECHO " + b"a" * (65536 - 6) + b"\r\n",
    "inline without end": b"a" * 65537,
    "inline without end, just below": b"a" * 65536,
    "inline far too long": b"ECHO " + b"a" * 200000 + b"\r\n",
    "count line without end": b"*" + b"1" * 65537,
    "count line without end, just below": b"*" + b"1" * 65535,
    "bulk line without end": b"*1\r\n$" + b"1" * 65537,
    "bulk line without end, just below": b"*1\r\n$" + b"1" * 65534,
    "many empties": b"\r\n" * 20000 + PING,
    "many zero counts": b"*0\r\n" * 20000 + PING,
    "many pings": PING * 5000,
    "ten thousand arguments": encode("EXISTS", *["k"] * 10000),
    "hundred thousand arguments": encode("EXISTS", *["k"] * 100000),
    "one value of a megabyte": encode("SET", "big", b"x" * (1 << 20)) + encode("GET", "big"),
    "key at a buffer's edge": b"".join(encode("SET", b"k" * n, b"v" * n) + encode("GET", b"k" * n)
                                       for n in (4095, 4096, 4097, 16383, 16384, 16385)),
}


def pieces(data, rng, most):
    at, cut = 0, []
    while at < len(data):
        step = rng.randint(1, most)
        cut.append(data[at : at + step])
        at += step
    return cut


@pytest.fixture
def check(proxy, oracle):
    def check(data, prelude=(), abrupt=False):
        return bytes_oracle.compare(oracle, proxy.address, data, prelude, abrupt)

    return check


# Which trap a vector is part of, by the beginning of its name.
LENGTHS = ("no ", "minus", "count", "bulk", "many zero")
INLINE = ("inline", "http", "many empties")
EDGES = ("empty", "name", "key")


@pytest.mark.parametrize("name", [n for n in VECTORS if n.startswith(LENGTHS)])
def test_trap_16_counts_and_lengths(check, rng, name):
    check_vector(check, rng, name)


@pytest.mark.parametrize("name", [n for n in VECTORS if n.startswith(INLINE)])
def test_trap_18_inline(check, rng, name):
    check_vector(check, rng, name)


@pytest.mark.parametrize("name", [n for n in VECTORS if n.startswith(EDGES)])
def test_trap_19_empty_and_odd_arguments(check, rng, name):
    check_vector(check, rng, name)


@pytest.mark.parametrize("name", [n for n in VECTORS if not n.startswith(LENGTHS + INLINE + EDGES)])
def test_vector(check, rng, name):
    check_vector(check, rng, name)


# What Valkey reads in another way: a byte 255 in a line is a blank there, and a number with a NUL behind it is none. Behind a line of
# blanks, it takes the next line for a command in line, whatever it begins with.
BLANK_LINE = re.compile(rb"(?:^|\n)(?!\r?\n)[ \t\v\f\r]+\n")
OTHERWISE_IN_VALKEY = ("count with NUL", "no bulk but NUL", "inline high bytes")


def check_vector(check, rng, name):
    """Whole, byte by byte and in pieces; with requests before and behind."""
    if servers.valkey() and name in OTHERWISE_IN_VALKEY:
        pytest.skip("Valkey reads it in another way")
    data = VECTORS[name]
    abrupt = name in ABRUPT
    check(data, abrupt=abrupt)
    check(data + PING + GET, abrupt=abrupt)
    check(SET + PING + data, abrupt=abrupt)
    check([bytes([b]) for b in data + GET], abrupt=abrupt)
    for _ in range(3):
        check(pieces(data + PING, rng, 8), abrupt=abrupt)


@pytest.mark.parametrize("name", [n for n in LONG if n.startswith(LENGTHS)])
def test_trap_16_long_lengths(check, rng, name):
    check_long_vector(check, rng, name)


@pytest.mark.parametrize("name", [n for n in LONG if n.startswith(INLINE)])
def test_trap_18_long_inline(check, rng, name):
    check_long_vector(check, rng, name)


@pytest.mark.parametrize("name", [n for n in LONG if not n.startswith(LENGTHS + INLINE)])
def test_long_vector(check, rng, name):
    check_long_vector(check, rng, name)


def check_long_vector(check, rng, name):
    check(LONG[name])
    if "without end" not in name:  # how much Redis reads before it sees the end of the line is chance
        check(LONG[name] + PING)
    check(pieces(LONG[name], rng, 40000))


# Requests of every kind, one behind the other, and each kind of end.
PIPELINE = b"".join([SET, b"ECHO 'in \\x41 line'\r\n", GET, b"*0\r\n", encode("DEL", "k"), encode("SET", "", ""),
                     b"\r\n", encode("GET", ""), b'ECHO "" \n', encode("MSET", "{k}a", "1", "{k}b", "$3\r\n"), b"*-1\r\n",
                     encode("NOSUCH", "a\r\nb"), encode("GET"), encode("MGET", "{k}a", "{k}b")])
ENDS = ("quit", "count word", "bulk word", "no bulk", "inline unbalanced", "unfinished", "bulk too long")


def test_trap_15_split_at_every_byte(check):
    """Several requests in one read, cut in two at every place."""
    for at in range(1, len(PIPELINE)):
        check([PIPELINE[:at], PIPELINE[at:]])


@pytest.mark.parametrize("name", ENDS)
def test_trap_15_ends_split_at_every_byte(check, name):
    data = GET + VECTORS[name]
    for at in range(1, len(data)):
        check([data[:at], data[at:]])


# What the proxy reads at a time, begins a session's buffer with, and passes on while it comes.
BUFFERS = (4096, 16384, 65536, 1 << 20)


@pytest.mark.parametrize("size", BUFFERS)
def test_trap_19_key_as_long_as_a_buffer(check, size):
    """The key, and the whole request, as long as the buffer, plus and minus one; alone and behind another."""
    frame = len(encode("GET", b"k" * size)) - size
    for length in (size - 1, size, size + 1, size - frame - 1, size - frame, size - frame + 1):
        key = b"k" * length
        check(encode("SET", key, "v") + encode("GET", key) + encode("DEL", key))
        check(PING + encode("GET", key) + PING)


def test_resp3_errors(check):
    for name in ("bulk word", "count word", "inline unbalanced", "no bulk", "quit with bytes behind", "inline unknown"):
        check(VECTORS[name] + PING, prelude=[("HELLO", "3")])


ALPHABET = [b"*", b"$", b"\r\n", b"\r", b"\n", b"0", b"1", b"2", b"3", b"4", b"-", b"+", b":", b" ", b"'", b'"', b"\\x",
            b"\0", b"\xff", b"a", b"*1\r\n", b"*2\r\n", b"$4\r\nECHO\r\n", b"$3\r\nGET\r\n", b"$1\r\nk\r\n", b"PING\r\n",
            b"9", b"k", b"65536", b"_", b"%1\r\n", b",", b"#t\r\n", b">"]


@pytest.fixture
def check_random(check):
    def check_random(data):
        flat = b"".join(data) if isinstance(data, list) else bytes(data)
        if not servers.valkey() or not ({0, 255} & set(flat) or BLANK_LINE.search(flat)):
            check(data)

    return check_random


def test_random_garbage(check_random, rng):
    check = check_random
    for _ in range(400):
        check(b"".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 40))))
    for _ in range(100):
        check(bytes(rng.randrange(256) for _ in range(rng.randint(1, 300))))


def test_mutated_requests(check_random, rng):
    check = check_random
    seeds = [SET, GET, PING, encode("MSET", "a", "1", "b", "2"), encode("DEL", "a", "b"), encode("LPUSH", "l", "x", "y"),
             encode("ECHO", "*3\r\n$3\r\n"), b"ECHO 'in line'\r\n", encode("SETEX", "e", 100, ""), encode("LRANGE", "l", 0, 9)]
    for _ in range(500):
        data = bytearray(b"".join(rng.choice(seeds) for _ in range(rng.randint(1, 4))))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            action = rng.randrange(5)
            if action == 0:
                data[at] = rng.randrange(256)
            elif action == 1:
                del data[at]
            elif action == 2:
                data[at:at] = rng.choice(ALPHABET)
            elif action == 3:
                del data[at:]
            else:
                data[at] = rng.choice(b"0123456789")
            if not data:
                data = bytearray(b"\r\n")
        check(pieces(bytes(data), rng, 30) if rng.random() < 0.3 else bytes(data))


# ---- before authentication ---------------------------------------------------------------------

UNAUTHENTICATED = {
    "ten arguments": encode("SET", *"abcdefghi"),
    "eleven arguments": encode("SET", *"abcdefghij"),
    "many arguments": b"*1000000\r\n",
    "bulk of 16384": encode("AUTH", "x" * 16384),
    "bulk of 16385": encode("AUTH", "x" * 16385),
    "bulk over a megabyte": b"*2\r\n$4\r\nAUTH\r\n$1048577\r\n",
    "get": GET,
    "unknown": encode("NOSUCH", "a"),
    "wrong arity": encode("GET"),
    "ping": PING,
    "echo": encode("ECHO", "x"),
    "inline": b"GET k\r\n",
    "inline long": b"ECHO " + b"x" * 30000 + b"\r\n",
    "inline many": b"ECHO " + b"x " * 30 + b"\r\n",
    "wrong password": encode("AUTH", "wrong"),
    "wrong user": encode("AUTH", "nobody", "wrong"),
    "right password": encode("AUTH", "secret") + SET + GET + encode("SET", *"abcdefghij"),
    "default user": encode("AUTH", "default", "secret") + GET,
    "quit": encode("QUIT"),
    "reset": encode("RESET"),
    "select": encode("SELECT", "1"),
    "client": encode("CLIENT", "SETNAME", "me"),
    "command": encode("COMMAND", "COUNT"),
    "hello with wrong auth": encode("HELLO", "3", "AUTH", "default", "wrong"),
    "lock command": encode("SETNX", "lock:a", "1"),
    "del": encode("DEL", "a", "b"),
    "multi": encode("MULTI"),
}


# What only a proxy that has the password can know before Redis has been asked.
NEEDS_REQUIREPASS = ("eleven arguments", "many arguments", "bulk of 16385", "bulk over a megabyte", "client", "multi",
                     "reset", "select", "command")


@pytest.fixture(scope="module")
def locked_redis():
    server = servers.RedisServer("--requirepass", "secret")
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["requirepass", "drop-in"])
def locked_proxy(request, locked_redis):
    """With the password as its own requirepass, or without any: then clients log in to Redis through it."""
    lines = ["requirepass secret", "upstream-password secret"] if request.param == "requirepass" else []
    proxy = servers.Proxy(locked_redis, *lines)
    proxy.drop_in = not lines
    yield proxy
    proxy.stop()
    proxy.remove()


@pytest.mark.parametrize("name", UNAUTHENTICATED)
def test_trap_17_before_authentication(locked_redis, locked_proxy, name):
    if locked_proxy.drop_in and name in NEEDS_REQUIREPASS:
        return
    data = UNAUTHENTICATED[name]
    bytes_oracle.compare(locked_redis, locked_proxy.address, data)
    bytes_oracle.compare(locked_redis, locked_proxy.address, data + GET)
    if len(data) < 1000:
        bytes_oracle.compare(locked_redis, locked_proxy.address, [bytes([b]) for b in data])


def test_works_after_authentication(locked_proxy, connect, key):
    client = connect(locked_proxy)
    name = key("lock:auth")
    assert client("GET", "k").startswith("NOAUTH")
    assert client("AUTH", "secret") == "OK"
    assert client("SETNX", name, "1") == 1
    assert client("AUTH", "wrong").startswith("WRONGPASS ")
    assert client("DEL", name, *[key("none") for _ in range(12)]) == 1
    other = connect(locked_proxy)
    assert isinstance(other("GET", name), Error)


def test_hello_before_authentication(locked_proxy, connect):
    """Redis's versions differ in the words behind these."""
    client = connect(locked_proxy)
    assert client("HELLO", "3").startswith("NOAUTH HELLO must be called with the client already authenticated, ")
    assert client.raw("HELLO", "3", "AUTH", "default", "secret")[:1] == b"%"
    assert client.raw("GET", "none") == b"_\r\n"


HELLO_WRONG = {
    "behind a right login": ["AUTH", "default", "secret", "SETNAME", "me", "x"],
    "behind a wrong login": ["AUTH", "default", "wrong", "x"],
    "a name behind a wrong login": ["AUTH", "default", "wrong", "SETNAME", "me", "x"],
    "a name before a wrong login": ["SETNAME", "me", "AUTH", "default", "wrong"],
    "a wrong name behind a wrong login": ["AUTH", "default", "wrong", "SETNAME", "two words"],
    "a wrong name behind a right login": ["AUTH", "default", "secret", "SETNAME", "two words"],
    "a name without a login": ["SETNAME", "me"],
    "a name before a wrong option": ["SETNAME", "me", "x"],
    "no password": ["AUTH", "default"],
}


@pytest.mark.parametrize("name, known", [(name, known) for name in HELLO_WRONG for known in (False, True)
                                         if not (known and name == "a name without a login")])
def test_hello_does_what_stands_before_its_mistake(locked_redis, locked_proxy, name, known):
    with locked_redis.client(commands=[("AUTH", "secret")]) as redis:
        if "redis_version:7.0." not in redis("INFO", "server"):
            pytest.skip("later versions look at all options first")
    hello, get, who = encode("HELLO", "3", *HELLO_WRONG[name]), encode("GET", "none"), encode("CLIENT", "GETNAME")
    prelude = [("AUTH", "secret")] if known else []
    bytes_oracle.compare(locked_redis, locked_proxy.address, hello + get + encode("AUTH", "secret") + get + who, prelude)
    if known:  # a connection that watches has to follow
        bytes_oracle.compare(locked_redis, locked_proxy.address, encode("WATCH", "k") + hello + get + who, prelude)


def test_one_stranger_does_not_disturb_others(locked_proxy, connect, key):
    """Requests without authentication never cost a client that has logged in its connection."""
    friend, stranger = connect(locked_proxy, commands=[("AUTH", "secret")]), connect(locked_proxy)
    for n in range(20):
        stranger.send(encode("SETNX", "lock:stranger", "1") + encode("DEL", "a", "b"))
        friend.send(encode("SET", "k", n) + encode("GET", "k"))
        assert isinstance(stranger.read(), Error) and isinstance(stranger.read(), Error)
        assert friend.read() == "OK" and friend.read() == str(n)
