// node-redis and ioredis for docs/guides/compare.md: locks that the server compares itself, in the ways of redlock and of a registry.
'use strict';

const assert = require('node:assert');
const { randomUUID } = require('node:crypto');

for (const name of ['ioredis', 'redis5']) {
    try {
        require.resolve(name);
    } catch (error) {
        console.log(`missing ${name}`);
        process.exit(0);
    }
}
const Redis = require('ioredis');
const { createClient } = require('redis5');

const [host, port] = [process.env.LK_HOST, Number(process.env.LK_PORT)];

async function has(send, command) {
    return (await send('COMMAND', 'INFO', command))[0] != null;
}

async function main() {
    const hand = ['one', 'two'].map((name) => createClient({ socket: { host, port }, name }));
    await Promise.all(hand.map((client) => client.connect()));
    const io = ['three', 'four'].map((connectionName) => new Redis({ host, port, connectionName }));
    const pairs = [hand.map((client) => (...words) => client.sendCommand(words.map(String))), io.map((client) => (...words) => client.call(...words))];
    const releases = [];
    if (await has(pairs[0][0], 'DELIFEQ'))
        releases.push((key, value) => ['DELIFEQ', key, value]);
    if (await has(pairs[0][0], 'DELEX'))
        releases.push((key, value) => ['DELEX', key, 'IFEQ', value]);
    assert.ok(releases.length > 0);

    for (const key of ['lock:invoice', 'locks:invoice', 'payment-locks:7'])
        for (const [one, two] of pairs)
            for (const release of releases) {
                const [mine, yours] = [randomUUID(), randomUUID()];
                assert.strictEqual(await one('SET', key, mine, 'NX', 'PX', 5000), 'OK');
                assert.strictEqual(await two('SET', key, yours, 'NX', 'PX', 5000), null);
                assert.strictEqual(await two('SET', key, yours, 'IFEQ', yours, 'PX', 9000), null);
                assert.strictEqual(await two(...release(key, yours)), 0);
                assert.strictEqual(await two('DEL', key), 0);
                assert.strictEqual(await one('SET', key, mine, 'IFEQ', mine, 'PX', 9000), 'OK');
                assert.ok(await one('PTTL', key) > 5000);
                assert.strictEqual(await one(...release(key, mine)), 1);
                assert.strictEqual(await two('SET', key, yours, 'NX', 'PX', 5000), 'OK');
                assert.strictEqual(await one(...release(key, mine)), 0);
                assert.strictEqual(await one('SET', key, mine, 'IFEQ', mine, 'PX', 1), null);
                assert.strictEqual(await two(...release(key, yours)), 1);
                console.log(`held ${key}`);
            }

    await Promise.all([...hand.map((client) => client.quit()), ...io.map((client) => client.quit())]);
    console.log('done');
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
