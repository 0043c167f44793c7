// ioredis through the proxy: ioredis.js PACKAGE. One connection multiplexed by the whole process.
'use strict';

const { assert, bytes, settings, say, until, restartProxy, run } = require('./features.js');

const name = process.argv[2];
const Redis = require(name);
const { host, port } = settings;
const equal = assert.deepStrictEqual;

const opened = [];

function open(options = {}) {
    const client = new Redis({ host, port, ...options });
    client.on('error', () => {}); // each command that fails says so itself
    opened.push(client);
    return client;
}

const c = open();

async function refused(options, pattern) {
    const client = open({ retryStrategy: null, maxRetriesPerRequest: 0, ...options });
    await assert.rejects(client.ping(), pattern);
    client.disconnect();
}

const features = {
    async connect() {
        const named = open({ connectionName: 'worker-1' });
        equal(await named.ping(), 'PONG');
        equal(await named.echo('hello'), 'hello');
        equal(await named.client('GETNAME'), 'worker-1');
        assert(await named.client('ID') > 0);
        assert((await named.info('server')).includes('redis_version'));
        if (!settings.cluster) {
            const third = open({ db: 3 });
            await third.set('only', 'in three');
            equal(await third.get('only'), 'in three');
            equal(await c.get('only'), null);
            await named.select(3);
            equal(await named.get('only'), 'in three');
        }
        equal(await named.quit(), 'OK');
    },

    async auth() {
        equal(await open({ username: settings.user, password: settings.password }).ping(), 'PONG');
        equal(await open({ port: settings.loginPort, password: settings.loginPassword }).ping(), 'PONG');
        await refused({ username: settings.user, password: 'wrong' }, /WRONGPASS|closed|NOAUTH/);
        await refused({ port: settings.loginPort, password: 'wrong' }, /WRONGPASS|NOAUTH|closed/);
        await refused({ port: settings.loginPort }, /NOAUTH|closed/);
    },

    async strings() {
        equal(await c.set('s', 'v'), 'OK');
        equal(await c.get('s'), 'v');
        equal(await c.get('none'), null);
        equal(await c.append('s', 'w'), 2);
        equal(await c.setnx('s', 'x'), 0);
        equal(await c.getset('s', 'y'), 'vw');
        equal(await c.set('s', 'z', 'EX', 100, 'NX'), null);
        equal(await c.incr('n'), 1);
        equal(await c.incrby('n', 41), 42);
        assert.equal(await c.incrbyfloat('f', 1.5), 1.5);
        equal(await c.getdel('s'), 'y');
    },

    async binary() {
        equal(await c.set(bytes, bytes), 'OK');
        assert(bytes.equals(await c.getBuffer(bytes)));
        equal(await c.hset('bin', 'f', bytes), 1);
        assert(bytes.equals(await c.hgetBuffer('bin', 'f')));
        await c.set('u', 'žluťoučký \u2603');
        equal(await c.get('u'), 'žluťoučký \u2603');
    },

    async large() {
        const value = Buffer.alloc(1 << 20, bytes);
        await c.set('large', value);
        assert(value.equals(await c.getBuffer('large')));
        await c.rpush('larges', value, value);
        const both = await c.lrangeBuffer('larges', 0, -1);
        assert(both.length === 2 && both.every((each) => value.equals(each)));
    },

    async hashes() {
        equal(await c.hset('h', { a: 1, b: 'two' }), 2);
        equal(await c.hmget('h', 'a', 'none', 'b'), ['1', null, 'two']);
        equal({ ...(await c.hgetall('h')) }, { a: '1', b: 'two' });
        equal(await c.hincrby('h', 'a', 2), 3);
        equal(await c.hdel('h', 'a', 'none'), 1);
        equal(await c.hkeys('h'), ['b']);
    },

    async lists() {
        equal(await c.rpush('l', 'a', 'b', 'c'), 3);
        equal(await c.lpush('l', 'z'), 4);
        equal(await c.lrange('l', 0, -1), ['z', 'a', 'b', 'c']);
        equal(await c.lrem('l', 1, 'b'), 1);
        equal([await c.lpop('l'), await c.rpop('l'), await c.llen('l')], ['z', 'c', 1]);
        await c.rpush('{q}from', 'm');
        equal(await c.lmove('{q}from', '{q}to', 'LEFT', 'RIGHT'), 'm');
    },

    async sets() {
        await c.sadd('{s}1', 'a', 'b', 'c');
        await c.sadd('{s}2', 'b', 'c', 'd');
        equal((await c.sinter('{s}1', '{s}2')).sort(), ['b', 'c']);
        equal(await c.sunionstore('{s}3', '{s}1', '{s}2'), 4);
        equal(await c.sismember('{s}1', 'a'), 1);
        equal((await c.smembers('{s}1')).sort(), ['a', 'b', 'c']);
    },

    async zsets() {
        equal(await c.zadd('z', 1, 'a', 2.5, 'b', 3, 'c'), 3);
        assert.equal(await c.zscore('z', 'b'), 2.5);
        equal((await c.zrange('z', 0, -1, 'WITHSCORES')).flat().map(String), ['a', '1', 'b', '2.5', 'c', '3']);
        equal(await c.zrangebyscore('z', '(1', '+inf'), ['b', 'c']);
        assert.equal(await c.zincrby('z', 5, 'a'), 6);
        equal(await c.zrevrank('z', 'a'), 0);
    },

    async streams() {
        const first = await c.xadd('x', '*', 'f', 'v');
        await c.xadd('x', '*', 'f', 'w');
        equal(await c.xlen('x'), 2);
        equal(await c.xrange('x', '-', '+', 'COUNT', 1), [[first, ['f', 'v']]]);
        const read = await c.xread('STREAMS', 'x', first);
        assert(JSON.stringify(read).includes('"w"'));
        equal(await c.xgroup('CREATE', 'x', 'group', '0'), 'OK');
        assert(JSON.stringify(await c.xreadgroup('GROUP', 'group', 'me', 'STREAMS', 'x', '>')).includes(first));
        equal(await c.xack('x', 'group', first), 1);
    },

    async expiry() {
        await c.setex('e', 100, 'v');
        const ttl = await c.ttl('e');
        assert(ttl > 95 && ttl <= 100);
        equal(await c.persist('e'), 1);
        equal(await c.ttl('e'), -1);
        equal(await c.pexpire('e', 30), 1);
        await until(async () => (await c.exists('e')) === 0);
    },

    async multikey() {
        const names = [...Array(100).keys()].map((i) => `mk:${i}`);
        equal(await c.mset(Object.fromEntries(names.map((n) => [n, n]))), 'OK');
        equal(await c.mget(...names, 'none'), [...names, null]);
        equal(await c.exists(...names, 'none'), 100);
        equal(await c.del(...names.slice(0, 50)), 50);
        equal(await c.unlink(...names), 50);
    },

    async pipeline() {
        const p = c.pipeline();
        for (let i = 0; i < 200; i++) {
            p.set(`p:${i}`, i).incr('count').rpush('list', i).get(`p:${i}`).hset('hash', i, 'v');
        }
        const replies = await p.exec();
        equal(replies.length, 1000);
        for (let i = 0; i < 200; i++) {
            equal(replies.slice(5 * i, 5 * i + 5).map((r) => r[1]), ['OK', i + 1, i + 1, String(i), 1]);
        }
        const mixed = await c.pipeline().set('a', 1).lpush('a', 2).mget('a', 'p:1').get('a').exec();
        assert(/WRONGTYPE/.test(mixed[1][0].message));
        equal([mixed[0][1], mixed[2][1], mixed[3][1]], ['OK', ['1', '1'], '1']);
        const many = await Promise.all([...Array(1000).keys()].map((i) => c.get(`p:${i % 200}`)));
        equal(many, [...Array(1000).keys()].map((i) => String(i % 200)));
    },

    async scripts() {
        await c.set('sc', 20);
        equal(await c.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, 'sc', 22), 42);
        const sha = await c.script('LOAD', "return {KEYS[1], ARGV[1], 3, false, {ok = 'fine'}}");
        equal(await c.evalsha(sha, 1, 'sc', 'arg'), ['sc', 'arg', 3, null, 'fine']);
        c.defineCommand('readIt', { numberOfKeys: 1, lua: "return redis.call('GET', KEYS[1])" });
        equal(await c.readIt('sc'), '42');
        await c.script('FLUSH');
        equal(await c.readIt('sc'), '42');
        await assert.rejects(c.evalsha('0'.repeat(40), 0), /NOSCRIPT/);
        await assert.rejects(c.eval("return redis.error_reply('ERR oops')", 0), /oops/);
    },

    async scan() {
        const names = [...Array(500).keys()].map((i) => `scan:${i}`);
        await c.mset(Object.fromEntries(names.map((n) => [n, 1])));
        const found = new Set();
        for await (const some of c.scanStream({ match: 'scan:*', count: 20 })) some.forEach((n) => found.add(n));
        equal([...found].sort(), names.sort());
        await c.hset('sh', Object.fromEntries(names.map((n) => [n, 1])));
        let fields = 0;
        for await (const some of c.hscanStream('sh')) fields += some.length / 2;
        equal(fields, 500);
    },

    async errors() {
        await c.set('err', 'text');
        await assert.rejects(c.lpush('err', 1), /WRONGTYPE/);
        await assert.rejects(c.call('NOSUCHCOMMAND', 'a'), /unknown command/);
        await assert.rejects(c.call('GET'), /wrong number of arguments/);
        equal(await c.get('err'), 'text');
    },

    async pool() {
        const clients = [...Array(8).keys()].map(() => open());
        await Promise.all(clients.map(async (client, n) => {
            for (let i = 0; i < 100; i++) {
                await client.incr('pool');
                await client.set(`pool:${n}`, i);
                equal(await client.get(`pool:${n}`), String(i));
            }
        }));
        equal(await c.get('pool'), '800');
        clients.forEach((client) => client.disconnect());
    },

    async multi() {
        const replies = await c.multi().set('{t}a', 1).incr('{t}a').get('{t}none').exec();
        equal(replies, [[null, 'OK'], [null, 2], [null, null]]);
        const raw = open();
        await raw.multi({ pipeline: false });
        await raw.set('{t}a', 'never');
        await raw.discard();
        equal(await raw.get('{t}a'), '2');
    },

    async watch() {
        const mine = open();
        await c.set('w', 1);
        await mine.watch('w');
        await c.set('w', 10);
        equal(await mine.multi().set('w', 2).exec(), null);
        await mine.watch('w');
        equal(await mine.multi().incr('w').exec(), [[null, 11]]);
    },

    async blocking() {
        const mine = open();
        equal(await mine.blpop('bl', 1), null);
        setTimeout(() => c.rpush('bl', 'later'), 200);
        equal(await mine.brpop('bl', 5), ['bl', 'later']);
        setTimeout(() => c.xadd('bx', '*', 'f', 'v'), 200);
        assert(JSON.stringify(await mine.xread('BLOCK', 5000, 'STREAMS', 'bx', '$')).includes('bx'));
    },

    async pubsub() {
        const mine = open({ maxRetriesPerRequest: 0 });
        const got = [];
        mine.on('messageBuffer', (channel, message) => got.push(['message', message]));
        mine.on('pmessageBuffer', (pattern, channel, message) => got.push(['pmessage', message]));
        equal(await mine.subscribe('news', 'more'), 2);
        equal(await mine.psubscribe('new*'), 3);
        const receivers = await c.publish('news', bytes);
        if (!settings.cluster) equal(receivers, 2); // on a cluster PUBLISH counts the receivers of one node
        await until(() => got.length === 2);
        assert(got.every(([, message]) => bytes.equals(message)));
        equal(await mine.unsubscribe('news', 'more'), 1); // by name: without, ioredis waits for a count of 0
        equal(await mine.punsubscribe('new*'), 0);
        mine.disconnect();
    },

    async reconnect() {
        await c.set('before', 1);
        await restartProxy();
        equal(await c.get('before'), '1'); // ioredis keeps the request until it is connected again
    },
};

say('version', require(`${name}/package.json`).version);
run(features);
