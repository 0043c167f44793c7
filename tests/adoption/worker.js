// A worker as they are found: SETNX, EXPIRE, and DEL in `finally`, whoever has the lock. Corrected: SET NX EX, and DEL by
// who has acquired it. Prints how often two were inside at once. node worker.js PORT ROUNDS unsafe|corrected
const net = require('net');

const [port, rounds, how] = process.argv.slice(2);
const socket = net.connect(Number(port), '127.0.0.1');
const waiting = [];
let rest = '';

socket.setNoDelay(true);
socket.on('data', data => {
  rest += data;
  for (let end; (end = rest.indexOf('\r\n')) >= 0;) {
    const line = rest.slice(0, end);
    rest = rest.slice(end + 2);
    waiting.shift()(line);
  }
});

function send(...words) {
  socket.write(`*${words.length}\r\n` + words.map(w => `$${Buffer.byteLength(String(w))}\r\n${w}\r\n`).join(''));
  return new Promise(done => waiting.push(done));
}

const pause = ms => new Promise(done => setTimeout(done, ms));

async function round(key) {
  let held = false;
  try {
    if (how === 'unsafe') {
      held = await send('SETNX', key, 1) === ':1';
      if (held) await send('EXPIRE', key, 30);
    } else {
      held = await send('SET', key, 1, 'NX', 'EX', 30) === '+OK';
    }
    if (!held) return 0;
    const together = await send('HINCRBY', 'shop:inside', 'node', 1) !== ':1';
    await pause(3 + 4 * Math.random());
    await send('HINCRBY', 'shop:inside', 'node', -1);
    return together ? 1 : 0;
  } finally {
    if (how === 'unsafe' || held) await send('DEL', key);
    await pause(6 * Math.random()); // so that now one comes first, now the other
  }
}

(async () => {
  let overlaps = 0;
  for (let i = 0; i < rounds; i++) overlaps += await round('shop:report:lock');
  console.log(overlaps);
  socket.end();
})();
