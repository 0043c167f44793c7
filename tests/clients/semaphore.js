// A worker in ioredis, as semaphore.py has it: semaphore.js PORT SHAPE KEY. It works at once, and reads no input.
'use strict';

const Redis = require('ioredis');
const [port, shape, key] = [Number(process.argv[2]), process.argv[3], process.argv[4]];
const c = new Redis({ host: '127.0.0.1', port });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function take(n) {
    const have = `${process.pid}:${n}`;
    if (shape === 'count') {
        while (await c.incr(key) > 4) {
            await c.decr(key);
            await pause(2);
        }
    } else if (shape === 'token') {
        let got = null;
        while (!got)
            got = await c.blpop(key, 5);
        return got[1];
    } else {
        await c.multi().zremrangebyscore(key, '-inf', 0).zadd(key, Date.now() / 1000, have).zrank(key, have).exec();
    }
    return have;
}

async function give(have) {
    if (shape === 'count')
        await c.decr(key);
    else if (shape === 'token')
        await c.rpush(key, have);
    else
        await c.zrem(key, have);
}

async function main() {
    for (let n = 0; ; n++) {
        const have = await take(n);
        if (n === 0)
            process.stdout.write(`${process.pid}\n`);
        await pause(5 + Math.random() * 45);
        await give(have);
    }
}

main();
