// Workers with ioredis or node-redis that contend for one lock: node.js PACKAGE NAME=VALUE ... (run.py and pools.py say what
// they mean). They share the one connection that the process has. With connections=N each command takes one of N: of
// generic-pool with ioredis, of node-redis 4's isolation pool, of node-redis 5's createClientPool. silent=1: the library
// does not tell the server its name.
'use strict';

const { randomUUID } = require('node:crypto');
const { once } = require('node:events');
const net = require('node:net');

const [name, ...words] = process.argv.slice(2);
const library = require(name);
const { version } = require(`${name}/package.json`);
const [ZERO, DELETED, NOT_MINE, FORGOTTEN, UNSURE] = [0, 1, -1, -2, -3];
const [RETRIES, RETRY_MS, HUNG_MS] = [500, 20, 1000];

const o = {};
for (const word of words) {
    const [key, text] = word.split('=', 2);
    o[key] = ['host', 'port', 'key', 'value'].includes(key) ? text : Number(text);
}

const now = () => Number(process.hrtime.bigint() / 1000n);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const part = (x) => x - Math.floor(x);

// Connections go to the ports by turns. The libraries have no option for it, so the port is put in here.
const ports = o.port.split(',').map(Number);
let turns = 0;
const plain = net.createConnection;
if (ports.length > 1) {
    const byTurns = (options, ...rest) => plain({ ...options, port: ports[turns++ % ports.length] }, ...rest);
    net.createConnection = net.connect = byTurns;
}

const quiet = () => {}; // the command that fails says so

const openIoredis = () => {
    const c = new library({ host: o.host, port: ports[0], disableClientInfo: o.silent === 1,
        ...(o.retry && { retryStrategy: () => RETRY_MS, maxRetriesPerRequest: 0 }) });
    if (o.retry) c.on('error', quiet);
    return c;
};

const nodeRedisOptions = () => ({ disableClientInfo: o.silent === 1,
    socket: { host: o.host, port: ports[0], ...(o.retry && { reconnectStrategy: () => RETRY_MS }) } });

// {use, close}: use(f) calls f with a client and returns what it returns.
async function open() {
    if (name.startsWith('ioredis') && o.connections) {
        const pool = require('generic-pool').createPool({ create: async () => openIoredis(),
            destroy: async (c) => c.disconnect() }, { min: o.connections, max: o.connections });
        await pool.ready();
        return { use: (f) => pool.use(f), close: () => pool.drain().then(() => pool.clear()) };
    }
    if (name.startsWith('ioredis')) {
        const c = openIoredis();
        return { use: (f) => f(c), close: () => c.disconnect() };
    }
    if (o.connections && library.createClientPool) {
        const pool = library.createClientPool(nodeRedisOptions(), { minimum: o.connections, maximum: o.connections });
        pool.on('error', quiet);
        await pool.connect();
        return { use: (f) => pool.execute(f), close: () => pool.destroy() };
    }
    const isolated = o.connections && { isolationPoolOptions: { min: o.connections, max: o.connections } };
    const c = library.createClient({ ...nodeRedisOptions(), ...isolated });
    c.on('error', o.retry ? quiet : (error) => { throw error; });
    await c.connect();
    return { use: (f) => (isolated ? c.executeIsolated(f) : f(c)), close: () => (c.destroy ? c.destroy() : c.disconnect()) };
}

// Whether an error is a connection's: a server's error begins with a word in capitals.
const isServers = (error) => /^[A-Z]{3,}/.test(error.message) && /Reply/.test(error.name + error.constructor.name);

// While connections are retried, a command without an answer for HUNG_MS counts as failed.
const atMost = (ms, promise) => {
    let timer;
    const limit = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error('no answer')), ms); });
    return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
};

async function connect() {
    const opened = await open();
    // [reply, whether it was sent more than once]: with retry=1 a command whose connection fails is sent again.
    const send = async (f) => {
        for (let times = 0; ; times++) {
            try {
                return [await (o.retry ? atMost(HUNG_MS, opened.use(f)) : opened.use(f)), times > 0];
            } catch (error) {
                if (!o.retry || isServers(error) || times > RETRIES) throw error;
                await sleep(RETRY_MS);
            }
        }
    };
    await send((c) => c.ping());
    const get = async () => (await send((c) => c.get(o.key)))[0];
    const set = name.startsWith('ioredis') ? (c, value) => c.set(o.key, value, 'PX', o.lease, 'NX') :
        (c, value) => c.set(o.key, value, { NX: true, PX: o.lease });
    return {
        acquire: async (value) => {
            const [got, again] = await send((c) => set(c, value));
            // After a failure the first reply may be lost, and the lock its own.
            return got || (again && o.value === 'lease' && await get() === value);
        },
        get,
        del: () => send((c) => c.del(o.key)),
        close: opened.close,
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
        const [freed, again] = await this.client.del();
        return freed ? DELETED : again ? UNSURE : ZERO;
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

// With ready=1 the workers begin when a line comes (program.py).
async function awaitStart() {
    if (!o.ready) return;
    process.stdout.write('ready\n');
    await once(process.stdin, 'data');
    process.stdin.destroy();
}

async function main() {
    const client = await connect();
    await awaitStart();
    const workers = Array.from({ length: o.workers }, (_, n) => new Worker(n, client));
    const began = now();
    const end = began + o.seconds * 1e6;
    await Promise.all(workers.map((worker) => worker.run(end)));
    if (!o.retry) await client.close();
    const sum = (field) => workers.reduce((total, worker) => total + worker[field], 0);
    console.log(JSON.stringify({ version, began, attempts: sum('attempts'), freed: sum('freed'),
        sections: workers.flatMap((worker) => worker.sections) }));
    if (o.retry) process.exit(0); // a pool whose connections failed may not close
}

main();
