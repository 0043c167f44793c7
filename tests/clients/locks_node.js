// Lock libraries of npm through the proxy: locks_node.js LIBRARY [hold]. Two multiplexed connections, many workers.
//
// exclusion: workers add to a counter that only the lock protects. extend: a lock whose holder extends it outlives its
// first lease. late: a release after the end of one's own lease
// frees nobody else's lock. killed: the lock of a killed process ends ('hold' is that process).
'use strict';

const { spawn } = require('node:child_process');
const readline = require('node:readline');
const { assert, settings, Kept, NotInLibrary, sleep, within, run } = require('./features.js');

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

/**
 * For each library: connect() and acquire(client, milliseconds, renewing), which waits and returns a function that
 * releases. That one has a function extend(milliseconds) where the library has; or the library renews by itself.
 */
const libraries = {
    redlock4: {
        connect: ioredis,
        async acquire(client, ms) {
            const Redlock = require('redlock4');
            const lock = await new Redlock([client], { retryCount: -1, retryDelay: 10 }).lock('lock:node', ms);
            return extensible(() => lock.unlock(), (longer) => lock.extend(longer));
        },
    },
    redlock5: {
        connect: ioredis,
        async acquire(client, ms) {
            const { default: Redlock } = require('redlock5');
            const redlock = new Redlock([client], { retryCount: -1, retryDelay: 10 });
            let lock = await redlock.acquire(['lock:node'], ms);
            const release = () => redlock.release(lock, { retryCount: 2 }); // it tries a late one again, too
            return extensible(release, async (longer) => { lock = await lock.extend(longer); });
        },
    },
    'redis-semaphore': {
        connect: ioredis,
        async acquire(client, ms, renewing) {
            const { Mutex } = require('redis-semaphore');
            const refreshInterval = renewing ? ms / 3 : 0;
            const mutex = new Mutex(client, 'node', { lockTimeout: ms, refreshInterval, acquireTimeout: 8000 });
            await mutex.acquire();
            return extensible(() => mutex.release(), async () => {});
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

function extensible(release, extend) {
    return Object.assign(release, { extend });
}

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

    async extend() {
        const [one, two] = [connect(), connect()];
        const release = await acquire(one, 400, true);
        if (!release.extend) {
            await release();
            throw new NotInLibrary('a lock cannot be extended');
        }
        await release.extend(2000);
        await sleep(700);
        let entered = false;
        const other = acquire(two, 1000).then((free) => ((entered = true), free));
        await sleep(150);
        assert(!entered, 'somebody got in though the lock was extended');
        await release();
        await (await within(other, 3000))();
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
