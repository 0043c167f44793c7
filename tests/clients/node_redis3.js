// node_redis 3, the callback client that much old code still has, through the proxy.
'use strict';

const { assert, bytes, settings, say, until, restartProxy, run } = require('./features.js');

const redis = require('redis3');
const { host, port } = settings;
const equal = assert.deepStrictEqual;

function open(options = {}) {
    const client = redis.createClient({ host, port, ...options });
    client.on('error', () => {}); // each command that fails says so itself
    return client;
}

/** The call's result as a promise: call(client, 'get', 'key'). */
function call(client, command, ...args) {
    return new Promise((resolve, reject) => {
        client[command](...args, (error, reply) => (error ? reject(error) : resolve(reply)));
    });
}

function exec(batch) {
    return new Promise((resolve, reject) => batch.exec((error, replies) => (error ? reject(error) : resolve(replies))));
}

const c = open();
const run1 = (command, ...args) => call(c, command, ...args);

const features = {
    async connect() {
        const named = open();
        equal(await call(named, 'ping'), 'PONG');
        equal(await call(named, 'client', 'SETNAME', 'worker-1'), 'OK');
        equal(await call(named, 'client', 'GETNAME'), 'worker-1');
        assert((await call(named, 'info')).includes('redis_version'));
        if (!settings.cluster) {
            const third = open({ db: 3 });
            await call(third, 'set', 'only', 'in three');
            equal(await run1('get', 'only'), null);
            await call(named, 'select', 3);
            equal(await call(named, 'get', 'only'), 'in three');
            third.quit();
        }
        equal(await call(named, 'quit'), 'OK');
    },

    async auth() {
        equal(await call(open({ port: settings.loginPort, password: settings.loginPassword }), 'ping'), 'PONG');
        const user = open();
        equal(await call(user, 'auth', settings.password, settings.user), 'OK');
        equal(await call(user, 'ping'), 'PONG');
        await assert.rejects(call(open(), 'auth', 'wrong', settings.user), /WRONGPASS/);
        const stranger = open({ port: settings.loginPort, no_ready_check: true });
        await assert.rejects(call(stranger, 'get', 'a'), /NOAUTH/);
    },

    async strings() {
        equal(await run1('set', 's', 'v'), 'OK');
        equal(await run1('get', 's'), 'v');
        equal(await run1('get', 'none'), null);
        equal(await run1('setnx', 's', 'x'), 0);
        equal(await run1('getset', 's', 'y'), 'v');
        equal(await run1('set', 's', 'z', 'EX', 100, 'NX'), null);
        equal(await run1('incrby', 'n', 42), 42);
    },

    async binary() {
        const raw = open({ return_buffers: true });
        equal(await call(raw, 'set', bytes, bytes), Buffer.from('OK'));
        assert(bytes.equals(await call(raw, 'get', bytes)));
        await run1('set', 'u', 'žluťoučký \u2603');
        equal(await run1('get', 'u'), 'žluťoučký \u2603');
        raw.quit();
    },

    async large() {
        const value = 'abc\r\n\0'.repeat(200000);
        await run1('set', 'large', value);
        assert((await run1('get', 'large')) === value);
    },

    async hashes() {
        equal(await run1('hset', 'h', 'a', 1, 'b', 'two'), 2);
        equal(await run1('hmset', 'h', { c: '3' }), 'OK');
        equal({ ...(await run1('hgetall', 'h')) }, { a: '1', b: 'two', c: '3' });
        equal(await run1('hmget', 'h', 'a', 'none'), ['1', null]);
        equal(await run1('hdel', 'h', 'a'), 1);
    },

    async lists() {
        equal(await run1('rpush', 'l', 'a', 'b', 'c'), 3);
        equal(await run1('lrange', 'l', 0, -1), ['a', 'b', 'c']);
        equal(await run1('lrem', 'l', 1, 'b'), 1);
        equal(await run1('lpop', 'l'), 'a');
        equal(await run1('rpoplpush', '{q}none', '{q}to'), null);
    },

    async sets() {
        equal(await run1('sadd', '{s}1', 'a', 'b', 'c'), 3);
        await run1('sadd', '{s}2', 'b', 'c', 'd');
        equal((await run1('sinter', '{s}1', '{s}2')).sort(), ['b', 'c']);
        equal(await run1('sismember', '{s}1', 'a'), 1);
    },

    async zsets() {
        equal(await run1('zadd', 'z', 1, 'a', 2.5, 'b'), 2);
        equal(await run1('zscore', 'z', 'b'), '2.5');
        equal(await run1('zrange', 'z', 0, -1, 'WITHSCORES'), ['a', '1', 'b', '2.5']);
    },

    async streams() {
        const first = await run1('xadd', 'x', '*', 'f', 'v');
        equal(await run1('xlen', 'x'), 1);
        equal(await run1('xrange', 'x', '-', '+'), [[first, ['f', 'v']]]);
        equal(await run1('xread', 'STREAMS', 'x', '0'), [['x', [[first, ['f', 'v']]]]]);
    },

    async expiry() {
        await run1('setex', 'e', 100, 'v');
        assert((await run1('ttl', 'e')) > 95);
        equal(await run1('persist', 'e'), 1);
        equal(await run1('pexpire', 'e', 30), 1);
        await until(async () => (await run1('exists', 'e')) === 0);
    },

    async multikey() {
        const names = [...Array(100).keys()].map((i) => `mk:${i}`);
        equal(await run1('mset', ...names.flatMap((n) => [n, n])), 'OK');
        equal(await run1('mget', ...names, 'none'), [...names, null]);
        equal(await run1('del', ...names, 'none'), 100);
    },

    async pipeline() {
        const batch = c.batch();
        for (let i = 0; i < 200; i++) {
            batch.set(`p:${i}`, i).incr('count').rpush('list', i).get(`p:${i}`).hset('hash', i, 'v');
        }
        const replies = await exec(batch);
        equal(replies.length, 1000);
        for (let i = 0; i < 200; i++) equal(replies.slice(5 * i, 5 * i + 5), ['OK', i + 1, i + 1, String(i), 1]);
        const mixed = await exec(c.batch().set('a', 1).lpush('a', 2).mget('a', 'p:1').get('a'));
        assert(mixed[1] instanceof Error);
        equal([mixed[0], mixed[2], mixed[3]], ['OK', ['1', '1'], '1']);
    },

    async scripts() {
        await run1('set', 'sc', 20);
        equal(await run1('eval', "return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, 'sc', 22), 42);
        const sha = await run1('script', 'load', "return {KEYS[1], ARGV[1], 3, false, {ok = 'fine'}}");
        equal(await run1('evalsha', sha, 1, 'sc', 'arg'), ['sc', 'arg', 3, null, 'fine']);
        await assert.rejects(run1('evalsha', '0'.repeat(40), 0), /NOSCRIPT/);
    },

    async scan() {
        const names = [...Array(500).keys()].map((i) => `scan:${i}`);
        await run1('mset', ...names.flatMap((n) => [n, 1]));
        const found = new Set();
        let cursor = '0';
        do {
            const [next, some] = await run1('scan', cursor, 'MATCH', 'scan:*', 'COUNT', 20);
            some.forEach((n) => found.add(n));
            cursor = next;
        } while (cursor !== '0');
        equal([...found].sort(), names.sort());
    },

    async errors() {
        await run1('set', 'err', 'text');
        await assert.rejects(run1('lpush', 'err', 1), /WRONGTYPE/);
        await assert.rejects(run1('send_command', 'NOSUCHCOMMAND', ['a']), /unknown command/);
        await assert.rejects(run1('get'), /wrong number of arguments/);
        equal(await run1('get', 'err'), 'text');
    },

    async pool() {
        const clients = [...Array(8).keys()].map(() => open());
        await Promise.all(clients.map(async (client, n) => {
            for (let i = 0; i < 100; i++) {
                await call(client, 'incr', 'pool');
                await call(client, 'set', `pool:${n}`, i);
                equal(await call(client, 'get', `pool:${n}`), String(i));
            }
            client.quit();
        }));
        equal(await run1('get', 'pool'), '800');
    },

    async multi() {
        equal(await exec(c.multi().set('{t}a', 1).incr('{t}a').get('{t}none')), ['OK', 2, null]);
    },

    async watch() {
        const mine = open();
        await run1('set', 'w', 1);
        await call(mine, 'watch', 'w');
        await run1('set', 'w', 10);
        equal(await exec(mine.multi().set('w', 2)), null);
        await call(mine, 'watch', 'w');
        equal(await exec(mine.multi().incr('w')), [11]);
    },

    async blocking() {
        const mine = open();
        equal(await call(mine, 'blpop', 'bl', 1), null);
        setTimeout(() => c.rpush('bl', 'later'), 200);
        equal(await call(mine, 'brpop', 'bl', 5), ['bl', 'later']);
    },

    async pubsub() {
        const mine = open();
        const got = [];
        mine.on('message', (channel, message) => got.push(message));
        mine.on('pmessage', (pattern, channel, message) => got.push(message));
        await call(mine, 'subscribe', 'news', 'more');
        await call(mine, 'psubscribe', 'new*');
        const receivers = await run1('publish', 'news', 'a\r\nb');
        if (!settings.cluster) equal(receivers, 2); // on a cluster PUBLISH counts the receivers of one node
        await until(() => got.length === 2);
        equal(got, ['a\r\nb', 'a\r\nb']);
        await call(mine, 'unsubscribe', 'news', 'more');
        await call(mine, 'punsubscribe', 'new*');
        equal(await call(mine, 'get', 'none'), null);
    },

    async reconnect() {
        await run1('set', 'before', 1);
        await restartProxy();
        await until(async () => {
            try {
                return (await run1('get', 'before')) === '1';
            } catch {
                return false; // a request that was on its way is not repeated
            }
        });
    },
};

say('version', require('redis3/package.json').version);
run(features);
