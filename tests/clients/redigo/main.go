// redigo (golang-github-gomodule-redigo-dev) through the proxy, with its pool. ../features.py says what the lines mean.
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

var (
	host    = os.Getenv("LK_HOST")
	address = host + ":" + os.Getenv("LK_PORT")
	login   = host + ":" + os.Getenv("LK_LOGIN_PORT")
	cluster = os.Getenv("LK_BACKEND") == "cluster"
	binary  = allBytes() + "\r\n$3\r\nfoo\r\n*1\r\n\x00\x00\r\n"
	pool    = &redis.Pool{MaxIdle: 8, MaxActive: 8, Wait: true, Dial: func() (redis.Conn, error) { return dial(address) },
		TestOnBorrow: func(c redis.Conn, used time.Time) error {
			_, err := c.Do("PING")
			return err
		}}
)

func allBytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

func dial(where string, options ...redis.DialOption) (redis.Conn, error) {
	options = append(options, redis.DialConnectTimeout(8*time.Second), redis.DialReadTimeout(8*time.Second))
	return redis.Dial("tcp", where, options...)
}

func must(where string, options ...redis.DialOption) redis.Conn {
	c, err := dial(where, options...)
	if err != nil {
		panic(err)
	}
	return c
}

// text shows a reply so that it can be compared.
func text(reply interface{}) string {
	switch value := reply.(type) {
	case []byte:
		return string(value)
	case []interface{}:
		parts := make([]string, len(value))
		for i, each := range value {
			parts[i] = text(each)
		}
		return "[" + strings.Join(parts, " ") + "]"
	case nil:
		return "nil"
	}
	return fmt.Sprint(reply)
}

func want(wanted string, c redis.Conn, command string, args ...interface{}) {
	reply, err := c.Do(command, args...)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", command, err))
	}
	if text(reply) != wanted {
		panic(fmt.Sprintf("%s: expected %.200q, got %.200q", command, wanted, text(reply)))
	}
}

func refused(words string, c redis.Conn, command string, args ...interface{}) {
	reply, err := c.Do(command, args...)
	if err == nil || !strings.Contains(err.Error(), words) {
		panic(fmt.Sprintf("%s: expected %s, got %v %v", command, words, text(reply), err))
	}
}

func equal(found, wanted interface{}) {
	if !reflect.DeepEqual(found, wanted) {
		panic(fmt.Sprintf("expected %.200v, got %.200v", wanted, found))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

var features = []struct {
	name string
	run  func(c redis.Conn)
}{
	{"connect", func(c redis.Conn) {
		named := must(address, redis.DialClientName("worker-1"))
		want("PONG", named, "PING")
		want("worker-1", named, "CLIENT", "GETNAME")
		if !cluster {
			third := must(address, redis.DialDatabase(3))
			want("OK", third, "SET", "only", "three")
			want("nil", c, "GET", "only")
		}
		check(named.Close())
	}},
	{"auth", func(c redis.Conn) {
		want("PONG", must(address, redis.DialUsername(os.Getenv("LK_USER")), redis.DialPassword(os.Getenv("LK_PASSWORD"))),
			"PING")
		want("PONG", must(login, redis.DialPassword(os.Getenv("LK_LOGIN_PASSWORD"))), "PING")
		refused("NOAUTH", must(login), "GET", "a")
		if _, err := dial(login, redis.DialPassword("wrong")); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
			panic(fmt.Sprint("a wrong password: ", err))
		}
	}},
	{"strings", func(c redis.Conn) {
		want("OK", c, "SET", "s", "v")
		want("v", c, "GET", "s")
		want("nil", c, "GET", "none")
		want("0", c, "SETNX", "s", "x")
		want("v", c, "GETSET", "s", "y")
		want("nil", c, "SET", "s", "z", "NX", "EX", 100)
		want("42", c, "INCRBY", "n", 42)
	}},
	{"binary", func(c redis.Conn) {
		want("OK", c, "SET", binary, []byte(binary))
		want(binary, c, "GET", binary)
		want("1", c, "HSET", "bin", binary, binary)
		want("["+binary+" "+binary+"]", c, "HGETALL", "bin")
	}},
	{"large", func(c redis.Conn) {
		value := strings.Repeat(binary, 4096)
		want("OK", c, "SET", "large", value)
		want(value, c, "GET", "large")
	}},
	{"hashes", func(c redis.Conn) {
		want("2", c, "HSET", redis.Args{}.Add("h").AddFlat(map[string]int{"a": 1, "b": 2})...)
		values, err := redis.StringMap(c.Do("HGETALL", "h"))
		check(err)
		equal(values, map[string]string{"a": "1", "b": "2"})
		want("[1 nil]", c, "HMGET", "h", "a", "none")
		want("1", c, "HDEL", "h", "a")
	}},
	{"lists", func(c redis.Conn) {
		want("3", c, "RPUSH", "l", "a", "b", "c")
		want("[a b c]", c, "LRANGE", "l", 0, -1)
		want("1", c, "LREM", "l", 1, "b")
		want("a", c, "LPOP", "l")
	}},
	{"sets", func(c redis.Conn) {
		want("3", c, "SADD", "{s}1", "a", "b", "c")
		want("2", c, "SADD", "{s}2", "c", "d")
		want("[c]", c, "SINTER", "{s}1", "{s}2")
		want("1", c, "SISMEMBER", "{s}1", "a")
	}},
	{"zsets", func(c redis.Conn) {
		want("2", c, "ZADD", "z", 1, "a", 2.5, "b")
		want("[a 1 b 2.5]", c, "ZRANGE", "z", 0, -1, "WITHSCORES")
		want("6", c, "ZINCRBY", "z", 5, "a")
	}},
	{"streams", func(c redis.Conn) {
		want("5-1", c, "XADD", "x", "5-1", "f", "v")
		want("[[x [[5-1 [f v]]]]]", c, "XREAD", "STREAMS", "x", "0")
		want("OK", c, "XGROUP", "CREATE", "x", "group", "0")
		want("[[x [[5-1 [f v]]]]]", c, "XREADGROUP", "GROUP", "group", "me", "STREAMS", "x", ">")
		want("1", c, "XACK", "x", "group", "5-1")
	}},
	{"expiry", func(c redis.Conn) {
		want("OK", c, "SETEX", "e", 100, "v")
		ttl, err := redis.Int(c.Do("TTL", "e"))
		check(err)
		equal(ttl > 95, true)
		want("1", c, "PERSIST", "e")
		want("1", c, "PEXPIRE", "e", 30)
		for end := time.Now().Add(5 * time.Second); ; {
			if n, _ := redis.Int(c.Do("EXISTS", "e")); n == 0 {
				break
			}
			equal(time.Now().Before(end), true)
		}
	}},
	{"multikey", func(c redis.Conn) {
		var pairs, names redis.Args
		for i := 0; i < 100; i++ {
			name := fmt.Sprint("mk:", i)
			pairs, names = pairs.Add(name, i), names.Add(name)
		}
		want("OK", c, "MSET", pairs...)
		values, err := redis.Ints(c.Do("MGET", names...))
		check(err)
		for i, value := range values {
			equal(value, i)
		}
		want("100", c, "DEL", names...)
	}},
	{"pipeline", func(c redis.Conn) {
		for i := 0; i < 200; i++ {
			check(c.Send("SET", fmt.Sprint("p:", i), i))
			check(c.Send("INCR", "count"))
			check(c.Send("LPUSH", fmt.Sprint("p:", i), "x"))
			check(c.Send("GET", fmt.Sprint("p:", i)))
			check(c.Send("MGET", fmt.Sprint("p:", i), "p:0"))
		}
		check(c.Flush())
		for i := 0; i < 200; i++ {
			for _, wanted := range []string{"OK", fmt.Sprint(i + 1), "WRONGTYPE", fmt.Sprint(i), fmt.Sprintf("[%d 0]", i)} {
				reply, err := c.Receive()
				if err != nil {
					equal(strings.Fields(err.Error())[0], wanted)
				} else {
					equal(text(reply), wanted)
				}
			}
		}
	}},
	{"scripts", func(c redis.Conn) {
		script := redis.NewScript(1, "return redis.call('INCRBY', KEYS[1], ARGV[1])")
		for i := 1; i <= 3; i++ { // EVALSHA first, then EVAL
			n, err := redis.Int(script.Do(c, "sc", 14))
			check(err)
			equal(n, 14*i)
		}
		check(script.Load(c))
		refused("NOSCRIPT", c, "EVALSHA", strings.Repeat("0", 40), 0)
	}},
	{"scan", func(c redis.Conn) {
		for i := 0; i < 500; i++ {
			check(c.Send("SET", fmt.Sprint("scan:", i), 1))
		}
		want("[]", c, "KEYS", "none*") // Do() receives what is due before
		found := map[string]bool{}
		for cursor := "0"; ; {
			values, err := redis.Values(c.Do("SCAN", cursor, "MATCH", "scan:*", "COUNT", 20))
			check(err)
			names, _ := redis.Strings(values[1], nil)
			for _, name := range names {
				found[name] = true
			}
			if cursor, _ = redis.String(values[0], nil); cursor == "0" {
				break
			}
		}
		equal(len(found), 500)
	}},
	{"errors", func(c redis.Conn) {
		want("OK", c, "SET", "err", "text")
		refused("WRONGTYPE", c, "LPUSH", "err", 1)
		refused("unknown command", c, "NOSUCHCOMMAND", "a")
		refused("wrong number of arguments", c, "GET")
		want("text", c, "GET", "err")
	}},
	{"pool", func(c redis.Conn) {
		var group sync.WaitGroup
		var failure error
		var mutex sync.Mutex
		for n := 0; n < 16; n++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for i := 0; i < 100; i++ {
					mine := pool.Get()
					_, err := mine.Do("INCR", "pool")
					mine.Close()
					if err != nil {
						mutex.Lock()
						failure = err
						mutex.Unlock()
					}
				}
			}()
		}
		group.Wait()
		check(failure)
		want("1600", c, "GET", "pool")
	}},
	{"multi", func(c redis.Conn) {
		check(c.Send("MULTI"))
		check(c.Send("SET", "{t}a", 1))
		check(c.Send("INCR", "{t}a"))
		want("[OK 2]", c, "EXEC")
	}},
	{"watch", func(c redis.Conn) {
		mine := must(address)
		want("OK", c, "SET", "w", 1)
		want("OK", mine, "WATCH", "w")
		want("OK", c, "SET", "w", 10)
		check(mine.Send("MULTI"))
		check(mine.Send("SET", "w", 2))
		want("nil", mine, "EXEC")
		want("OK", mine, "WATCH", "w")
		check(mine.Send("MULTI"))
		check(mine.Send("INCR", "w"))
		want("[11]", mine, "EXEC")
	}},
	{"blocking", func(c redis.Conn) {
		want("nil", c, "BLPOP", "bl", 1)
		go func() {
			time.Sleep(200 * time.Millisecond)
			other := must(address)
			other.Do("RPUSH", "bl", "later")
			other.Close()
		}()
		want("[bl later]", c, "BRPOP", "bl", 5)
	}},
	{"pubsub", func(c redis.Conn) {
		subscriber := redis.PubSubConn{Conn: must(address)}
		check(subscriber.Subscribe("news"))
		check(subscriber.PSubscribe("new*"))
		for messages := 0; messages < 2; {
			switch got := subscriber.ReceiveWithTimeout(3 * time.Second).(type) {
			case error:
				panic(got)
			case redis.Subscription:
				if got.Count == 2 {
					receivers, err := redis.Int(c.Do("PUBLISH", "news", binary))
					check(err)
					equal(cluster || receivers == 2, true) // on a cluster PUBLISH counts the receivers of one node
				}
			case redis.Message:
				equal(string(got.Data), binary)
				messages++
			}
		}
		check(subscriber.Unsubscribe())
		subscriber.Close()
	}},
	{"reconnect", func(c redis.Conn) {
		want("OK", c, "SET", "before", 1)
		fmt.Println("restart")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			panic("no restart")
		}
		fresh := pool.Get() // the pool tests what it hands out
		defer fresh.Close()
		want("1", fresh, "GET", "before")
	}},
}

func main() {
	for _, feature := range features {
		func() {
			c := must(address)
			defer c.Close()
			defer func() {
				if why := recover(); why != nil {
					fmt.Printf("%s\tfail\t%s\n", feature.name, strings.Join(strings.Fields(fmt.Sprint(why)), " "))
				} else {
					fmt.Printf("%s\tok\n", feature.name)
				}
			}()
			feature.run(c)
		}()
	}
}
