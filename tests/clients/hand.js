// The hand of a worker of histories, with ioredis: hand.js NAME PORT [PORT ...]. ../history/worker.py says what a line means. With several
// ports it is a client of npm's redlock over so many nodes.
'use strict';

const Redis = require('ioredis');
const Redlock = require('redlock4');
const readline = require('readline');

const [name, ...ports] = process.argv.slice(2);
const nodes = ports.map((port) => new Redis({ port: Number(port), connectionName: name === '-' ? undefined : name }));
nodes.forEach((node) => node.on('error', () => {}));
const redlock = ports.length > 1 ? new Redlock(nodes, { retryCount: 0 }) : null;
let lock = null;

function text(reply) {
    if (reply === null) return '_';
    if (Array.isArray(reply)) return '*' + reply.join('\t');
    return (typeof reply === 'number' ? ':' : '+') + reply;
}

async function answer(words) {
    try {
        if (words[0] === 'REDLOCK') {
            lock = await redlock.lock(words[1], Number(words[2])).catch(() => null);
            return ':' + Math.max(0, lock ? lock.expiration - Date.now() : 0);
        }
        if (words[0] === 'REDUNLOCK') return await lock.unlock().then(() => ':1', () => ':0');
        return text(await nodes[0].call(...words));
    } catch (error) {
        return (error.name === 'ReplyError' ? '-' : '!') + error.message;
    }
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
    process.stdout.write((await answer(line.split('\t'))).replace(/\r?\n/g, ' ') + '\n');
}).on('close', () => process.exit(0));
