<?php
// What the PHP programs of this folder share: running features and saying what came of them.

define('HOST', getenv('LK_HOST'));
define('PORT', (int) getenv('LK_PORT'));
define('LOGIN_PORT', (int) getenv('LK_LOGIN_PORT'));
define('LOGIN_PASSWORD', getenv('LK_LOGIN_PASSWORD'));
define('USER', getenv('LK_USER'));
define('PASSWORD', getenv('LK_PASSWORD'));
define('CLUSTER', getenv('LK_BACKEND') === 'cluster');
define('BYTES', implode('', array_map('chr', range(0, 255))) . "\r\n\$3\r\nfoo\r\n*1\r\n\0\0\r\n");

class NotInLibrary extends Exception
{
}

function say(string ...$fields): void
{
    echo implode("\t", array_map(fn ($field) => preg_replace('/\s+/', ' ', $field), $fields)), "\n";
    flush();
}

function expect($found, $wanted): void
{
    if ($found !== $wanted) {
        $show = fn ($value) => substr(json_encode($value, JSON_INVALID_UTF8_SUBSTITUTE), 0, 200);
        throw new Exception('expected ' . $show($wanted) . ', got ' . $show($found));
    }
}

function expect_words(string $words, string $text): void
{
    if (!preg_match("/$words/", $text)) {
        throw new Exception("expected $words: $text");
    }
}

function until(callable $condition, float $seconds = 5): void
{
    for ($end = microtime(true) + $seconds; !$condition(); usleep(5000)) {
        if (microtime(true) > $end) {
            throw new Exception("not within $seconds s");
        }
    }
}

/** Publishes again and again, as long as nobody is there; on a cluster for two seconds, for the count is one node's. */
function publish_until_heard(callable $publish): void
{
    for ($end = microtime(true) + 2; microtime(true) < $end; usleep(50000)) {
        if ($publish() > 0 && !CLUSTER) {
            return;
        }
    }
}

/** Runs something in a process of its own, which is waited for at the end. */
function in_child(callable $work): int
{
    $pid = pcntl_fork();
    if ($pid === 0) {
        try {
            $work();
        } catch (Throwable $error) { // the parent finds out by what is missing
        }
        posix_kill(posix_getpid(), SIGKILL); // no destructor may touch what the parent has open
    }
    register_shutdown_function(fn () => pcntl_waitpid($pid, $status, WNOHANG));
    return $pid;
}

function restart_proxy(): void
{
    echo "restart\n";
    flush();
    if (fgets(STDIN) === false) {
        throw new Exception('no restart');
    }
}

function run(array $features): void
{
    error_reporting(E_ALL & ~E_DEPRECATED & ~E_WARNING & ~E_NOTICE);
    foreach ($features as $name => $feature) {
        if (getenv('LK_ONLY') && getenv('LK_ONLY') !== $name) {
            continue;
        }
        try {
            $feature();
            say($name, 'ok');
        } catch (NotInLibrary $why) {
            say($name, 'none', $why->getMessage());
        } catch (Throwable $error) {
            say($name, 'fail', get_class($error) . ': ' . $error->getMessage());
        }
    }
}
