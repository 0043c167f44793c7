// Lock libraries of npm for docs/guides/node.md: acquired, refused, not released by others, released. And locks by hand.
'use strict';

const assert = require('node:assert');

const NAMES = ['ioredis', 'redis5', 'redlock5', 'redis-semaphore'];
for (const name of NAMES) {
    try {
        require.resolve(name);
    } catch (error) {
        console.log(`missing ${name}`);
        process.exit(0);
    }
}
const Redis = require('ioredis');
const { createClient } = require('redis5');
const { default: Redlock } = require('redlock5');
const { Mutex } = require('redis-semaphore');

const [host, port] = [process.env.LK_HOST, Number(process.env.LK_PORT)];

async function main() {
    const [one, two] = ['web', 'worker'].map((connectionName) => new Redis({ host, port, connectionName }));

    const [a, b] = [one, two].map((client) => new Redlock([client], { retryCount: 0 }));
    let lock = await a.acquire(['locks:invoice'], 10000);
    await assert.rejects(b.acquire(['locks:invoice'], 10000));
    lock = await lock.extend(10000);
    await lock.release();
    await (await b.acquire(['locks:invoice'], 10000)).release();
    console.log('held locks:invoice');

    const [mine, yours] = [one, two].map((client) => new Mutex(client, 'invoice', { lockTimeout: 5000, acquireTimeout: 50 }));
    await mine.acquire();
    await assert.rejects(yours.acquire());
    await yours.release();
    await mine.release();
    await yours.acquire();
    await yours.release();
    console.log('held mutex:invoice');

    // By hand, with ioredis and with node-redis; each process has a name, so that none is taken for the other.
    assert.strictEqual(await one.set('lock:report', '1', 'EX', 10, 'NX'), 'OK');
    const hand = createClient({ socket: { host, port }, name: 'cron' });
    await hand.connect();
    assert.strictEqual(await hand.set('lock:report', '1', { NX: true, EX: 10 }), null);
    assert.strictEqual(await hand.del('lock:report'), 0);
    assert.strictEqual(await one.del('lock:report'), 1);
    console.log('held lock:report');

    await hand.quit();
    await Promise.all([one.quit(), two.quit()]);
    console.log('done');
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
