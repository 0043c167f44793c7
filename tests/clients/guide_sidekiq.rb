# Sidekiq (ruby-sidekiq) for docs/guides/ruby.md: jobs are queued, retried and done once each by two processes, through the proxy;
# and redlock-rb's way of SET NX by hand.
begin
  require 'redis'
  require 'sidekiq'
rescue LoadError => e
  puts "missing #{e.message}"
  exit
end
require 'tmpdir'

URL = "redis://#{ENV.fetch('LK_HOST')}:#{ENV.fetch('LK_PORT')}/0".freeze
JOBS = 20

def expect(found, wanted, what)
  abort "#{what}: expected #{wanted.inspect}, got #{found.inspect}" unless found == wanted
end

Sidekiq.configure_client { |config| config.redis = { url: URL } }

folder = Dir.mktmpdir
worker = File.join(folder, 'worker.rb')
File.write(worker, <<~RUBY)
  require 'sidekiq'
  Sidekiq.configure_server { |config| config.redis = { url: '#{URL}' } }
  class Mail
    include Sidekiq::Worker
    def perform(number)
      Sidekiq.redis { |redis| redis.rpush('done', number) }
    end
  end
RUBY
processes = Array.new(2) do
  spawn('sidekiq', '-r', worker, '-c', '2', '-t', '2', out: File.join(folder, 'log'), err: File.join(folder, 'log'))
end
begin
  JOBS.times { |number| Sidekiq::Client.push('class' => 'Mail', 'args' => [number]) }
  redis = Redis.new(url: URL, timeout: 8)
  limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 40
  until redis.llen('done') >= JOBS
    abort "not done: #{File.read(File.join(folder, 'log'))}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
    sleep 0.05
  end
  expect redis.lrange('done', 0, -1).map(&:to_i).sort, (0...JOBS).to_a, 'the jobs'
ensure
  processes.each { |pid| Process.kill(:TERM, pid) }
  processes.each { |pid| Process.wait(pid) }
end

other = Redis.new(url: URL, timeout: 8, id: 'other')
expect redis.set('lock:invoice', '1', nx: true, ex: 10), true, 'the first'
expect other.set('lock:invoice', '1', nx: true, ex: 10), false, 'the second'
expect other.del('lock:invoice'), 0, "the second's release"
expect redis.del('lock:invoice'), 1, 'the release'
puts 'held lock:invoice'
puts 'done'
