// Lock libraries of npm through the proxy: locks_node.js LIBRARY [hold]. Two multiplexed connections, many workers.
//
// exclusion: workers add to a counter that only the lock protects. late: a release after the end of one's own lease
// frees nobody else's lock. killed: the lock of a killed process ends ('hold' is that process).
'use strict';

const { spawn } = require('node:child_process');
const readline = require('node:readline');
const { assert, settings, Kept, sleep, within, run } = require('./features.js');

const [library, hold] = process.argv.slice(2);
const { host, port } = settings;
const equal = assert.deepStrictEqual;

const quiet = (client) => client.on('error', () => {});

function ioredis() {
    const Redis = require('ioredis');
    return quiet(new Redis({ host, port }));
}

function redis3() {
    return quiet(require('redis3').createClient({ host, port }));
}

/** For each library: connect() and acquire(client, milliseconds), which waits and returns a function that releases. */
const libraries = {
    redlock4: {
        connect: ioredis,
        async acquire(client, ms) {
            const Redlock = require('redlock4');
            const lock = await new Redlock([client], { retryCount: -1, retryDelay: 10 }).lock('lock:node', ms);
            return () => lock.unlock();
        },
    },
    redlock5: {
        connect: ioredis,
        async acquire(client, ms) {
            const { default: Redlock } = require('redlock5');
            const redlock = new Redlock([client], { retryCount: -1, retryDelay: 10 });
            const lock = await redlock.acquire(['lock:node'], ms);
            return () => redlock.release(lock, { retryCount: 2 }); // it tries a late one again, too
        },
    },
    'redis-semaphore': {
        connect: ioredis,
        async acquire(client, ms) {
            const { Mutex } = require('redis-semaphore');
            const mutex = new Mutex(client, 'node', { lockTimeout: ms, refreshInterval: 0, acquireTimeout: 8000 });
            await mutex.acquire();
            return () => mutex.release();
        },
    },
    'redis-lock-setnx': {
        connect: redis3,
        acquire: (client, ms) => old(require('redis-lock-setnx')(client, 10), ms),
    },
    'redis-lock': {
        connect: redis3,
        acquire: (client, ms) => old(require('redis-lock')(client, 10), ms),
    },
    warlock: {
        connect: redis3,
        acquire: (client, ms) => new Promise((resolve, reject) => {
            require('node-redis-warlock')(client).optimistic('node', ms, 2000, 10, (error, unlock) => {
                if (error) reject(error);
                else resolve(() => new Promise((done, failed) => unlock((e, n) => (e ? failed(e) : done(n)))));
            });
        }),
    },
    'simple-redis-mutex': {
        connect() {
            const client = quiet(require('redis5').createClient({ socket: { host, port } }));
            client.ready = client.connect();
            return client;
        },
        async acquire(client, ms) {
            await client.ready;
            const { lock } = require('simple-redis-mutex');
            return lock(client, 'node', { timeout: ms, pollingInterval: 50, failAfter: 8000 });
        },
    },
};

/** redis-lock's callbacks as a promise. */
function old(lock, ms) {
    return new Promise((resolve) => lock('node', ms, (done) => resolve(() => new Promise((free) => done(free)))));
}

const { connect, acquire } = libraries[library];

/** What a counter says after all workers have added to it, each under the lock. */
async function count(workers, rounds, take) {
    let total = 0;
    await Promise.all([...Array(workers).keys()].map(async (n) => {
        for (let i = 0; i < rounds; i++) {
            const release = await take(n);
            const value = total;
            await sleep(1);
            total = value + 1;
            await release();
        }
    }));
    return total;
}

const checks = {
    async exclusion() {
        const unlocked = await count(8, 6, async () => async () => {});
        assert(unlocked < 48, 'without a lock nothing was lost: this shows nothing');
        const clients = [connect(), connect()];
        equal(await count(8, 6, (n) => acquire(clients[n % 2], 5000)), 48);
    },

    async late() {
        const [one, two] = [connect(), connect()];
        for (const [first, second] of [[one, one], [one, two]]) {
            const releaseA = await acquire(first, 300);
            await sleep(310);
            const releaseB = await acquire(second, 1500);
            await Promise.resolve(releaseA()).catch(() => {}); // some libraries say that there was nothing to release
            let entered = false;
            const third = acquire(two, 3000).then((release) => ((entered = true), release));
            await sleep(200);
            assert(!entered, "somebody got in: the late release took another's lock");
            await releaseB();
            const released = Date.now();
            await (await within(third, 3000))();
            if (Date.now() - released > 600) {
                throw new Kept("the holder's release counted for the lease that had ended");
            }
        }
    },

    async killed() {
        const child = spawn(process.execPath, [__filename, library, 'hold'], { stdio: ['ignore', 'pipe', 'inherit'] });
        const lines = readline.createInterface({ input: child.stdout })[Symbol.asyncIterator]();
        equal((await lines.next()).value, 'held');
        let entered = false;
        const mine = acquire(connect(), 1000).then((release) => ((entered = true), release));
        await sleep(200);
        assert(!entered, 'somebody got in while the holder was alive');
        child.kill('SIGKILL');
        await (await within(mine, 6000))();
    },
};

if (hold) {
    process.on('unhandledRejection', (error) => process.stdout.write(`${error.message}\n`));
    acquire(connect(), 1500).then(() => {
        process.stdout.write('held\n');
        setTimeout(() => {}, 60000);
    });
} else {
    run(checks);
}
