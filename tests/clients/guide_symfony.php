<?php
// Symfony's locks (php-symfony-lock) for docs/guides/symfony.md: acquired, refused, not released by others, released.

foreach (['Symfony/Component/Lock/autoload.php', 'Predis/Autoloader.php'] as $file) {
    if (!@include_once $file) {
        exit("missing $file\n");
    }
}

use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore;

Predis\Autoloader::register();

function new_lock(string $name)
{
    $client = new Predis\Client(['host' => getenv('LK_HOST'), 'port' => (int) getenv('LK_PORT')]);
    return (new LockFactory(new RedisStore($client)))->createLock($name, 10, false);
}

function expect($found, $wanted, string $what): void
{
    if ($found !== $wanted) {
        fwrite(STDERR, "$what: " . var_export($found, true) . "\n");
        exit(1);
    }
}

[$a, $b] = [new_lock('lock.invoice'), new_lock('lock.invoice')];
expect($a->acquire(), true, 'the first');
expect($b->acquire(), false, 'the second');
$b->release(); // it does nothing
expect($b->acquire(), false, 'the second, again');
expect($a->isAcquired(), true, 'still held');
$a->refresh();
$a->release();
expect($b->acquire(), true, 'the second, after the release');
$b->release();
echo "held lock.invoice\n";
echo "done\n";
