// What the JavaScript programs of this folder share: running features and saying what came of them.
'use strict';

const assert = require('node:assert');
const readline = require('node:readline');

const FEATURE_MS = 8000;
const bytes = Buffer.concat([Buffer.from([...Array(256).keys()]), Buffer.from('\r\n$3\r\nfoo\r\n*1\r\n\0\0\r\n')]);

const settings = {
    host: process.env.LK_HOST,
    port: Number(process.env.LK_PORT),
    loginPort: Number(process.env.LK_LOGIN_PORT),
    loginPassword: process.env.LK_LOGIN_PASSWORD,
    user: process.env.LK_USER,
    password: process.env.LK_PASSWORD,
    cluster: process.env.LK_BACKEND === 'cluster',
};

class NotInLibrary extends Error {}

/** Safe, but a lock stayed held until its lease ended. */
class Kept extends Error {}

function say(...fields) {
    process.stdout.write(fields.map((f) => String(f).replace(/\s+/g, ' ')).join('\t') + '\n');
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function within(promise, ms) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`not done after ${ms} ms`)), ms);
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function until(condition, ms = 5000) {
    for (const end = Date.now() + ms; ; ) {
        if (await condition()) return;
        if (Date.now() > end) throw new Error(`${condition} did not come true`);
        await sleep(5);
    }
}

let input = null;

async function restartProxy() {
    if (!input) input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    process.stdout.write('restart\n');
    const answer = await input.next();
    if (answer.done) throw new Error('no restart');
}

/** Runs {name: async function}, each for a limited time, and ends the process. */
async function run(features) {
    let why = null; // errors that a library throws from its own callbacks belong to the feature that runs
    const stray = (error) => { why = error; };
    process.on('uncaughtException', stray);
    process.on('unhandledRejection', stray);
    for (const [name, feature] of Object.entries(features)) {
        if (process.env.LK_ONLY && process.env.LK_ONLY !== name) continue;
        why = null;
        try {
            await within(feature(), FEATURE_MS);
            if (why) throw why;
            say(name, 'ok');
        } catch (error) {
            const text = why ? `${error.message}; ${why.message}` : error.message || String(error);
            say(name, error instanceof NotInLibrary ? 'none' : error instanceof Kept ? 'kept' : 'fail', text);
        }
    }
    process.exit(0);
}

module.exports = { assert, bytes, settings, NotInLibrary, Kept, say, sleep, within, until, restartProxy, run };
