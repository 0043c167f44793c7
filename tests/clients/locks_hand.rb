# A lock as old Ruby code has it, by hand with redis-rb: SET NX PX with a constant value, DEL. One connection a worker.
#
# exclusion: threads add to a counter that only the lock protects. extend: PEXPIRE by the holder. late: a release after
# the end of one's own lease frees nobody else's lock. killed: SETNX, and killed before the EXPIRE.
require 'redis'
require 'timeout'

KEY = 'lock:hand'.freeze
WORKERS = 6
ROUNDS = 8

def say(*fields)
  puts fields.map { |field| field.to_s.gsub(/\s+/, ' ') }.join("\t")
  $stdout.flush
end

def expect(found, wanted)
  raise "expected #{wanted.inspect}, got #{found.inspect}" unless found == wanted
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

class Worker
  def initialize
    @redis = Redis.new(host: ENV.fetch('LK_HOST'), port: ENV.fetch('LK_PORT').to_i, timeout: 8)
  end

  def acquire(lease, wait = 8)
    limit = now + wait
    until @redis.set(KEY, '1', nx: true, px: (lease * 1000).to_i)
      return false if now > limit

      sleep 0.002
    end
    true
  end

  def setnx
    @redis.setnx(KEY, '1')
  end

  def extend_to(lease)
    @redis.pexpire(KEY, (lease * 1000).to_i)
  end

  def release
    @redis.del(KEY)
  end
end

def count(locked)
  total = 0
  Array.new(WORKERS) do
    Thread.new do
      worker = Worker.new
      ROUNDS.times do
        raise 'never got it' if locked && !worker.acquire(5)

        value = total
        sleep 0.001
        total = value + 1
        worker.release if locked
      end
    end
  end.each(&:join)
  total
end

CHECKS = {
  exclusion: lambda {
    raise 'without a lock nothing was lost: this shows nothing' if count(false) >= WORKERS * ROUNDS

    expect count(true), WORKERS * ROUNDS
  },
  extend: lambda {
    a, b = Array.new(2) { Worker.new }
    expect a.acquire(0.4), true
    expect a.extend_to(3), true
    expect b.acquire(1, 0.7), false
    expect a.release, 1
    expect b.acquire(1), true
    expect b.release, 1
  },
  late: lambda {
    a, b, c = Array.new(3) { Worker.new }
    expect a.acquire(0.3), true
    expect b.acquire(5), true # once A's lease is over
    expect a.release, 0
    expect c.acquire(1, 0.2), false
    expect b.release, 1
    expect c.acquire(1), true
    expect c.release, 1
  },
  killed: lambda {
    mine, its = IO.pipe
    child = fork do
      Worker.new.setnx
      its.puts 'held'
      sleep 60
    end
    expect mine.gets, "held\n"
    worker = Worker.new
    expect worker.acquire(1, 0.1), false
    Process.kill(:KILL, child)
    Process.wait(child)
    expect worker.acquire(1), true
    expect worker.release, 1
  }
}.freeze

say 'version', Redis::VERSION
CHECKS.each do |name, check|
  next if ENV.fetch('LK_ONLY', name.to_s) != name.to_s

  Timeout.timeout(9) { check.call }
  say name, 'ok'
rescue StandardError => e
  say name, 'fail', "#{e.class}: #{e.message}"
end
