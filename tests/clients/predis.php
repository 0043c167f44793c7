<?php
// Predis (php-predis) through the proxy: the client in PHP alone.

require __DIR__ . '/features.php';
require 'Predis/Autoloader.php';

Predis\Autoloader::register();

function open(array $options = []): Predis\Client
{
    return new Predis\Client($options + ['host' => HOST, 'port' => PORT, 'read_write_timeout' => 8]);
}

$c = open();

function refused(string $words, callable $call): void
{
    try {
        $text = 'no error, but ' . var_export($call(), true);
    } catch (Predis\PredisException $error) {
        $text = $error->getMessage();
    }
    expect_words($words, $text);
}

$features = [
    'connect' => function () use ($c) {
        $named = open();
        expect((string) $named->ping(), 'PONG');
        expect($named->echo('hello'), 'hello');
        expect((string) $named->client('setname', 'worker-1'), 'OK');
        expect($named->client('getname'), 'worker-1');
        expect(isset($named->info()['Server']['redis_version']), true);
        if (!CLUSTER) {
            $third = open(['database' => 3]);
            $third->set('only', 'three');
            expect($c->get('only'), null);
            $named->select(3);
            expect($named->get('only'), 'three');
        }
        $named->quit();
    },
    'auth' => function () {
        expect((string) open(['port' => LOGIN_PORT, 'password' => LOGIN_PASSWORD])->ping(), 'PONG');
        refused('WRONGPASS', fn () => open(['port' => LOGIN_PORT, 'password' => 'wrong'])->get('a'));
        refused('NOAUTH', fn () => open(['port' => LOGIN_PORT])->get('a'));
        expect((string) open()->executeRaw(['AUTH', USER, PASSWORD]), 'OK');
    },
    'strings' => function () use ($c) {
        expect((string) $c->set('s', 'v'), 'OK');
        expect($c->get('s'), 'v');
        expect($c->get('none'), null);
        expect($c->append('s', 'w'), 2);
        expect($c->setnx('s', 'x'), 0);
        expect($c->getset('s', 'y'), 'vw');
        expect($c->set('s', 'z', 'EX', 100, 'NX'), null);
        expect($c->incrby('n', 42), 42);
    },
    'binary' => function () use ($c) {
        $c->set(BYTES, BYTES);
        expect($c->get(BYTES), BYTES);
        expect($c->hset('bin', BYTES, BYTES), 1);
        expect($c->hgetall('bin'), [BYTES => BYTES]);
    },
    'large' => function () use ($c) {
        $value = str_repeat(BYTES, 4096);
        $c->set('large', $value);
        expect($c->get('large') === $value, true);
    },
    'hashes' => function () use ($c) {
        $c->hmset('h', ['a' => 1, 'b' => 'two']);
        expect($c->hmget('h', ['a', 'none']), ['1', null]);
        expect($c->hgetall('h'), ['a' => '1', 'b' => 'two']);
        expect($c->hincrby('h', 'a', 2), 3);
        expect($c->hdel('h', ['a', 'none']), 1);
    },
    'lists' => function () use ($c) {
        expect($c->rpush('l', ['a', 'b', 'c']), 3);
        expect($c->lrange('l', 0, -1), ['a', 'b', 'c']);
        expect($c->lrem('l', 1, 'b'), 1);
        expect($c->lpop('l'), 'a');
    },
    'sets' => function () use ($c) {
        expect($c->sadd('{s}1', ['a', 'b', 'c']), 3);
        expect($c->sadd('{s}2', ['c', 'd']), 2);
        expect($c->sinter(['{s}1', '{s}2']), ['c']);
        expect($c->sismember('{s}1', 'a'), 1);
    },
    'zsets' => function () use ($c) {
        expect($c->zadd('z', ['a' => 1, 'b' => 2.5]), 2);
        expect($c->zscore('z', 'b'), '2.5');
        expect($c->zrange('z', 0, -1, 'WITHSCORES'), ['a' => '1', 'b' => '2.5']);
    },
    'streams' => function () use ($c) { // this version has no methods for them
        $id = $c->executeRaw(['XADD', 'x', '*', 'f', 'v']);
        expect($c->executeRaw(['XRANGE', 'x', '-', '+']), [[$id, ['f', 'v']]]);
        expect($c->executeRaw(['XREAD', 'STREAMS', 'x', '0']), [['x', [[$id, ['f', 'v']]]]]);
    },
    'expiry' => function () use ($c) {
        $c->setex('e', 100, 'v');
        expect($c->ttl('e') > 95, true);
        expect($c->persist('e'), 1);
        expect($c->pexpire('e', 30), 1);
        until(fn () => $c->exists('e') === 0);
    },
    'multikey' => function () use ($c) {
        $names = array_map(fn ($i) => "mk:$i", range(0, 99));
        $c->mset(array_combine($names, $names));
        expect($c->mget([...$names, 'none']), [...$names, null]);
        expect($c->exists(...$names), 100);
        expect($c->del($names), 100);
    },
    'pipeline' => function () use ($c) {
        $replies = $c->pipeline(function ($p) {
            for ($i = 0; $i < 200; $i++) {
                $p->set("p:$i", $i);
                $p->incr('count');
                $p->rpush('list', $i);
                $p->get("p:$i");
                $p->hset('hash', $i, 'v');
            }
        });
        expect(count($replies), 1000);
        for ($i = 0; $i < 200; $i++) {
            $five = array_slice($replies, 5 * $i, 5);
            expect([(string) $five[0], ...array_slice($five, 1)], ['OK', $i + 1, $i + 1, (string) $i, 1]);
        }
        refused('WRONGTYPE', fn () => $c->pipeline(fn ($p) => $p->set('a', 1)->lpush('a', 2)));
    },
    'scripts' => function () use ($c) {
        expect($c->eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, 'sc', 42), 42);
        $sha = $c->script('load', 'return {KEYS[1], ARGV[1], 3, false}');
        expect($c->evalsha($sha, 1, 'sc', 'arg'), ['sc', 'arg', 3, null]);
        refused('NOSCRIPT', fn () => $c->evalsha(str_repeat('0', 40), 0));
        refused('oops', fn () => $c->eval("return redis.error_reply('ERR oops')", 0));
    },
    'scan' => function () use ($c) {
        $names = array_map(fn ($i) => "scan:$i", range(0, 499));
        $c->mset(array_combine($names, $names));
        $found = [];
        foreach (new Predis\Collection\Iterator\Keyspace($c, 'scan:*', 20) as $key) {
            $found[$key] = true;
        }
        expect(count($found), 500);
    },
    'errors' => function () use ($c) {
        $c->set('err', 'text');
        refused('WRONGTYPE', fn () => $c->lpush('err', 1));
        expect_words('unknown command', (string) $c->executeRaw(['NOSUCHCOMMAND', 'a']));
        expect_words('wrong number of arguments', (string) $c->executeRaw(['GET']));
        expect($c->get('err'), 'text');
    },
    'pool' => function () {
        $pool = array_map(fn ($i) => open(), range(0, 7));
        for ($i = 0; $i < 800; $i++) {
            $pool[$i % 8]->incr('pool');
        }
        expect($pool[0]->get('pool'), '800');
    },
    'multi' => function () use ($c) {
        $replies = $c->transaction(fn ($tx) => $tx->set('{t}a', 1)->incr('{t}a')->get('{t}none'));
        expect([(string) $replies[0], $replies[1], $replies[2]], ['OK', 2, null]);
    },
    'watch' => function () use ($c) {
        $c->set('w', 1);
        $mine = open();
        $tried = 0;
        $replies = $mine->transaction(['cas' => true, 'watch' => 'w', 'retry' => 2], function ($tx) use ($c, &$tried) {
            $value = $tx->get('w');
            if ($tried++ === 0) {
                $c->set('w', 10);
            }
            $tx->multi();
            $tx->set('w', $value + 1);
        });
        expect([$tried, (string) $replies[0], $c->get('w')], [2, 'OK', '11']);
    },
    'blocking' => function () {
        $mine = open();
        expect($mine->blpop(['bl'], 1), null);
        in_child(function () {
            usleep(200000);
            open()->rpush('bl', ['later']);
        });
        expect($mine->brpop(['bl'], 5), ['bl', 'later']);
    },
    'pubsub' => function () {
        $first = open()->executeRaw(['SUBSCRIBE', 'probe']); // its loop can't show an error
        expect(is_array($first) ? $first : (string) $first, ['subscribe', 'probe', 1]);
        in_child(function () {
            $other = open();
            publish_until_heard(fn () => $other->publish('news', BYTES));
        });
        $got = null;
        $loop = open()->pubSubLoop();
        $loop->subscribe('news', 'more');
        foreach ($loop as $message) {
            if ($message->kind === 'message') {
                $got = $message->payload;
                $loop->unsubscribe('news', 'more');
            }
        }
        expect($got, BYTES);
    },
    'reconnect' => function () use ($c) {
        $c->set('before', 1);
        restart_proxy();
        try {
            $c->get('before'); // an exception closes the lost connection; the next call opens another
        } catch (Predis\Connection\ConnectionException $error) {
        }
        expect($c->get('before'), '1');
    },
];

say('version', Predis\Client::VERSION);
run($features);
