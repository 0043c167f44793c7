<?php
// Symfony's Lock component (php-symfony-lock) through the proxy: locks_symfony.php phpredis|predis.
//
// exclusion: processes add to a counter in a file that only the lock protects. extend: a lock whose holder refreshes it
// outlives its first lease. late: a release after the end of one's
// own lease frees nobody else's lock. killed: the lock of a killed process ends.

require __DIR__ . '/features.php';
require 'Symfony/Component/Lock/autoload.php';
require 'Predis/Autoloader.php';

use Symfony\Component\Lock\Lock;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore;

Predis\Autoloader::register();

const WORKERS = 5;
const ROUNDS = 8;

function new_lock(float $seconds): Lock
{
    if ($GLOBALS['argv'][1] === 'predis') {
        $client = new Predis\Client(['host' => HOST, 'port' => PORT, 'read_write_timeout' => 8]);
    } else {
        $client = new Redis();
        $client->connect(HOST, PORT, 8, null, 0, 8);
    }
    return (new LockFactory(new RedisStore($client)))->createLock('lock:symfony', $seconds, false);
}

function acquire(Lock $lock, float $seconds = 8): bool
{
    for ($end = microtime(true) + $seconds; !$lock->acquire(); usleep(2000)) {
        if (microtime(true) > $end) {
            return false;
        }
    }
    return true;
}

/** What a counter says after all processes have added to it, each under the lock. */
function count_in_processes(bool $locked): int
{
    $file = tempnam(sys_get_temp_dir(), 'lockkeeper-counter');
    file_put_contents($file, '0');
    $children = [];
    for ($n = 0; $n < WORKERS; $n++) {
        $children[] = in_child(function () use ($file, $locked) {
            $lock = new_lock(5);
            for ($i = 0; $i < ROUNDS; $i++) {
                if ($locked && !acquire($lock)) {
                    break;
                }
                $value = (int) file_get_contents($file);
                usleep(2000);
                file_put_contents($file, (string) ($value + 1));
                $locked && $lock->release();
            }
        });
    }
    foreach ($children as $child) {
        pcntl_waitpid($child, $status);
    }
    $total = (int) file_get_contents($file);
    unlink($file);
    return $total;
}

run([
    'exclusion' => function () {
        if (count_in_processes(false) >= WORKERS * ROUNDS) {
            throw new Exception('without a lock nothing was lost: this shows nothing');
        }
        expect(count_in_processes(true), WORKERS * ROUNDS);
    },
    'extend' => function () {
        [$a, $b] = [new_lock(0.4), new_lock(5)];
        expect(acquire($a), true);
        $a->refresh(3);
        expect(acquire($b, 0.7), false);
        $a->release();
        expect(acquire($b), true);
        $b->release();
    },
    'late' => function () {
        [$a, $b, $c] = [new_lock(0.3), new_lock(5), new_lock(5)];
        expect(acquire($a), true);
        expect(acquire($b), true); // once A's lease is over
        $a->release();
        expect(acquire($c, 0.2), false);
        expect($b->isAcquired(), true);
        $b->release();
        expect(acquire($c), true);
        $c->release();
    },
    'killed' => function () {
        [$mine, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $child = in_child(function () use ($its) {
            $lock = new_lock(1.5);
            acquire($lock);
            fwrite($its, "held\n");
            sleep(60);
        });
        expect(fgets($mine), "held\n");
        $lock = new_lock(1);
        expect(acquire($lock, 0.1), false);
        posix_kill($child, SIGKILL);
        pcntl_waitpid($child, $status);
        expect(acquire($lock), true);
        $lock->release();
    },
]);
