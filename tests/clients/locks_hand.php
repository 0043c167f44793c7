<?php
// A lock as old PHP code has it, by hand with phpredis: SET NX PX with a constant value, DEL. One connection a worker.
//
// exclusion: processes add to a counter in a file that only the lock protects. extend: PEXPIRE by the holder. late: a
// release after the end of one's own lease frees nobody else's lock. killed: SETNX, and killed before the EXPIRE.

require __DIR__ . '/features.php';

const KEY = 'lock:hand';
const WORKERS = 5;
const ROUNDS = 8;

class Worker
{
    private Redis $redis;

    public function __construct()
    {
        $this->redis = new Redis();
        $this->redis->connect(HOST, PORT, 8, null, 0, 8);
    }

    public function acquire(float $lease, float $wait = 8): bool
    {
        for ($end = microtime(true) + $wait; !$this->try($lease); usleep(2000)) {
            if (microtime(true) > $end) {
                return false;
            }
        }
        return true;
    }

    private function try(float $lease): bool
    {
        return $this->redis->set(KEY, '1', ['nx', 'px' => (int) ($lease * 1000)]) === true;
    }

    public function setnx(): bool
    {
        return $this->redis->setnx(KEY, '1');
    }

    public function extend(float $lease): bool
    {
        return $this->redis->pexpire(KEY, (int) ($lease * 1000));
    }

    public function release(): int
    {
        return $this->redis->del(KEY);
    }
}

function count_in_processes(bool $locked): int
{
    $file = tempnam(sys_get_temp_dir(), 'lockkeeper-counter');
    file_put_contents($file, '0');
    $children = [];
    for ($n = 0; $n < WORKERS; $n++) {
        $children[] = in_child(function () use ($file, $locked) {
            $worker = new Worker();
            for ($i = 0; $i < ROUNDS; $i++) {
                if ($locked && !$worker->acquire(5)) {
                    break;
                }
                $value = (int) file_get_contents($file);
                usleep(2000);
                file_put_contents($file, (string) ($value + 1));
                $locked && $worker->release();
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

say('version', phpversion('redis'));
run([
    'exclusion' => function () {
        if (count_in_processes(false) >= WORKERS * ROUNDS) {
            throw new Exception('without a lock nothing was lost: this shows nothing');
        }
        expect(count_in_processes(true), WORKERS * ROUNDS);
    },
    'extend' => function () {
        [$a, $b] = [new Worker(), new Worker()];
        expect($a->acquire(0.4), true);
        expect($a->extend(3), true);
        expect($b->acquire(1, 0.7), false);
        expect($a->release(), 1);
        expect($b->acquire(1), true);
        expect($b->release(), 1);
    },
    'late' => function () {
        [$a, $b, $c] = [new Worker(), new Worker(), new Worker()];
        expect($a->acquire(0.3), true);
        expect($b->acquire(5), true); // once A's lease is over
        expect($a->release(), 0);
        expect($c->acquire(1, 0.2), false);
        expect($b->release(), 1);
        expect($c->acquire(1), true);
        expect($c->release(), 1);
    },
    'killed' => function () {
        [$mine, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $child = in_child(function () use ($its) {
            $worker = new Worker();
            $worker->setnx();
            fwrite($its, "held\n");
            sleep(60);
        });
        expect(fgets($mine), "held\n");
        $worker = new Worker();
        expect($worker->acquire(1, 0.1), false);
        posix_kill($child, SIGKILL);
        pcntl_waitpid($child, $status);
        expect($worker->acquire(1), true);
        expect($worker->release(), 1);
    },
]);
