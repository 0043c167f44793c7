<?php
// phpredis (php-redis) for docs/guides/php.md: locks by hand, and those of its session handler.

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

function client(string $name): Redis
{
    $redis = new Redis();
    $redis->connect(getenv('LK_HOST'), (int) getenv('LK_PORT'), 10);
    $redis->client('setname', $name);
    return $redis;
}

function session(array $options): bool
{
    ini_set('session.save_handler', 'redis');
    ini_set('session.save_path', sprintf('tcp://%s:%s', getenv('LK_HOST'), getenv('LK_PORT')));
    ini_set('session.use_cookies', '0');
    ini_set('session.cache_limiter', '');
    ini_set('redis.session.locking_enabled', '1');
    ini_set('redis.session.lock_wait_time', '20000');
    foreach ($options as $name => $value) {
        ini_set("redis.session.$name", (string) $value);
    }
    session_id('5ac1');
    return @session_start();
}

if (($argv[1] ?? '') === 'session') { // another process, for the same session
    $started = session(['lock_retries' => (int) $argv[2], 'lock_expire' => 30]);
    $_SESSION['n'] = 2;
    error_clear_last();
    @session_write_close();
    exit(!$started || error_get_last() ? 3 : 0); // without the lock phpredis 5 does not write, and phpredis 6 does not begin
}

const DELETE_IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
const EXPIRE_IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0";

[$one, $two] = [client('one'), client('two')];
foreach ([['nx', 'px' => 10000], ['nx']] as $options) {
    expect($one->set('lock:invoice', 'first', $options), true, 'the first');
    expect($two->set('lock:invoice', 'second', $options), false, 'the second');
    expect($two->eval(DELETE_IF_MINE, ['lock:invoice', 'second'], 1), 0, 'a release by the second');
    expect($two->del('lock:invoice'), 0, 'a bare release by the second');
    expect($two->pexpire('lock:invoice', 60000), false, 'an extension by the second');
    expect($one->eval(EXPIRE_IF_MINE, ['lock:invoice', 'first', 20000], 1), 1, 'an extension');
    expect($one->pttl('lock:invoice') > 10000, true, 'its end');
    expect($one->eval(DELETE_IF_MINE, ['lock:invoice', 'first'], 1), 1, 'the release');
    expect($two->set('lock:invoice', 'second', $options), true, 'the second, after the release');
    expect($one->del('lock:invoice'), 0, 'a late release');
    expect($two->del('lock:invoice'), 1, "the second's release");
}

expect(session(['lock_expire' => 0]), true, 'a session');
$_SESSION['n'] = 1;
$lock = 'PHPREDIS_SESSION:5ac1_LOCK';
expect($one->ttl($lock) > 0 && $one->ttl($lock) <= 30, true, 'the end of its lock');
expect($one->del($lock), 0, 'a release of its lock by another client');
$command = [PHP_BINARY, __FILE__, 'session'];
$other = proc_open([...$command, '2'], [], $pipes);
expect(proc_close($other), 3, 'another process, while the session is open');
expect($one->get('PHPREDIS_SESSION:5ac1'), false, 'what it has written');
$other = proc_open([...$command, '500'], [], $pipes);
usleep(200000);
expect(proc_get_status($other)['running'], true, 'a process that waits');
session_write_close();
expect(proc_close($other), 0, 'a process that has waited');
expect($one->get('PHPREDIS_SESSION:5ac1'), 'n|i:2;', 'what the second has written');
expect($one->exists($lock), 0, 'the lock, when both have gone');
echo "held lock:invoice\nheld $lock\ndone\n";
