// BullMQ for docs/guides/bullmq.md: jobs are done once each by two workers; a job's lock is there meanwhile, and compared.
'use strict';

const assert = require('node:assert');

try {
    require.resolve('bullmq');
} catch (error) {
    console.log('missing bullmq');
    process.exit(0);
}
const { Queue, Worker, QueueEvents } = require('bullmq');

const connection = { host: process.env.LK_HOST, port: Number(process.env.LK_PORT), maxRetriesPerRequest: null };
const options = { connection, prefix: '{bull}' };
const JOBS = 20;

async function main() {
    const queue = new Queue('mail', options);
    const client = await queue.client;
    const events = new QueueEvents('mail', options);
    await events.waitUntilReady();
    const done = [];
    const keys = new Set();
    const work = async (job) => {
        const key = `{bull}:mail:${job.id}:lock`;
        assert.strictEqual(await client.exists(key), 1, 'a lock');
        await assert.rejects(job.moveToCompleted('foreign', 'another-token', false), /lock/i);
        await job.extendLock(job.token, 30000);
        keys.add(key);
        done.push(job.id);
    };
    const workers = [1, 2].map(() => new Worker('mail', work, { ...options, concurrency: 3 }));
    const jobs = await queue.addBulk([...Array(JOBS).keys()].map((n) => ({ name: 'send', data: { n } })));
    await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 20000)));
    assert.strictEqual(done.length, JOBS);
    assert.strictEqual(new Set(done).size, JOBS);
    for (const key of keys) {
        assert.strictEqual(await client.exists(key), 0);
        console.log(`held ${key}`);
    }
    await Promise.all([...workers, events, queue].map((one) => one.close()));
    console.log('done');
    process.exit(0);
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
