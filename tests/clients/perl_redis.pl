# Perl's Redis and Redis::Fast (libredis-perl, libredis-fast-perl) through the proxy: perl_redis.pl MODULE.
use strict;
use warnings;
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(time sleep);

my $module = shift @ARGV;
eval "require $module" or die $@;

my ($host, $port) = @ENV{qw(LK_HOST LK_PORT)};
my $bytes = join('', map { chr } 0 .. 255) . "\r\n\$3\r\nfoo\r\n*1\r\n\0\0\r\n";

sub say_line {
    my @fields = map { (my $field = $_) =~ s/\s+/ /g; $field } @_;
    print join("\t", @fields), "\n";
}

sub fresh {
    my %options = @_;
    my $at = delete $options{port} || $port;
    return $module->new(server => "$host:$at", reconnect => 5, every => 20_000, read_timeout => 8, %options);
}

# A value as text, to be compared.
sub text {
    my ($value) = @_;
    return 'undef' unless defined $value;
    return '[' . join(' ', map { text($_) } @$value) . ']' if ref $value eq 'ARRAY';
    return "$value";
}

sub expect {
    my ($found, $wanted) = map { text($_) } @_;
    die sprintf("expected %s, got %s\n", substr($wanted, 0, 200), substr($found, 0, 200)) if $found ne $wanted;
}

sub refused {
    my ($words, $call) = @_;
    my @result = eval { $call->() };
    my $error = $@;
    die "expected $words, got " . text(\@result) . "\n" unless $error;
    die "expected $words: $error" unless $error =~ /$words/;
}

sub until_true {
    my ($condition) = @_;
    for (my $end = time + 5; !$condition->(); sleep 0.005) {
        die "never came true\n" if time > $end;
    }
}

# Dies with the proxy's words if it refuses SUBSCRIBE: Redis::Fast doesn't pass them on.
sub ask_subscribe {
    my $socket = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5) or die "no connection\n";
    print $socket "SUBSCRIBE probe\r\n";
    my $line = <$socket> // '';
    die $line if $line =~ /^-/;
}

# Runs something in a process of its own, which touches nothing that the parent has open.
sub in_child {
    my ($work) = @_;
    my $pid = fork;
    return $pid if $pid;
    eval { $work->() };
    POSIX::_exit(0);
}

my $c = fresh();

my @features = (
    connect => sub {
        my $named = fresh(name => 'worker-1');
        expect($named->ping, 'PONG');
        expect($named->client_getname, 'worker-1');
        expect(exists $named->info->{redis_version} ? 1 : 0, 1);
        if ($ENV{LK_BACKEND} ne 'cluster') {
            $named->select(3);
            $named->set(only => 'three');
            expect($c->get('only'), undef);
        }
        $named->quit;
    },
    auth => sub {
        expect(fresh(port => $ENV{LK_LOGIN_PORT}, password => $ENV{LK_LOGIN_PASSWORD})->ping, 'PONG');
        refused('NOAUTH', sub { fresh(port => $ENV{LK_LOGIN_PORT})->get('a') });
        refused('WRONGPASS', sub { fresh(port => $ENV{LK_LOGIN_PORT})->auth('wrong') });
        expect(fresh()->auth($ENV{LK_USER}, $ENV{LK_PASSWORD}), 'OK');
    },
    strings => sub {
        expect($c->set('s', 'v'), 'OK');
        expect($c->get('s'), 'v');
        expect($c->get('none'), undef);
        expect($c->append('s', 'w'), 2);
        expect($c->setnx('s', 'x'), 0);
        expect($c->getset('s', 'y'), 'vw');
        expect($c->set('s', 'z', 'EX', 100, 'NX'), undef);
        expect($c->incrby('n', 42), 42);
    },
    binary => sub {
        expect($c->set($bytes, $bytes), 'OK');
        expect($c->get($bytes), $bytes);
        expect($c->hset('bin', 'f', $bytes), 1);
        expect($c->hget('bin', 'f'), $bytes);
    },
    large => sub {
        my $value = $bytes x 4096;
        $c->set('large', $value);
        expect($c->get('large') eq $value ? 1 : 0, 1);
    },
    hashes => sub {
        expect($c->hmset('h', a => 1, b => 'two'), 'OK');
        expect([$c->hmget('h', 'a', 'none')], [1, undef]);
        expect({$c->hgetall('h')}->{b}, 'two');
        expect($c->hdel('h', 'a', 'none'), 1);
    },
    lists => sub {
        expect($c->rpush('l', 'a', 'b', 'c'), 3);
        expect([$c->lrange('l', 0, -1)], ['a', 'b', 'c']);
        expect($c->lrem('l', 1, 'b'), 1);
        expect($c->lpop('l'), 'a');
    },
    sets => sub {
        $c->sadd('{s}1', 'a', 'b', 'c');
        $c->sadd('{s}2', 'c', 'd');
        expect([$c->sinter('{s}1', '{s}2')], ['c']);
        expect($c->sismember('{s}1', 'a'), 1);
    },
    zsets => sub {
        expect($c->zadd('z', 1, 'a', 2.5, 'b'), 2);
        expect([$c->zrange('z', 0, -1, 'WITHSCORES')], ['a', 1, 'b', 2.5]);
    },
    streams => sub {
        expect($c->xadd('x', '5-1', 'f', 'v'), '5-1');
        expect([$c->xrange('x', '-', '+')], [['5-1', ['f', 'v']]]);
        expect([$c->xread('STREAMS', 'x', 0)], [['x', [['5-1', ['f', 'v']]]]]);
    },
    expiry => sub {
        $c->setex('e', 100, 'v');
        expect($c->ttl('e') > 95 ? 1 : 0, 1);
        expect($c->persist('e'), 1);
        expect($c->pexpire('e', 30), 1);
        until_true(sub { !$c->exists('e') });
    },
    multikey => sub {
        my @names = map { "mk:$_" } 0 .. 99;
        expect($c->mset(map { ($_, $_) } @names), 'OK');
        expect([$c->mget(@names, 'none')], [@names, undef]);
        expect($c->del(@names, 'none'), 100);
    },
    pipeline => sub {
        my (@replies, @wanted);
        my $keep = sub { push @replies, defined $_[1] ? 'error' : text($_[0]) };
        for my $i (0 .. 199) {
            $c->set("p:$i", $i, $keep);
            $c->incr('count', $keep);
            $c->lpush("p:$i", 'x', $keep);
            $c->get("p:$i", $keep);
            $c->mget("p:$i", 'p:0', $keep);
            push @wanted, 'OK', $i + 1, 'error', $i, "[$i 0]";
        }
        $c->wait_all_responses;
        expect(\@replies, \@wanted);
    },
    scripts => sub {
        expect($c->eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, 'sc', 42), 42);
        my $sha = $c->script_load('return {KEYS[1], ARGV[1], 3}');
        expect([$c->evalsha($sha, 1, 'sc', 'arg')], ['sc', 'arg', 3]);
        refused('NOSCRIPT', sub { $c->evalsha('0' x 40, 0) });
    },
    scan => sub {
        $c->mset(map { ("scan:$_", 1) } 0 .. 499);
        my ($cursor, %found) = (0);
        do {
            ($cursor, my $some) = $c->scan($cursor, 'MATCH', 'scan:*', 'COUNT', 20);
            $found{$_} = 1 for @$some;
        } while $cursor ne '0';
        expect(scalar(keys %found), 500);
    },
    errors => sub {
        $c->set('err', 'text');
        refused('WRONGTYPE', sub { $c->lpush('err', 1) });
        refused('unknown command', sub { $c->nosuchcommand('a') });
        refused('wrong number of arguments', sub { $c->get });
        expect($c->get('err'), 'text');
    },
    pool => sub {
        my @children = map {
            my $n = $_;
            in_child(sub { my $mine = fresh(); $mine->incr('pool') for 1 .. 100 });
        } 1 .. 8;
        waitpid $_, 0 for @children;
        expect($c->get('pool'), 800);
    },
    multi => sub {
        $c->multi;
        $c->set('{t}a', 1);
        $c->incr('{t}a');
        expect([$c->exec], ['OK', 2]);
    },
    watch => sub {
        my $mine = fresh();
        $c->set('w', 1);
        $mine->watch('w');
        $c->set('w', 10);
        $mine->multi;
        $mine->set('w', 2);
        expect(scalar($mine->exec), undef);
        $mine->watch('w');
        $mine->multi;
        $mine->incr('w');
        expect([$mine->exec], [11]);
    },
    blocking => sub {
        expect(scalar($c->blpop('bl', 1)), undef);
        my $child = in_child(sub { sleep 0.2; fresh()->rpush('bl', 'later') });
        expect([$c->brpop('bl', 5)], ['bl', 'later']);
        waitpid $child, 0;
    },
    pubsub => sub {
        ask_subscribe();
        my $mine = fresh();
        my $got;
        my $callback = sub { $got = $_[0] };
        $mine->subscribe('news', 'more', $callback);
        my $receivers = $c->publish('news', $bytes);
        expect($receivers, 1) if $ENV{LK_BACKEND} ne 'cluster'; # on a cluster PUBLISH counts the receivers of one node
        $mine->wait_for_messages(3) until defined $got;
        expect($got, $bytes);
        $mine->unsubscribe('news', 'more', $callback);
        expect($mine->get('none'), undef);
    },
    reconnect => sub {
        my $mine = fresh(); # Redis.pm connects again by itself, but for a connection that was in a transaction
        $mine->set('before', 1);
        print "restart\n";
        defined(readline STDIN) or die "no restart\n";
        expect($mine->get('before'), 1);
    },
);

$| = 1;
say_line('version', $module->VERSION);
while (my ($name, $feature) = splice @features, 0, 2) {
    my $went = eval {
        local $SIG{ALRM} = sub { die "not done after 9 s\n" };
        alarm 9;
        $feature->();
        alarm 0;
        1;
    };
    my $error = $@;
    alarm 0;
    if ($went) { say_line($name, 'ok') }
    else { say_line($name, 'fail', $error) }
}
POSIX::_exit(0);
