// A worker with ioredis that reads, works, and writes under a lock: ioredis.js NAME=VALUE ... (run.py says what they mean).
'use strict';

const Redis = require('ioredis');
const { version } = require('ioredis/package.json');

const RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const o = Object.fromEntries(process.argv.slice(2).map((word) => word.split('=', 2)));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function main() {
    let done = false;
    process.stdin.resume().on('end', () => { done = true; });
    const locks = new Redis({ host: o.host, port: Number(o.lock_port) });
    const data = o.data_port === o.lock_port ? locks : new Redis({ host: o.host, port: Number(o.data_port) });
    let [entered, written, fenced] = [0, 0, 0];
    while (!done) {
        const mine = `${o.name}:${entered}`;
        try {
            if (!await locks.set(o.lock, mine, 'PX', o.lease, 'NX')) {
                await sleep(1);
                continue;
            }
            entered++;
            const read = Number(await data.get(o.data));
            await sleep(Number(o.work));
            try {
                written += await data.set(o.data, read + 1) === 'OK';
            } catch (error) {
                if (!error.message.startsWith('FENCED ')) throw error;
                fenced++;
            }
            await locks.eval(RELEASE, 1, o.lock, mine);
        } catch (error) { // the rule's on-loss
            if (!error.message.startsWith('LOST ')) throw error;
            fenced++;
        }
    }
    locks.disconnect();
    data.disconnect();
    console.log(JSON.stringify({ version, entered, written, fenced }));
}

main();
