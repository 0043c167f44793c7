<?php
// phpredis (php-redis) through the proxy. pecl's extension: compiled, one connection an object.

require __DIR__ . '/features.php';

function open(array $options = []): Redis
{
    $options += ['port' => PORT];
    $redis = new Redis();
    $redis->connect(HOST, $options['port'], 8, null, 0, 8);
    return $redis;
}

$c = open();

/** The call's exception or getLastError() has one of the words. */
function refused(Redis $redis, string $words, callable $call): void
{
    $redis->clearLastError();
    try {
        $result = $call();
        $error = (string) $redis->getLastError();
    } catch (RedisException $exception) {
        $result = null;
        $error = $exception->getMessage();
    }
    expect_words($words, $error !== '' ? $error : 'no error, but ' . var_export($result, true));
}

/** false is what phpredis returns for an error; the proxy's words are behind it. */
function checked(Redis $redis, $result)
{
    if ($redis->getLastError() !== null) {
        throw new Exception($redis->getLastError());
    }
    return $result;
}

$features = [
    'connect' => function () use ($c) {
        $named = open();
        expect($named->ping(), true);
        expect($named->echo('hello'), 'hello');
        expect($named->client('SETNAME', 'worker-1'), true);
        expect($named->client('GETNAME'), 'worker-1');
        expect(isset($named->info()['redis_version']), true);
        if (!CLUSTER) {
            expect($named->select(3), true);
            expect($named->set('only', 'three'), true);
            expect($c->get('only'), false);
        }
        $kept = new Redis();
        expect($kept->pconnect(HOST, PORT, 8, 'worker'), true);
        expect($kept->ping(), true);
        $named->close();
    },
    'auth' => function () {
        expect(open()->auth([USER, PASSWORD]), true);
        $login = open(['port' => LOGIN_PORT]);
        refused($login, 'NOAUTH', fn () => $login->get('a'));
        refused($login, 'WRONGPASS', fn () => $login->auth('wrong'));
        $login = open(['port' => LOGIN_PORT]);
        expect($login->auth(LOGIN_PASSWORD), true);
        expect($login->ping(), true);
    },
    'strings' => function () use ($c) {
        expect($c->set('s', 'v'), true);
        expect($c->get('s'), 'v');
        expect($c->get('none'), false);
        expect($c->append('s', 'w'), 2);
        expect($c->setnx('s', 'x'), false);
        expect($c->getSet('s', 'y'), 'vw');
        expect($c->set('s', 'z', ['nx', 'ex' => 100]), false);
        expect($c->incrBy('n', 42), 42);
        expect($c->incrByFloat('f', 1.5), 1.5);
    },
    'binary' => function () use ($c) {
        expect($c->set(BYTES, BYTES), true);
        expect($c->get(BYTES), BYTES);
        expect($c->hSet('bin', BYTES, BYTES), 1);
        expect($c->hGetAll('bin'), [BYTES => BYTES]);
        $packed = open();
        $packed->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP);
        $packed->set('object', ['a' => [1, null, 2.5]]);
        expect($packed->get('object'), ['a' => [1, null, 2.5]]);
    },
    'large' => function () use ($c) {
        $value = str_repeat(BYTES, 4096);
        expect($c->set('large', $value), true);
        expect($c->get('large') === $value, true);
    },
    'hashes' => function () use ($c) {
        expect($c->hMSet('h', ['a' => 1, 'b' => 'two']), true);
        expect($c->hMGet('h', ['a', 'none']), ['a' => '1', 'none' => false]);
        expect($c->hGetAll('h'), ['a' => '1', 'b' => 'two']);
        expect($c->hIncrBy('h', 'a', 2), 3);
        expect($c->hDel('h', 'a', 'none'), 1);
    },
    'lists' => function () use ($c) {
        expect($c->rPush('l', 'a', 'b', 'c'), 3);
        expect($c->lRange('l', 0, -1), ['a', 'b', 'c']);
        expect($c->lRem('l', 'b', 1), 1);
        expect($c->lPop('l'), 'a');
        expect($c->rPoplPush('{q}none', '{q}to'), false);
    },
    'sets' => function () use ($c) {
        expect($c->sAdd('{s}1', 'a', 'b', 'c'), 3);
        expect($c->sAdd('{s}2', 'c', 'd'), 2);
        expect($c->sInter('{s}1', '{s}2'), ['c']);
        expect($c->sIsMember('{s}1', 'a'), true);
        expect($c->sCard('{s}1'), 3);
    },
    'zsets' => function () use ($c) {
        expect($c->zAdd('z', 1, 'a', 2.5, 'b'), 2);
        expect($c->zScore('z', 'b'), 2.5);
        expect($c->zRange('z', 0, -1, true), ['a' => 1.0, 'b' => 2.5]);
        expect($c->zIncrBy('z', 5, 'a'), 6.0);
    },
    'streams' => function () use ($c) {
        $id = $c->xAdd('x', '*', ['f' => 'v']);
        expect($c->xLen('x'), 1);
        expect($c->xRange('x', '-', '+'), [$id => ['f' => 'v']]);
        expect($c->xRead(['x' => '0']), ['x' => [$id => ['f' => 'v']]]);
        expect($c->xGroup('CREATE', 'x', 'group', '0'), true);
        expect($c->xReadGroup('group', 'me', ['x' => '>']), ['x' => [$id => ['f' => 'v']]]);
        expect($c->xAck('x', 'group', [$id]), 1);
    },
    'expiry' => function () use ($c) {
        expect($c->setEx('e', 100, 'v'), true);
        expect($c->ttl('e') > 95, true);
        expect($c->persist('e'), true);
        expect($c->pExpire('e', 30), true);
        until(fn () => $c->exists('e') === 0);
    },
    'multikey' => function () use ($c) {
        $names = array_map(fn ($i) => "mk:$i", range(0, 99));
        expect($c->mSet(array_combine($names, $names)), true);
        expect($c->mGet([...$names, 'none']), [...$names, false]);
        expect($c->exists(...$names), 100);
        expect($c->del(array_slice($names, 0, 50)), 50);
        expect($c->unlink($names), 50);
    },
    'pipeline' => function () use ($c) {
        $p = $c->pipeline();
        for ($i = 0; $i < 200; $i++) {
            $p->set("p:$i", $i)->incr('count')->rPush('list', $i)->get("p:$i")->hSet('hash', $i, 'v');
        }
        $replies = $p->exec();
        expect(count($replies), 1000);
        for ($i = 0; $i < 200; $i++) {
            expect(array_slice($replies, 5 * $i, 5), [true, $i + 1, $i + 1, (string) $i, 1]);
        }
        $mixed = $c->pipeline()->set('a', 1)->lPush('a', 2)->mGet(['a', 'p:1'])->get('a')->exec();
        expect($mixed, [true, false, ['1', '1'], '1']);
    },
    'scripts' => function () use ($c) {
        expect($c->eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", ['sc', 42], 1), 42);
        $sha = $c->script('load', "return {KEYS[1], ARGV[1], 3, false}");
        expect($c->evalSha($sha, ['sc', 'arg'], 1), ['sc', 'arg', 3, false]);
        refused($c, 'NOSCRIPT', fn () => $c->evalSha(str_repeat('0', 40)));
        refused($c, 'oops', fn () => $c->eval("return redis.error_reply('ERR oops')"));
    },
    'scan' => function () use ($c) {
        $names = array_map(fn ($i) => "scan:$i", range(0, 499));
        $c->mSet(array_combine($names, $names));
        $c->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
        $found = [];
        $cursor = null;
        while (($some = $c->scan($cursor, 'scan:*', 20)) !== false) {
            $found = array_merge($found, $some);
        }
        expect(count(array_unique($found)), 500);
    },
    'errors' => function () use ($c) {
        $c->set('err', 'text');
        refused($c, 'WRONGTYPE', fn () => $c->lPush('err', 1));
        refused($c, 'unknown command', fn () => $c->rawCommand('NOSUCHCOMMAND', 'a'));
        refused($c, 'wrong number of arguments', fn () => $c->rawCommand('GET'));
        expect($c->get('err'), 'text');
    },
    'pool' => function () {
        $pool = array_map(fn ($i) => open(), range(0, 7));
        for ($i = 0; $i < 800; $i++) {
            $pool[$i % 8]->incr('pool');
            $pool[$i % 8]->set("pool:" . $i % 8, $i);
            expect($pool[$i % 8]->get("pool:" . $i % 8), (string) $i);
        }
        expect($pool[0]->get('pool'), '800');
    },
    'multi' => function () use ($c) {
        $c->clearLastError();
        $multi = checked($c, $c->multi());
        expect($multi->set('{t}a', 1)->incr('{t}a')->get('{t}none')->exec(), [true, 2, false]);
    },
    'watch' => function () {
        $mine = open();
        $other = open();
        $other->set('w', 1);
        expect(checked($mine, $mine->watch('w')), true);
        $other->set('w', 10);
        expect($mine->multi()->set('w', 2)->exec(), false);
        $mine->watch('w');
        expect($mine->multi()->incr('w')->exec(), [11]);
    },
    'blocking' => function () {
        $mine = open();
        expect(checked($mine, $mine->blPop(['bl'], 1)), []);
        in_child(function () {
            usleep(200000);
            open()->rPush('bl', 'later');
        });
        expect($mine->brPop(['bl'], 5), ['bl', 'later']);
    },
    'pubsub' => function () {
        $mine = open();
        in_child(function () {
            $other = open();
            publish_until_heard(fn () => $other->publish('news', BYTES));
        });
        $got = null;
        try {
            $mine->subscribe(['news', 'more'], function ($redis, $channel, $message) use (&$got) {
                $got = $message;
                $redis->close(); // the way out of the loop, which ends in an exception
            });
            $probe = open(); // subscribe() says no word of an error
            checked($probe, $probe->rawCommand('SUBSCRIBE', 'probe'));
        } catch (RedisException $left) {
        }
        expect($got, BYTES);
    },
    'reconnect' => function () use ($c) {
        $c->set('before', 1);
        restart_proxy();
        expect($c->get('before'), '1');
    },
];

say('version', phpversion('redis'));
run($features);
