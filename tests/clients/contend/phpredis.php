<?php
// Workers with phpredis that contend for one lock, a process a worker and a connection a process:
// phpredis.php NAME=VALUE ... (run.py says what they mean).

const ZERO = 0;
const DELETED = 1;
const NOT_MINE = -1;
const FORGOTTEN = -2;

function now(): int
{
    return intdiv(hrtime(true), 1000);
}

function part(float $x): float
{
    return $x - floor($x);
}

class Worker
{
    public array $sections = [];
    public int $freed = 0;
    public int $attempts = 0;
    private Redis $redis;
    private float $works;
    private float $polls;
    private array $faults;

    public function __construct(private int $number, private array $o)
    {
        $this->redis = new Redis();
        $this->redis->connect($o['host'], (int) $o['port'], 8, null, 0, 20);
        $this->redis->ping();
        $place = $o['seed'] * $o['workers'] + $number;
        $share = ($number + part($o['seed'] * 0.754877666)) / $o['workers'];
        $this->works = part($place * 0.754877666);
        $this->polls = part($place * 0.569840290);
        $this->faults = ['forget' => $share, 'overrun' => part($share + 0.5 / $o['workers'])];
    }

    // Numbers that fill their range evenly, so that few of them do as well as many random ones.
    private function work(): float
    {
        $this->works = part($this->works + 0.6180339887);
        return $this->o['work_min'] + ($this->o['work_max'] - $this->o['work_min']) * $this->works;
    }

    private function poll(): void
    {
        $this->polls = part($this->polls + 0.4142135624);
        usleep((int) (1000 * ($this->o['poll_min'] + ($this->o['poll_max'] - $this->o['poll_min']) * $this->polls)));
    }

    private function due(string $fault): bool
    {
        $this->faults[$fault] += $this->o[$fault];
        $is = $this->faults[$fault] >= 1;
        $this->faults[$fault] = part($this->faults[$fault]);
        return $is;
    }

    private function value(): string
    {
        if ($this->o['value'] === 'constant') {
            return '1';
        }
        return $this->o['value'] === 'worker' ? "worker-$this->number" : bin2hex(random_bytes(16));
    }

    private function release(string $value): int
    {
        if ($this->o['compare'] && $this->redis->get($this->o['key']) !== $value) {
            return NOT_MINE;
        }
        return $this->redis->del($this->o['key']) ? DELETED : ZERO;
    }

    private function section(string $value, int $sent): void
    {
        $entered = now();
        $work = $this->work();
        if ($this->due('overrun')) {
            $work = $this->o['lease'] * (1.2 + $this->works);
        }
        usleep((int) (1000 * $work));
        $left = now();
        $outcome = $this->due('forget') ? FORGOTTEN : $this->release($value);
        $this->sections[] = [$this->number, $sent, $entered, $left, now(), $outcome];
    }

    public function run(int $start): void
    {
        $end = $start + $this->o['seconds'] * 1e6;
        usleep(max(0, $start - now()));
        while (now() < $end) {
            $value = $this->value();
            $sent = now();
            $this->attempts++;
            if ($this->redis->set($this->o['key'], $value, ['nx', 'px' => (int) $this->o['lease']]) === true) {
                $this->section($value, $sent);
            } elseif ($this->o['losers']) {
                $this->freed += $this->release($value) === DELETED ? 1 : 0;
            }
            $this->poll();
        }
    }
}

$options = [];
foreach (array_slice($argv, 1) as $word) {
    [$name, $text] = explode('=', $word, 2);
    $options[$name] = in_array($name, ['host', 'key', 'value']) ? $text : $text + 0;
}
$start = now() + 50000;
$children = [];
for ($number = 0; $number < $options['workers']; $number++) {
    [$mine, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        fclose($mine);
        $worker = new Worker($number, $options);
        $worker->run($start);
        fwrite($its, json_encode([$worker->attempts, $worker->freed, $worker->sections]));
        exit(0);
    }
    fclose($its);
    $children[$pid] = $mine;
}
$total = ['version' => phpversion('redis'), 'attempts' => 0, 'freed' => 0, 'sections' => []];
foreach ($children as $pid => $stream) {
    [$attempts, $freed, $sections] = json_decode(stream_get_contents($stream));
    $total['attempts'] += $attempts;
    $total['freed'] += $freed;
    $total['sections'] = array_merge($total['sections'], $sections);
    pcntl_waitpid($pid, $status);
}
echo json_encode($total), "\n";
