// Workers with go-redis 5 that contend for one lock over one client's pool: NAME=VALUE ... (../run.py and ../pools.py
// say what they mean).
package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gopkg.in/redis.v5"
)

const (
	zero      = 0
	deleted   = 1
	notMine   = -1
	forgotten = -2
	unsure    = -3
)

const (
	retries      = 500
	retryMs      = 20
	monotonic    = 1 // the clock that other programs read
	microseconds = 1000
)

var (
	text   = map[string]string{}
	number = map[string]float64{}
)

func now() int64 {
	var t syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano() / microseconds
}

func part(x float64) float64 {
	return x - math.Floor(x)
}

func sleep(ms float64) {
	time.Sleep(time.Duration(ms * float64(time.Millisecond)))
}

func check(err error) {
	if err != nil && err != redis.Nil {
		panic(err)
	}
}

// Sends a command, and with retry=1 sends it again while its connection fails. Returns whether it was sent more than once.
func send(command func() error) bool {
	for times := 0; ; times++ {
		err := command()
		failed := err == io.EOF
		if _, is := err.(net.Error); is {
			failed = true
		}
		if !failed || number["retry"] == 0 || times == retries {
			check(err)
			return times > 0
		}
		sleep(retryMs)
	}
}

type worker struct {
	n               int
	c               *redis.Client
	works, polls    float64
	faults          map[string]float64
	freed, attempts int
	sections        [][6]int64
}

func newWorker(n int, c *redis.Client) *worker {
	place := number["seed"]*number["workers"] + float64(n)
	share := (float64(n) + part(number["seed"]*0.754877666)) / number["workers"]
	return &worker{n: n, c: c, works: part(place * 0.754877666), polls: part(place * 0.569840290),
		faults: map[string]float64{"forget": share, "overrun": part(share + 0.5/number["workers"])}}
}

// Numbers that fill their range evenly, so that few of them do as well as many random ones.
func (w *worker) work() float64 {
	w.works = part(w.works + 0.6180339887)
	return number["work_min"] + (number["work_max"]-number["work_min"])*w.works
}

func (w *worker) poll() {
	w.polls = part(w.polls + 0.4142135624)
	sleep(number["poll_min"] + (number["poll_max"]-number["poll_min"])*w.polls)
}

func (w *worker) due(fault string) bool {
	w.faults[fault] += number[fault]
	is := w.faults[fault] >= 1
	w.faults[fault] = part(w.faults[fault])
	return is
}

func (w *worker) value() string {
	switch text["value"] {
	case "constant":
		return "1"
	case "worker":
		return fmt.Sprint("worker-", w.n)
	}
	bytes := make([]byte, 16)
	_, err := rand.Read(bytes)
	check(err)
	return fmt.Sprintf("%x", bytes)
}

func (w *worker) get() (found string) {
	send(func() (err error) {
		found, err = w.c.Get(text["key"]).Result()
		return err
	})
	return found
}

func (w *worker) acquire(value string) (got bool) {
	lease := time.Duration(number["lease"]) * time.Millisecond
	again := send(func() (err error) {
		got, err = w.c.SetNX(text["key"], value, lease).Result()
		return err
	})
	// After a failure the first reply may be lost, and the lock its own.
	return got || again && text["value"] == "lease" && w.get() == value
}

func (w *worker) release(value string) int64 {
	if number["compare"] != 0 && w.get() != value {
		return notMine
	}
	var n int64
	again := send(func() (err error) {
		n, err = w.c.Del(text["key"]).Result()
		return err
	})
	if n > 0 {
		return deleted
	} else if again {
		return unsure
	}
	return zero
}

func (w *worker) section(value string, sent int64) {
	entered := now()
	work := w.work()
	if w.due("overrun") {
		work = number["lease"] * (1.2 + w.works)
	}
	sleep(work)
	left := now()
	outcome := int64(forgotten)
	if !w.due("forget") {
		outcome = w.release(value)
	}
	w.sections = append(w.sections, [6]int64{int64(w.n), sent, entered, left, now(), outcome})
}

func (w *worker) run(end int64) {
	for now() < end {
		value, sent := w.value(), now()
		w.attempts++
		if w.acquire(value) {
			w.section(value, sent)
		} else if number["losers"] != 0 && w.release(value) == deleted {
			w.freed++
		}
		w.poll()
	}
}

func main() {
	for _, word := range os.Args[1:] {
		pair := strings.SplitN(word, "=", 2)
		text[pair[0]] = pair[1]
		number[pair[0]], _ = strconv.ParseFloat(pair[1], 64)
	}
	// Connections go to the ports by turns.
	ports, turns := strings.Split(text["port"], ","), uint32(0)
	dial := func() (net.Conn, error) {
		port := ports[int(atomic.AddUint32(&turns, 1))%len(ports)]
		return net.DialTimeout("tcp", text["host"]+":"+port, 5*time.Second)
	}
	c := redis.NewClient(&redis.Options{Dialer: dial, PoolSize: int(number["connections"]), ReadTimeout: 20 * time.Second})
	check(c.Ping().Err())
	if number["ready"] != 0 { // ../program.py
		fmt.Println("ready")
		fmt.Scanln()
	}
	began := now()
	end := began + int64(number["seconds"]*1e6)
	var workers []*worker
	var group sync.WaitGroup
	for n := 0; n < int(number["workers"]); n++ {
		w := newWorker(n, c)
		workers = append(workers, w)
		group.Add(1)
		go func() {
			defer group.Done()
			w.run(end)
		}()
	}
	group.Wait()
	total := struct {
		Version  string     `json:"version"`
		Began    int64      `json:"began"`
		Attempts int        `json:"attempts"`
		Freed    int        `json:"freed"`
		Sections [][6]int64 `json:"sections"`
	}{Version: "5", Began: began}
	for _, w := range workers {
		total.Attempts += w.attempts
		total.Freed += w.freed
		total.Sections = append(total.Sections, w.sections...)
	}
	check(json.NewEncoder(os.Stdout).Encode(total))
}
