<?php
// Laravel's cache locks (php-illuminate-cache) for docs/guides/laravel.md: acquired, refused, not released by others, released.

foreach (['Illuminate/Cache/autoload.php', 'Illuminate/Redis/autoload.php', 'Predis/Autoloader.php'] as $file) {
    if (!@include_once $file) {
        exit("missing $file\n");
    }
}

use Illuminate\Cache\RedisStore;
use Illuminate\Redis\Connections\PredisConnection;

Predis\Autoloader::register();

/** One worker's store, over a connection of its own; the factory stands where an application has its RedisManager. */
function store(): RedisStore
{
    $client = new Predis\Client(['host' => getenv('LK_HOST'), 'port' => (int) getenv('LK_PORT')], ['prefix' => 'laravel_database_']);
    return new RedisStore(new class (new PredisConnection($client)) implements Illuminate\Contracts\Redis\Factory {
        public function __construct(private $connection)
        {
        }

        public function connection($name = null)
        {
            return $this->connection;
        }
    }, 'laravel_cache');
}

function expect($found, $wanted, string $what): void
{
    if ($found !== $wanted) {
        fwrite(STDERR, "$what: " . var_export($found, true) . "\n");
        exit(1);
    }
}

[$one, $two] = [store(), store()];
foreach ([10, 0] as $seconds) { // SET EX NX; SETNX
    [$a, $b] = [$one->lock('lock:invoice', $seconds), $two->lock('lock:invoice', $seconds)];
    expect($a->acquire(), true, 'the first');
    expect($b->acquire(), false, 'the second');
    expect($b->release(), false, 'a release by the second');
    expect($b->acquire(), false, 'the second, again');
    expect($a->release(), true, 'the release');
    expect($b->acquire(), true, 'the second, after the release');
    expect($b->release(), true, "the second's release");
    echo "held laravel_database_laravel_cache:lock:invoice\n";
}

// A unique job: acquired by one process, released by another without asking whose it is.
$job = 'laravel_unique_job:App\\Jobs\\Import1';
expect($one->lock($job, 60)->acquire(), true, 'a unique job');
expect($one->lock($job, 60)->acquire(), false, 'the same job once more');
$two->lock($job)->forceRelease();
expect($one->lock($job, 60)->acquire(), true, 'the job, when it is done');
$two->lock($job)->forceRelease();
echo "held laravel_database_laravel_cache:$job\n";

// The scheduler: add() and forget().
$mutex = 'framework/schedule-' . sha1('report');
expect($one->add($mutex, true, 60), true, 'add');
expect($two->add($mutex, true, 60), false, 'a second add');
expect($one->forget($mutex), true, 'forget');
echo "held laravel_database_laravel_cache:$mutex\n";
echo "done\n";
