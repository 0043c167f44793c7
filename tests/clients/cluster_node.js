// Cluster clients of Node, pointed at the proxy: cluster_node.js ioredis PACKAGE | redis PACKAGE.
'use strict';

const { assert, settings, say, run } = require('./features.js');

const equal = assert.deepStrictEqual;
const [library, name] = process.argv.slice(2);
const { host, port } = settings;
const names = [...Array(100).keys()].map((i) => `k:${i}`);
const pairs = [...Array(100).keys()].map((i) => [`p:${i}`, String(i)]);
const GET = "return redis.call('get', KEYS[1])";

function withIoredis() {
    const { Cluster } = require(name);
    const c = new Cluster([{ host, port }]);
    c.on('error', () => {});
    return {
        nodes: async () => (await c.cluster('INFO'), c.nodes('all').map((n) => `${n.options.host}:${n.options.port}`)),
        call: (...words) => c.call(...words.map(String)),
        set: (k, v) => c.set(k, v),
        get: (k) => c.get(k),
        load: () => c.nodes('master')[0].script('LOAD', GET),
        evalsha: (sha, key) => c.evalsha(sha, 1, key),
        async scan() {
            const found = [];
            for await (const some of c.nodes('master')[0].scanStream({ match: 'p:*' })) found.push(...some);
            return found;
        },
        multi: () => c.multi().set('{t}a', 1).incr('{t}a').exec().then((r) => r.map((x) => x[1])),
        async heard() {
            const sub = new Cluster([{ host, port }]);
            const got = new Promise((resolve) => sub.on('message', (channel, text) => resolve(text)));
            await sub.subscribe('news');
            await c.publish('news', 'extra');
            return got;
        },
    };
}

async function withRedis() {
    const { createCluster } = require(name);
    const c = createCluster({ rootNodes: [{ url: `redis://${host}:${port}` }] });
    c.on('error', () => {});
    await c.connect();
    const one = async () => c.nodeClient(c.masters[0]);
    return {
        nodes: async () => [...c.masters, ...c.replicas].map((n) => n.address),
        call: async (...words) => (await one()).sendCommand(words.map(String)),
        set: (k, v) => c.set(k, v),
        get: (k) => c.get(k),
        load: async () => (await one()).scriptLoad(GET),
        evalsha: (sha, key) => c.evalSha(sha, { keys: [key] }),
        async scan() {
            const found = [];
            for await (const some of (await one()).scanIterator({ MATCH: 'p:*' })) found.push(...[some].flat());
            return found;
        },
        multi: () => c.multi().set('{t}a', 1).incr('{t}a').exec(),
        async heard() {
            const sub = createCluster({ rootNodes: [{ url: `redis://${host}:${port}` }] });
            sub.on('error', () => {});
            await sub.connect();
            const got = new Promise((resolve, reject) => sub.subscribe('news', resolve).catch(reject));
            const timer = setInterval(() => c.publish('news', 'extra').catch(() => {}), 100);
            return got.finally(() => clearInterval(timer));
        },
    };
}

async function main() {
    say('version', require(`${name}/package.json`).version);
    const c = library === 'ioredis' ? withIoredis() : await withRedis();
    await run({
        async alone() {
            equal(await c.nodes(), [`${host}:${port}`]);
        },
        async commands() {
            for (const k of names) equal([await c.set(k, k), await c.get(k)], ['OK', k]);
            equal([await c.call('SETNX', 'lock:c', 1), await c.call('DEL', 'lock:c')].map(Number), [1, 1]);
            await assert.rejects(c.call('LPUSH', 'k:1', 1), /WRONGTYPE/);
        },
        async multikey() {
            equal(await c.call('MGET', ...names), names);
            equal(Number(await c.call('DEL', ...names)), 100);
            await assert.rejects(c.call('RENAME', 'a', 'b'), /CROSSSLOT/);
        },
        async pipeline() {
            equal(await Promise.all(pairs.flatMap(([k, v]) => [c.set(k, v), c.get(k)])),
                pairs.flatMap(([, v]) => ['OK', v]));
        },
        async scripts() {
            const sha = await c.load();
            equal(await Promise.all(pairs.map(([k]) => c.evalsha(sha, k))), pairs.map(([, v]) => v));
        },
        async scan() {
            equal([...new Set(await c.scan())].sort(), pairs.map(([k]) => k).sort());
        },
        async multi() {
            equal(await c.multi(), ['OK', 2]);
        },
        async pubsub() {
            equal(await c.heard(), 'extra');
        },
    });
}

main();
