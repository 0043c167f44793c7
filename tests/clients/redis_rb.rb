# redis-rb (ruby-redis) through the proxy. Threads share one connection behind a monitor, or have one each.
require 'redis'
require 'timeout'

HOST = ENV.fetch('LK_HOST')
PORT = ENV.fetch('LK_PORT').to_i
LOGIN_PORT = ENV.fetch('LK_LOGIN_PORT').to_i
LOGIN_PASSWORD = ENV.fetch('LK_LOGIN_PASSWORD')
USER = ENV.fetch('LK_USER')
PASSWORD = ENV.fetch('LK_PASSWORD')
CLUSTER = ENV.fetch('LK_BACKEND') == 'cluster'
BYTES = ((0..255).to_a.pack('C*') + "\r\n$3\r\nfoo\r\n*1\r\n\0\0\r\n").b

def say(*fields)
  puts fields.map { |field| field.to_s.dup.force_encoding('UTF-8').scrub.gsub(/\s+/, ' ') }.join("\t")
  $stdout.flush
end

def open(**options)
  Redis.new(host: HOST, port: PORT, timeout: 8, **options)
end

def expect(found, wanted)
  raise "expected #{wanted.inspect[0, 200]}, got #{found.inspect[0, 200]}" unless found == wanted
end

def refused(words)
  result = yield
rescue Redis::BaseError => e
  raise "expected #{words}: #{e.message}" unless e.message.match?(words)
else
  raise "expected #{words}, got #{result.inspect}"
end

def wait_until
  limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 5
  until yield
    raise 'never came true' if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
    sleep 0.005
  end
end

C = open

FEATURES = {
  connect: lambda {
    named = open(id: 'worker-1')
    expect named.ping, 'PONG'
    expect named.echo('hello'), 'hello'
    expect named.client(:setname, 'worker-2'), 'OK'
    expect named.client(:getname), 'worker-2'
    expect named.info.key?('redis_version'), true
    unless CLUSTER
      third = open(db: 3)
      third.set('only', 'three')
      expect C.get('only'), nil
      named.select(3)
      expect named.get('only'), 'three'
    end
    named.quit
  },
  auth: lambda {
    expect open(username: USER, password: PASSWORD).ping, 'PONG'
    expect open(port: LOGIN_PORT, password: LOGIN_PASSWORD).ping, 'PONG'
    refused(/WRONGPASS/) { open(username: USER, password: 'wrong').ping }
    refused(/WRONGPASS/) { open(port: LOGIN_PORT, password: 'wrong').ping }
    refused(/NOAUTH/) { open(port: LOGIN_PORT).get('a') }
  },
  strings: lambda {
    expect C.set('s', 'v'), 'OK'
    expect C.get('s'), 'v'
    expect C.get('none'), nil
    expect C.append('s', 'w'), 2
    expect C.setnx('s', 'x'), false
    expect C.getset('s', 'y'), 'vw'
    expect C.set('s', 'z', nx: true, ex: 100), false
    expect C.incrby('n', 42), 42
    expect C.incrbyfloat('f', 1.5), 1.5
    expect C.getdel('s'), 'y'
  },
  binary: lambda {
    expect C.set(BYTES, BYTES), 'OK'
    expect C.get(BYTES).b, BYTES
    C.hset('bin', 'f', BYTES)
    expect C.hget('bin', 'f').b, BYTES
    C.set('u', "žluťoučký \u2603")
    expect C.get('u'), "žluťoučký \u2603"
  },
  large: lambda {
    value = BYTES * 4096
    C.set('large', value)
    expect C.get('large').b == value, true
  },
  hashes: lambda {
    expect C.hset('h', 'a' => 1, 'b' => 'two'), 2
    expect C.hmget('h', 'a', 'none'), ['1', nil]
    expect C.hgetall('h'), { 'a' => '1', 'b' => 'two' }
    expect C.hincrby('h', 'a', 2), 3
    expect C.hdel('h', 'a', 'none'), 1
  },
  lists: lambda {
    expect C.rpush('l', %w[a b c]), 3
    expect C.lrange('l', 0, -1), %w[a b c]
    expect C.lrem('l', 1, 'b'), 1
    expect C.lpop('l'), 'a'
    C.rpush('{q}from', 'm')
    expect C.lmove('{q}from', '{q}to', 'LEFT', 'RIGHT'), 'm'
  },
  sets: lambda {
    C.sadd('{s}1', %w[a b c])
    C.sadd('{s}2', %w[c d])
    expect C.sinter('{s}1', '{s}2'), ['c']
    expect C.sismember('{s}1', 'a'), true
    expect C.scard('{s}1'), 3
  },
  zsets: lambda {
    expect C.zadd('z', [[1, 'a'], [2.5, 'b']]), 2
    expect C.zscore('z', 'b'), 2.5
    expect C.zrange('z', 0, -1, with_scores: true), [['a', 1.0], ['b', 2.5]]
    expect C.zincrby('z', 5, 'a'), 6.0
  },
  streams: lambda {
    id = C.xadd('x', { 'f' => 'v' })
    expect C.xlen('x'), 1
    expect C.xrange('x'), [[id, { 'f' => 'v' }]]
    expect C.xread('x', '0'), { 'x' => [[id, { 'f' => 'v' }]] }
    expect C.xgroup(:create, 'x', 'group', '0'), 'OK'
    expect C.xreadgroup('group', 'me', 'x', '>'), { 'x' => [[id, { 'f' => 'v' }]] }
    expect C.xack('x', 'group', id), 1
  },
  expiry: lambda {
    C.setex('e', 100, 'v')
    expect C.ttl('e') > 95, true
    expect C.persist('e'), true
    expect C.pexpire('e', 30), true
    wait_until { C.exists('e').zero? }
  },
  multikey: lambda {
    names = (0...100).map { |i| "mk:#{i}" }
    expect C.mset(*names.flat_map { |n| [n, n] }), 'OK'
    expect C.mget(*names, 'none'), names + [nil]
    expect C.exists(*names, 'none'), 100
    expect C.del(*names.first(50)), 50
    expect C.unlink(*names), 50
  },
  pipeline: lambda {
    replies = C.pipelined do |p|
      200.times do |i|
        p.set("p:#{i}", i)
        p.incr('count')
        p.rpush('list', i)
        p.get("p:#{i}")
        p.hset('hash', i, 'v')
      end
    end
    expect replies.size, 1000
    200.times { |i| expect replies[5 * i, 5], ['OK', i + 1, i + 1, i.to_s, 1] }
    refused(/WRONGTYPE/) { C.pipelined { |p| p.set('a', 1); p.lpush('a', 2); p.get('a') } }
    expect C.get('a'), '1'
  },
  scripts: lambda {
    expect C.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", keys: ['sc'], argv: [42]), 42
    sha = C.script(:load, 'return {KEYS[1], ARGV[1], 3, false}')
    expect C.evalsha(sha, keys: ['sc'], argv: ['arg']), ['sc', 'arg', 3, nil]
    expect C.script(:exists, [sha, '0' * 40]), [true, false]
    refused(/NOSCRIPT/) { C.evalsha('0' * 40) }
    refused(/oops/) { C.eval("return redis.error_reply('ERR oops')") }
  },
  scan: lambda {
    names = (0...500).map { |i| "scan:#{i}" }
    C.mset(*names.flat_map { |n| [n, 1] })
    expect C.scan_each(match: 'scan:*', count: 20).to_a.uniq.sort, names.sort
    C.hset('sh', names.to_h { |n| [n, 1] })
    expect C.hscan_each('sh').count, 500
  },
  errors: lambda {
    C.set('err', 'text')
    refused(/WRONGTYPE/) { C.lpush('err', 1) }
    refused(/unknown command/) { C.call('NOSUCHCOMMAND', 'a') }
    refused(/wrong number of arguments/) { C.call('GET') }
    expect C.get('err'), 'text'
  },
  pool: lambda {
    threads = (0...8).map do |n|
      Thread.new do
        mine = n.even? ? C : open
        100.times do |i|
          mine.incr('pool')
          mine.set("pool:#{n}", i)
          expect mine.get("pool:#{n}"), i.to_s
        end
      end
    end
    threads.each(&:join)
    expect C.get('pool'), '800'
  },
  multi: lambda {
    replies = C.multi do |tx|
      tx.set('{t}a', 1)
      tx.incr('{t}a')
      tx.get('{t}none')
    end
    expect replies, ['OK', 2, nil]
  },
  watch: lambda {
    mine = open
    C.set('w', 1)
    found = mine.watch('w') do
      C.set('w', 10)
      mine.multi { |tx| tx.set('w', 2) }
    end
    expect found, nil
    found = mine.watch('w') { mine.multi { |tx| tx.incr('w') } }
    expect found, [11]
  },
  blocking: lambda {
    expect C.blpop('bl', timeout: 1), nil
    later = Thread.new { sleep 0.2; open.rpush('bl', 'later') }
    expect C.brpop('bl', timeout: 5), %w[bl later]
    later.join
  },
  pubsub: lambda {
    got = []
    mine = open
    mine.subscribe('news', 'more') do |on|
      on.subscribe { |_, count| Thread.new { open.publish('news', BYTES) } if count == 2 }
      on.message do |_, message|
        got << message.b
        mine.unsubscribe('news', 'more')
      end
    end
    expect got, [BYTES]
    expect mine.get('none'), nil
  },
  reconnect: lambda {
    C.set('before', 1)
    puts 'restart'
    $stdout.flush
    raise 'no restart' unless $stdin.gets
    expect C.get('before'), '1' # redis-rb tries once more by itself
  }
}.freeze

say 'version', Redis::VERSION
FEATURES.each do |name, feature|
  Timeout.timeout(9) { feature.call }
  say name, 'ok'
rescue StandardError => e
  say name, 'fail', "#{e.class}: #{e.message}"
end
