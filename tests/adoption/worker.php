<?php
// A worker like worker.js, over phpredis and with the names that Laravel gives to a cache's locks: SET NX EX, and DEL in
// `finally`, whoever has the lock (forceRelease). Corrected: DEL by who has acquired it. Prints how often two were inside at once.
// php worker.php PORT ROUNDS unsafe|corrected

[, $port, $rounds, $how] = $argv;
$redis = new Redis();
$redis->connect('127.0.0.1', (int) $port);
$key = 'laravel_database_laravel_cache:invoice:lock';
$overlaps = 0;

for ($i = 0; $i < (int) $rounds; $i++) {
    $held = false;
    try {
        $held = (bool) $redis->set($key, '1', ['nx', 'ex' => 30]);
        if ($held) {
            $overlaps += $redis->hIncrBy('shop:inside', 'php', 1) !== 1;
            usleep(random_int(3000, 7000));
            $redis->hIncrBy('shop:inside', 'php', -1);
        }
    } finally {
        if ($how === 'unsafe' || $held) {
            $redis->del($key);
        }
        usleep(random_int(0, 6000)); // so that now one comes first, now the other
    }
}
echo $overlaps, "\n";
