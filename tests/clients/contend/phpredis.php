<?php
// Workers with phpredis that contend for one lock, a process a worker: phpredis.php NAME=VALUE ... (run.py and pools.py say
// what they mean). Each has a connection of its own. With connections=N a worker's every command is a request to PHP's web
// server of N processes, each with a persistent connection (pconnect): the process that accepts the request speaks.

const ZERO = 0;
const DELETED = 1;
const NOT_MINE = -1;
const FORGOTTEN = -2;
const UNSURE = -3;
const RETRIES = 500;
const RETRY_MICROSECONDS = 20000;

function now(): int
{
    return intdiv(hrtime(true), 1000);
}

function part(float $x): float
{
    return $x - floor($x);
}

// One request: a command, done over the persistent connection of the process that serves it.
function serve(array $o): void
{
    try {
        $redis = new Redis();
        $ports = explode(',', $o['port']);
        $redis->pconnect($o['host'], (int) $ports[getmypid() % count($ports)], 8, 'lock', 0, 20);
        $reply = match ($o['op']) {
            'ping' => (bool) $redis->ping(),
            'set' => $redis->set($o['key'], $o['value'], ['nx', 'px' => (int) $o['lease']]),
            'get' => $redis->get($o['key']),
            'del' => $redis->del($o['key']),
        };
        echo json_encode(['reply' => $reply]);
    } catch (RedisException $error) {
        if (isset($redis)) {
            try {
                $redis->close();
            } catch (RedisException) {
            }
        }
        echo json_encode(['error' => $error->getMessage()]);
    }
}

// Redis as a worker of a web application reaches it: by a request to the server on this port.
class Requests
{
    public function __construct(private array $o, private int $port)
    {
    }

    private function ask(array $words)
    {
        $query = http_build_query($words + array_intersect_key($this->o, ['host' => 1, 'port' => 1]));
        $said = json_decode(file_get_contents("http://127.0.0.1:$this->port/?$query"), true);
        if (isset($said['error'])) {
            throw new RedisException($said['error']);
        }
        return $said['reply'];
    }

    public function ping()
    {
        return $this->ask(['op' => 'ping']);
    }

    public function set(string $key, string $value, array $options)
    {
        return $this->ask(['op' => 'set', 'key' => $key, 'value' => $value, 'lease' => $options['px']]);
    }

    public function get(string $key)
    {
        return $this->ask(['op' => 'get', 'key' => $key]);
    }

    public function del(string $key)
    {
        return $this->ask(['op' => 'del', 'key' => $key]);
    }
}

class Server
{
    public int $port;
    private $process;

    public function __construct(int $processes)
    {
        $probe = stream_socket_server('tcp://127.0.0.1:0');
        $this->port = (int) substr(strrchr(stream_socket_get_name($probe, false), ':'), 1);
        fclose($probe);
        $this->process = proc_open(['setsid', PHP_BINARY, '-S', "127.0.0.1:$this->port", __FILE__],
            [['file', '/dev/null', 'r'], ['file', '/dev/null', 'w'], ['file', '/dev/null', 'w']], $pipes, null,
            ['PHP_CLI_SERVER_WORKERS' => $processes] + getenv());
        for ($times = 0; !($c = @fsockopen('127.0.0.1', $this->port)); $times++) {
            if ($times > 500) {
                fwrite(STDERR, "PHP's web server does not start\n");
                exit(1);
            }
            usleep(10000);
        }
        fclose($c);
    }

    public function stop(): void
    {
        $pid = proc_get_status($this->process)['pid'];
        posix_kill(-$pid, SIGTERM); // the group: the server and its processes
        proc_close($this->process);
    }
}

class Worker
{
    public array $sections = [];
    public int $freed = 0;
    public int $attempts = 0;
    private Redis|Requests $redis;
    private float $works;
    private float $polls;
    private array $faults;

    public function __construct(private int $number, private array $o, ?int $server)
    {
        if ($server) {
            $this->redis = new Requests($o, $server);
        } else {
            $this->redis = new Redis();
            $this->redis->connect($o['host'], (int) $o['port'], 8, null, 0, 20);
        }
        $this->send('ping');
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

    // [reply, whether it was sent more than once]: with retry=1 a command whose connection fails is sent again.
    private function send(string $command, ...$words): array
    {
        for ($times = 0;; $times++) {
            try {
                return [$this->redis->$command(...$words), $times > 0];
            } catch (RedisException $error) {
                if (!($this->o['retry'] ?? 0) || $times == RETRIES) {
                    throw $error;
                }
                usleep(RETRY_MICROSECONDS);
            }
        }
    }

    private function acquire(string $value): bool
    {
        [$got, $again] = $this->send('set', $this->o['key'], $value, ['nx', 'px' => (int) $this->o['lease']]);
        // After a failure the first reply may be lost, and the lock its own.
        return $got === true || $again && $this->o['value'] === 'lease' && $this->send('get', $this->o['key'])[0] === $value;
    }

    private function release(string $value): int
    {
        if ($this->o['compare'] && $this->send('get', $this->o['key'])[0] !== $value) {
            return NOT_MINE;
        }
        [$freed, $again] = $this->send('del', $this->o['key']);
        return $freed ? DELETED : ($again ? UNSURE : ZERO);
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
            if ($this->acquire($value)) {
                $this->section($value, $sent);
            } elseif ($this->o['losers']) {
                $this->freed += $this->release($value) === DELETED ? 1 : 0;
            }
            $this->poll();
        }
    }
}

if (PHP_SAPI === 'cli-server') {
    serve($_GET);
    return;
}
$options = [];
foreach (array_slice($argv, 1) as $word) {
    [$name, $text] = explode('=', $word, 2);
    $options[$name] = in_array($name, ['host', 'port', 'key', 'value']) ? $text : $text + 0;
}
$server = isset($options['connections']) ? new Server($options['connections']) : null;
$main = getmypid();
register_shutdown_function(fn () => getmypid() === $main && $server?->stop()); // after an error, too
$children = [];
for ($number = 0; $number < $options['workers']; $number++) {
    [$mine, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        fclose($mine);
        $worker = new Worker($number, $options, $server?->port);
        fwrite($its, "connected\n");
        $worker->run((int) fgets($its));
        fwrite($its, json_encode([$worker->attempts, $worker->freed, $worker->sections]));
        exit(0);
    }
    fclose($its);
    $children[$pid] = $mine;
}
foreach ($children as $stream) {
    if (fgets($stream) === false) {
        fwrite(STDERR, "a worker did not connect\n");
        exit(1);
    }
}
if ($options['ready'] ?? 0) { // program.py
    echo "ready\n";
    fgets(STDIN);
}
$start = now() + 20000;
foreach ($children as $stream) {
    fwrite($stream, "$start\n");
}
$total = ['version' => phpversion('redis'), 'began' => $start, 'attempts' => 0, 'freed' => 0, 'sections' => []];
foreach ($children as $pid => $stream) {
    $said = json_decode(stream_get_contents($stream));
    if ($said === null) {
        fwrite(STDERR, "a worker ended before its time\n");
        exit(1);
    }
    [$attempts, $freed, $sections] = $said;
    $total['attempts'] += $attempts;
    $total['freed'] += $freed;
    $total['sections'] = array_merge($total['sections'], $sections);
    pcntl_waitpid($pid, $status);
}
echo json_encode($total), "\n";
