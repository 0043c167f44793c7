// redis-semaphore of npm for docs/guides/semaphores.md: a mutex is a lock, and a semaphore lets as many in as it should.
'use strict';

const assert = require('node:assert');

for (const name of ['ioredis', 'redis-semaphore']) {
    try {
        require.resolve(name);
    } catch (error) {
        console.log(`missing ${name}`);
        process.exit(0);
    }
}
const Redis = require('ioredis');
const { Mutex, Semaphore, MultiSemaphore } = require('redis-semaphore');

const [host, port] = [process.env.LK_HOST, Number(process.env.LK_PORT)];
const SOON = { lockTimeout: 5000, acquireTimeout: 50 };

async function main() {
    const clients = ['one', 'two', 'three'].map((connectionName) => new Redis({ host, port, connectionName }));

    const [mine, yours] = clients.map((client) => new Mutex(client, 'invoice', { ...SOON, refreshInterval: 100 }));
    await mine.acquire();
    await new Promise((done) => setTimeout(done, 350)); // it extends meanwhile
    await assert.rejects(yours.acquire());
    await yours.release();
    assert.strictEqual(await clients[1].del('mutex:invoice'), 0);
    await mine.release();
    await yours.acquire();
    await yours.release();
    console.log('held mutex:invoice');

    const [a, b, c] = clients.map((client) => new Semaphore(client, 'mail', 2, { ...SOON, refreshInterval: 100 }));
    await a.acquire();
    await b.acquire();
    await assert.rejects(c.acquire());
    await new Promise((done) => setTimeout(done, 350));
    assert.ok(a.isAcquired && b.isAcquired);
    await a.release();
    await c.acquire();
    await Promise.all([b.release(), c.release()]);
    assert.strictEqual(await clients[0].zcard('semaphore:mail'), 0);

    const [two, one] = [2, 1].map((permits, i) => new MultiSemaphore(clients[i], 'seats', 2, permits, SOON));
    await two.acquire();
    await assert.rejects(one.acquire());
    await two.release();
    await one.acquire();
    await one.release();

    await Promise.all(clients.map((client) => client.quit()));
    console.log('done');
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
