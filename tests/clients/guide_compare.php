<?php
// phpredis (php-redis) for docs/guides/compare.md: a lock that the server compares itself.

if (!extension_loaded('redis')) {
    exit("missing phpredis\n");
}

function expect($found, $wanted, string $what): void
{
    if ($found !== $wanted) {
        fwrite(STDERR, "$what: " . var_export($found, true) . "\n");
        exit(1);
    }
}

[$one, $two] = array_map(function (string $name): Redis {
    $redis = new Redis();
    $redis->connect(getenv('LK_HOST'), (int) getenv('LK_PORT'), 10);
    $redis->client('setname', $name);
    return $redis;
}, ['one', 'two']);

$ways = ['DELIFEQ' => ['DELIFEQ', 'lock:invoice'], 'DELEX' => ['DELEX', 'lock:invoice', 'IFEQ']];
$ways = array_filter($ways, fn(string $name): bool => (bool) $one->rawCommand('COMMAND', 'INFO', $name)[0], ARRAY_FILTER_USE_KEY);
expect(count($ways) > 0, true, 'a command that compares');
foreach ($ways as $name => $release) {
    expect($one->set('lock:invoice', 'first', ['nx', 'px' => 5000]), true, 'the first');
    expect($two->rawCommand(...$release, ...['second']), 0, "$name by the second");
    expect($two->del('lock:invoice'), 0, 'a bare release by the second');
    expect($one->rawCommand('SET', 'lock:invoice', 'first', 'IFEQ', 'first', 'PX', '9000'), true, 'an extension');
    expect($one->pttl('lock:invoice') > 5000, true, 'its end');
    expect($one->rawCommand(...$release, ...['first']), 1, $name);
    expect($two->set('lock:invoice', 'second', ['nx', 'px' => 5000]), true, 'the second, after the release');
    expect($one->rawCommand(...$release, ...['first']), 0, "a late $name");
    expect($two->rawCommand(...$release, ...['second']), 1, "$name of the second");
}
echo "held lock:invoice\ndone\n";
