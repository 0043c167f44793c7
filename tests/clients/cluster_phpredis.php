<?php
// phpredis's RedisCluster, pointed at the proxy.

require __DIR__ . '/features.php';

say('version', phpversion('redis'));
$c = new RedisCluster(null, [HOST . ':' . PORT], 8, 8);
$names = array_map(fn ($i) => "k:$i", range(0, 99));

run([
    'alone' => function () use ($c) {
        expect($c->_masters(), [[HOST, PORT]]);
    },
    'commands' => function () use ($c, $names) {
        foreach ($names as $name) {
            expect($c->set($name, $name), true);
            expect($c->get($name), $name);
        }
        expect($c->setnx('lock:c', '1'), true);
        expect($c->del('lock:c'), 1);
        expect($c->rpush('l', '1', '2'), 2);
        expect($c->blpop(['l'], 1), ['l', '1']);
        expect($c->lpush('k:1', 'x'), false);
        expect_words('WRONGTYPE', (string) $c->getLastError());
    },
    'multikey' => function () use ($c, $names) {
        expect($c->mset(array_combine($names, $names)), true);
        expect($c->mget($names), $names);
        expect($c->del($names), 100);
    },
    'scripts' => function () use ($c) {
        $c->set('s', 'v');
        $sha = $c->script('s', 'load', "return redis.call('get', KEYS[1])");
        expect($c->evalsha($sha, ['s'], 1), 'v');
        expect($c->eval('return ARGV[1]', ['s', 'x'], 1), 'x');
    },
    'scan' => function () use ($c, $names) {
        $c->mset(array_combine($names, $names));
        $found = [];
        $cursor = null;
        do {
            foreach ($c->scan($cursor, [HOST, PORT], 'k:*', 20) ?: [] as $name) {
                $found[$name] = true;
            }
        } while ($cursor != 0);
        expect(count($found), 100);
        expect(count($c->keys('k:*')), 100);
    },
    'multi' => function () use ($c) {
        expect($c->multi()->set('{t}a', '1')->incr('{t}a')->exec(), [true, 2]);
    },
]);
