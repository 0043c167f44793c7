// node-redis 4 and later through the proxy: node_redis.js PACKAGE RESP-VERSION. One multiplexed connection.
'use strict';

const { assert, bytes, settings, say, until, restartProxy, run } = require('./features.js');

const [name, resp] = process.argv.slice(2);
const redis = require(name);
const version = require(`${name}/package.json`).version;
const major = Number(version.split('.')[0]);
const { host, port } = settings;
const equal = assert.deepStrictEqual;
const plain = (value) => JSON.parse(JSON.stringify(value));

function make(options = {}, socket = {}) {
    const client = redis.createClient({
        socket: { host, port, reconnectStrategy: (n) => Math.min(n * 20, 200), ...socket },
        ...(major >= 5 ? { RESP: Number(resp), unstableResp3: true } : {}),
        ...options,
    });
    client.on('error', () => {}); // each command that fails says so itself
    return client;
}

async function open(options, socket) {
    const client = make(options, socket);
    await client.connect();
    return client;
}

let c; // connected by the first feature

async function refused(options, socket, pattern) {
    await assert.rejects(async () => (await open(options, { reconnectStrategy: false, ...socket })).ping(), pattern);
}

/** A client whose bulk replies are buffers. */
function buffers(client) {
    if (major >= 5) return client.withTypeMapping({ [redis.RESP_TYPES.BLOB_STRING]: Buffer });
    const { commandOptions } = redis;
    return { get: (key) => client.get(commandOptions({ returnBuffers: true }), key),
             hGet: (key, f) => client.hGet(commandOptions({ returnBuffers: true }), key, f),
             lRange: (key, a, b) => client.lRange(commandOptions({ returnBuffers: true }), key, a, b) };
}

const features = {
    async connect() {
        c = await open();
        const named = await open({ name: 'worker-1' });
        equal(await named.ping(), 'PONG');
        equal(await named.echo('hello'), 'hello');
        equal(await named.clientGetName(), 'worker-1');
        assert(await named.clientId() > 0);
        assert((await named.info('server')).includes('redis_version'));
        if (!settings.cluster) {
            const third = await open({ database: 3 });
            await third.set('only', 'in three');
            equal(await third.get('only'), 'in three');
            equal(await c.get('only'), null);
            await named.select(3);
            equal(await named.get('only'), 'in three');
            await third.disconnect();
        }
        await named.quit();
    },

    async auth() {
        equal(await (await open({ username: settings.user, password: settings.password })).ping(), 'PONG');
        const login = { port: settings.loginPort };
        equal(await (await open({ password: settings.loginPassword }, login)).ping(), 'PONG');
        await refused({ username: settings.user, password: 'wrong' }, {}, /WRONGPASS/);
        await refused({ password: 'wrong' }, login, /WRONGPASS/);
        await refused({}, login, /NOAUTH/);
    },

    async strings() {
        equal(await c.set('s', 'v'), 'OK');
        equal(await c.get('s'), 'v');
        equal(await c.get('none'), null);
        equal(await c.append('s', 'w'), 2);
        equal(Number(await c.setNX('s', 'x')), 0);
        equal(await c.getSet('s', 'y'), 'vw');
        equal(await c.set('s', 'z', { EX: 100, NX: true }), null);
        equal(await c.incr('n'), 1);
        equal(await c.incrBy('n', 41), 42);
        assert.equal(await c.incrByFloat('f', 1.5), 1.5);
        equal(await c.getDel('s'), 'y');
    },

    async binary() {
        equal(await c.set(bytes, bytes), 'OK');
        assert(bytes.equals(await buffers(c).get(bytes)));
        equal(await c.hSet('bin', 'f', bytes), 1);
        assert(bytes.equals(await buffers(c).hGet('bin', 'f')));
        await c.set('u', 'žluťoučký \u2603');
        equal(await c.get('u'), 'žluťoučký \u2603');
    },

    async large() {
        const value = Buffer.alloc(1 << 20, bytes);
        await c.set('large', value);
        assert(value.equals(await buffers(c).get('large')));
        await c.rPush('larges', [value, value]);
        const both = await buffers(c).lRange('larges', 0, -1);
        assert(both.length === 2 && both.every((each) => value.equals(each)));
    },

    async hashes() {
        equal(await c.hSet('h', { a: 1, b: 'two' }), 2);
        equal(await c.hmGet('h', ['a', 'none', 'b']), ['1', null, 'two']);
        equal(plain(await c.hGetAll('h')), { a: '1', b: 'two' });
        equal(await c.hIncrBy('h', 'a', 2), 3);
        equal(await c.hDel('h', ['a', 'none']), 1);
        equal(await c.hKeys('h'), ['b']);
    },

    async lists() {
        equal(await c.rPush('l', ['a', 'b', 'c']), 3);
        equal(await c.lPush('l', 'z'), 4);
        equal(await c.lRange('l', 0, -1), ['z', 'a', 'b', 'c']);
        equal(await c.lRem('l', 1, 'b'), 1);
        equal([await c.lPop('l'), await c.rPop('l'), await c.lLen('l')], ['z', 'c', 1]);
        await c.rPush('{q}from', 'm');
        equal(await c.lMove('{q}from', '{q}to', 'LEFT', 'RIGHT'), 'm');
    },

    async sets() {
        await c.sAdd('{s}1', ['a', 'b', 'c']);
        await c.sAdd('{s}2', ['b', 'c', 'd']);
        equal([...(await c.sInter(['{s}1', '{s}2']))].sort(), ['b', 'c']);
        equal(await c.sUnionStore('{s}3', ['{s}1', '{s}2']), 4);
        equal(Number(await c.sIsMember('{s}1', 'a')), 1);
        equal([...(await c.sMembers('{s}1'))].sort(), ['a', 'b', 'c']);
    },

    async zsets() {
        const members = [{ score: 1, value: 'a' }, { score: 2.5, value: 'b' }, { score: 3, value: 'c' }];
        equal(await c.zAdd('z', members), 3);
        equal(await c.zScore('z', 'b'), 2.5);
        equal((await c.zRangeWithScores('z', 0, -1)).map((m) => [m.value, m.score]),
            [['a', 1], ['b', 2.5], ['c', 3]]);
        equal(await c.zRangeByScore('z', '(1', '+inf'), ['b', 'c']);
        equal(await c.zIncrBy('z', 5, 'a'), 6);
        equal(await c.zRank('z', 'a'), 2);
    },

    async streams() {
        const first = await c.xAdd('x', '*', { f: 'v' });
        await c.xAdd('x', '*', { f: 'w' });
        equal(await c.xLen('x'), 2);
        const range = plain(await c.xRange('x', '-', '+', { COUNT: 1 }));
        equal([range[0].id, range[0].message], [first, { f: 'v' }]);
        const text = (reply) => JSON.stringify(reply);
        assert(text(await c.xRead({ key: 'x', id: first })).includes('"w"'));
        equal(await c.xGroupCreate('x', 'group', '0'), 'OK');
        assert(text(await c.xReadGroup('group', 'me', { key: 'x', id: '>' })).includes(first));
        equal(await c.xAck('x', 'group', first), 1);
    },

    async expiry() {
        await c.setEx('e', 100, 'v');
        const ttl = await c.ttl('e');
        assert(ttl > 95 && ttl <= 100);
        equal(Number(await c.persist('e')), 1);
        equal(await c.ttl('e'), -1);
        equal(Number(await c.pExpire('e', 30)), 1);
        await until(async () => (await c.exists('e')) === 0);
    },

    async multikey() {
        const names = [...Array(100).keys()].map((i) => `mk:${i}`);
        equal(await c.mSet(Object.fromEntries(names.map((n) => [n, n]))), 'OK');
        equal(await c.mGet([...names, 'none']), [...names, null]);
        equal(await c.exists([...names, 'none']), 100);
        equal(await c.del(names.slice(0, 50)), 50);
        equal(await c.unlink(names), 50);
    },

    async pipeline() {
        const replies = await Promise.all([...Array(200).keys()].flatMap((i) => [
            c.set(`p:${i}`, String(i)), c.incr('count'), c.rPush('list', String(i)), c.get(`p:${i}`),
            c.hSet('hash', String(i), 'v')]));
        equal(replies.length, 1000);
        for (let i = 0; i < 200; i++) {
            equal(replies.slice(5 * i, 5 * i + 5), ['OK', i + 1, i + 1, String(i), 1]);
        }
        const mixed = await Promise.allSettled([c.set('a', '1'), c.lPush('a', '2'), c.mGet(['a', 'p:1']), c.get('a')]);
        assert(/WRONGTYPE/.test(mixed[1].reason.message));
        equal([mixed[0].value, mixed[2].value, mixed[3].value], ['OK', ['1', '1'], '1']);
        equal(await c.multi().set('pp', '1').get('pp').execAsPipeline(), ['OK', '1']);
    },

    async scripts() {
        await c.set('sc', '20');
        equal(await c.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", { keys: ['sc'], arguments: ['22'] }), 42);
        const sha = await c.scriptLoad("return {KEYS[1], ARGV[1], 3, false, {ok = 'fine'}}");
        equal(await c.evalSha(sha, { keys: ['sc'], arguments: ['arg'] }), ['sc', 'arg', 3, null, 'fine']);
        await c.scriptFlush();
        await assert.rejects(c.evalSha('0'.repeat(40)), /NOSCRIPT/);
        await assert.rejects(c.eval("return redis.error_reply('ERR oops')"), /oops/);
        if (resp === '3') {
            const map = await c.eval("redis.setresp(3); return {map = {f = 'v'}}");
            equal(plain(map), { f: 'v' });
        }
    },

    async scan() {
        const names = [...Array(500).keys()].map((i) => `scan:${i}`);
        await c.mSet(Object.fromEntries(names.map((n) => [n, '1'])));
        const found = new Set();
        for await (const some of c.scanIterator({ MATCH: 'scan:*', COUNT: 20 })) {
            [some].flat().forEach((n) => found.add(n));
        }
        equal([...found].sort(), names.sort());
        await c.hSet('sh', Object.fromEntries(names.map((n) => [n, '1'])));
        let fields = 0;
        for await (const some of c.hScanIterator('sh')) fields += [some].flat().length;
        equal(fields, 500);
    },

    async errors() {
        await c.set('err', 'text');
        await assert.rejects(c.lPush('err', '1'), /WRONGTYPE/);
        await assert.rejects(c.sendCommand(['NOSUCHCOMMAND', 'a']), /unknown command/);
        await assert.rejects(c.sendCommand(['GET']), /wrong number of arguments/);
        equal(await c.get('err'), 'text');
    },

    async pool() {
        const clients = await Promise.all([...Array(8).keys()].map(() => open()));
        await Promise.all(clients.map(async (client, n) => {
            for (let i = 0; i < 100; i++) {
                await client.incr('pool');
                await client.set(`pool:${n}`, String(i));
                equal(await client.get(`pool:${n}`), String(i));
            }
        }));
        equal(await c.get('pool'), '800');
        await Promise.all(clients.map((client) => client.disconnect()));
    },

    async multi() {
        equal(await c.multi().set('{t}a', '1').incr('{t}a').get('{t}none').exec(), ['OK', 2, null]);
    },

    async watch() {
        const mine = await open();
        await c.set('w', '1');
        await mine.watch('w');
        await c.set('w', '10');
        await assert.rejects(mine.multi().set('w', '2').exec(), (error) => {
            if (/not supported/.test(error.message)) throw error;
            return error instanceof redis.WatchError;
        });
        await mine.watch('w');
        equal(await mine.multi().incr('w').exec(), [11]);
    },

    async blocking() {
        const mine = await open();
        equal(await mine.blPop('bl', 1), null);
        setTimeout(() => c.rPush('bl', 'later'), 200);
        equal(plain(await mine.brPop('bl', 5)), { key: 'bl', element: 'later' });
        setTimeout(() => c.xAdd('bx', '*', { f: 'v' }), 200);
        assert(JSON.stringify(await mine.xRead({ key: 'bx', id: '$' }, { BLOCK: 5000 })).includes('bx'));
    },

    async pubsub() {
        const mine = await open();
        const got = [];
        await mine.subscribe(['news', 'more'], (message) => got.push(message), true);
        await mine.pSubscribe('new*', (message) => got.push(message), true);
        const receivers = await c.publish('news', bytes);
        if (!settings.cluster) equal(receivers, 2); // on a cluster PUBLISH counts the receivers of one node
        await until(() => got.length === 2);
        assert(got.every((message) => bytes.equals(message)));
        await mine.unsubscribe(['news', 'more']); // by name: without, some versions wait for a count of 0
        await mine.pUnsubscribe('new*');
        equal(String(await mine.ping()), 'PONG');
        await mine.disconnect();
    },

    async reconnect() {
        await c.set('before', '1');
        await restartProxy();
        await until(async () => {
            try {
                return (await c.get('before')) === '1';
            } catch {
                return false; // a request that was on its way is not repeated
            }
        });
    },
};

say('version', version);
run(features);
