# A lock as old Perl code has it, by hand: SET NX PX with a constant value, DEL. One connection a worker.
# locks_hand.pl MODULE (Redis or Redis::Fast)
#
# exclusion: processes add to a counter in a file that only the lock protects. extend: PEXPIRE by the holder. late: a
# release after the end of one's own lease frees nobody else's lock. killed: SETNX, and killed before the EXPIRE.
use strict;
use warnings;
use File::Temp qw(tempfile);
use POSIX ();
use Time::HiRes qw(time sleep);

my $module = shift @ARGV;
eval "require $module" or die $@;
my ($key, $workers, $rounds) = ('lock:hand', 5, 8);

sub say_line {
    my @fields = map { (my $field = $_) =~ s/\s+/ /g; $field } @_;
    print join("\t", @fields), "\n";
}

sub expect {
    my ($found, $wanted) = @_;
    die "expected $wanted, got $found\n" if $found != $wanted;
}

sub worker {
    return $module->new(server => "$ENV{LK_HOST}:$ENV{LK_PORT}", read_timeout => 8);
}

sub acquire {
    my ($redis, $lease, $wait) = @_;
    for (my $end = time + ($wait // 8); !$redis->set($key, 1, 'NX', 'PX', int($lease * 1000)); sleep 0.002) {
        return 0 if time > $end;
    }
    return 1;
}

# Runs something in a process of its own, which touches nothing that the parent has open.
sub in_child {
    my ($work) = @_;
    my $pid = fork;
    return $pid if $pid;
    eval { $work->() };
    POSIX::_exit(0);
}

sub contents {
    my ($file, $value) = @_;
    open my $handle, defined $value ? '>' : '<', $file or die "$file: $!\n";
    print $handle $value if defined $value;
    return defined $value ? $value : <$handle> // 0;
}

sub count {
    my ($locked) = @_;
    my (undef, $file) = tempfile('lockkeeper-counter-XXXXXX', TMPDIR => 1, UNLINK => 1);
    contents($file, 0);
    my @children = map {
        in_child(sub {
            my $redis = worker();
            for (1 .. $rounds) {
                return if $locked && !acquire($redis, 5);
                my $value = contents($file);
                sleep 0.002;
                contents($file, $value + 1);
                $redis->del($key) if $locked;
            }
        })
    } 1 .. $workers;
    waitpid $_, 0 for @children;
    return contents($file);
}

my @checks = (
    exclusion => sub {
        die "without a lock nothing was lost: this shows nothing\n" if count(0) >= $workers * $rounds;
        expect(count(1), $workers * $rounds);
    },
    extend => sub {
        my ($a_, $b_) = (worker(), worker());
        expect(acquire($a_, 0.4), 1);
        expect($a_->pexpire($key, 3000), 1);
        expect(acquire($b_, 1, 0.7), 0);
        expect($a_->del($key), 1);
        expect(acquire($b_, 1), 1);
        expect($b_->del($key), 1);
    },
    late => sub {
        my ($a_, $b_, $c_) = (worker(), worker(), worker());
        expect(acquire($a_, 0.3), 1);
        expect(acquire($b_, 5), 1); # once A's lease is over
        expect($a_->del($key), 0);
        expect(acquire($c_, 1, 0.2), 0);
        expect($b_->del($key), 1);
        expect(acquire($c_, 1), 1);
        expect($c_->del($key), 1);
    },
    killed => sub {
        pipe my $mine, my $its or die "pipe: $!\n";
        my $child = in_child(sub {
            my $redis = worker();
            $redis->setnx($key, 1);
            syswrite $its, "held\n";
            sleep 60;
        });
        defined(readline $mine) or die "no holder\n";
        my $redis = worker();
        expect(acquire($redis, 1, 0.1), 0);
        kill KILL => $child;
        waitpid $child, 0;
        expect(acquire($redis, 1), 1);
        expect($redis->del($key), 1);
    },
);

$| = 1;
say_line('version', $module->VERSION);
while (my ($name, $check) = splice @checks, 0, 2) {
    next if ($ENV{LK_ONLY} // $name) ne $name;
    my $went = eval {
        local $SIG{ALRM} = sub { die "not done after 9 s\n" };
        alarm 9;
        $check->();
        alarm 0;
        1;
    };
    my $error = $@;
    alarm 0;
    if ($went) { say_line($name, 'ok') }
    else { say_line($name, 'fail', $error) }
}
POSIX::_exit(0);
