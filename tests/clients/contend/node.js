// Workers with ioredis or node-redis that contend for one lock over the one connection that the process has:
// node.js PACKAGE NAME=VALUE ... (run.py says what they mean). silent=1: the library does not tell the server its name.
'use strict';

const { randomUUID } = require('node:crypto');

const [name, ...words] = process.argv.slice(2);
const library = require(name);
const { version } = require(`${name}/package.json`);
const [ZERO, DELETED, NOT_MINE, FORGOTTEN] = [0, 1, -1, -2];

const o = {};
for (const word of words) {
    const [key, text] = word.split('=', 2);
    o[key] = ['host', 'key', 'value'].includes(key) ? text : Number(text);
}

const now = () => Number(process.hrtime.bigint() / 1000n);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const part = (x) => x - Math.floor(x);

async function connect() {
    if (name.startsWith('ioredis')) {
        const c = new library({ host: o.host, port: o.port, disableClientInfo: o.silent === 1 });
        await c.ping();
        return {
            acquire: (value) => c.set(o.key, value, 'PX', o.lease, 'NX'),
            get: () => c.get(o.key),
            del: () => c.del(o.key),
            close: () => c.disconnect(),
        };
    }
    const c = library.createClient({ socket: { host: o.host, port: o.port }, disableClientInfo: o.silent === 1 });
    c.on('error', (error) => { throw error; });
    await c.connect();
    return {
        acquire: (value) => c.set(o.key, value, { NX: true, PX: o.lease }),
        get: () => c.get(o.key),
        del: () => c.del(o.key),
        close: () => (c.destroy ? c.destroy() : c.disconnect()),
    };
}

class Worker {
    constructor(number, client) {
        const place = o.seed * o.workers + number;
        const share = (number + part(o.seed * 0.754877666)) / o.workers;
        Object.assign(this, { number, client, sections: [], freed: 0, attempts: 0 });
        Object.assign(this, { works: part(place * 0.754877666), polls: part(place * 0.56984029) });
        Object.assign(this, { forget: share, overrun: part(share + 0.5 / o.workers) });
    }

    // Numbers that fill their range evenly, so that few of them do as well as many random ones.
    work() {
        this.works = part(this.works + 0.6180339887);
        return o.work_min + (o.work_max - o.work_min) * this.works;
    }

    poll() {
        this.polls = part(this.polls + 0.4142135624);
        return sleep(o.poll_min + (o.poll_max - o.poll_min) * this.polls);
    }

    due(fault) {
        this[fault] += o[fault];
        const is = this[fault] >= 1;
        this[fault] = part(this[fault]);
        return is;
    }

    value() {
        if (o.value === 'constant') return '1';
        return o.value === 'worker' ? `worker-${this.number}` : randomUUID();
    }

    async release(value) {
        if (o.compare && await this.client.get() !== value) return NOT_MINE;
        return await this.client.del() ? DELETED : ZERO;
    }

    async section(value, sent) {
        const entered = now();
        const work = this.work();
        await sleep(this.due('overrun') ? o.lease * (1.2 + this.works) : work);
        const left = now();
        const outcome = this.due('forget') ? FORGOTTEN : await this.release(value);
        this.sections.push([this.number, sent, entered, left, now(), outcome]);
    }

    async run(end) {
        while (now() < end) {
            const value = this.value();
            const sent = now();
            this.attempts++;
            if (await this.client.acquire(value)) await this.section(value, sent);
            else if (o.losers) this.freed += await this.release(value) === DELETED;
            await this.poll();
        }
    }
}

async function main() {
    const client = await connect();
    const workers = Array.from({ length: o.workers }, (_, n) => new Worker(n, client));
    const end = now() + o.seconds * 1e6;
    await Promise.all(workers.map((worker) => worker.run(end)));
    client.close();
    const sum = (field) => workers.reduce((total, worker) => total + worker[field], 0);
    console.log(JSON.stringify({ version, attempts: sum('attempts'), freed: sum('freed'),
        sections: workers.flatMap((worker) => worker.sections) }));
}

main();
