# redis-semaphore of Ruby for docs/guides/semaphores.md: as many workers as there are tokens, a waiting worker, stale tokens.
begin
  require 'redis'
  require 'redis/semaphore'
rescue LoadError => e
  puts "missing #{e.message}"
  exit
end

def expect(found, wanted, what)
  abort "#{what}: expected #{wanted.inspect}, got #{found.inspect}" unless found == wanted
end

Redis.exists_returns_integer = false if Redis.respond_to?(:exists_returns_integer=)
clients = Array.new(3) { Redis.new(host: ENV.fetch('LK_HOST'), port: ENV.fetch('LK_PORT').to_i) }
a, b, c = clients.map { |redis| Redis::Semaphore.new('{mail}', resources: 2, stale_client_timeout: 1, redis: redis) }
expect(a.lock(0) && true, true, 'the first')
expect(b.lock(0) && true, true, 'the second')
expect(c.lock(0), false, 'the third')
expect(a.available_count, 0, 'what is free')
waiter = Thread.new { c.lock(5) && true }
a.unlock
expect(waiter.value, true, 'the third, when the first has gone')
sleep 1.2 # the second and the third say nothing: their tokens are stale
expect(a.lock(0) && true, true, 'a stale token')
expect(clients[0].exists('SEMAPHORE:{mail}:release_locks'), false, 'the lock of the search')
a.delete!
puts 'held SEMAPHORE:{mail}:release_locks'
puts 'done'
