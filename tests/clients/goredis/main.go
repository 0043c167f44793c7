// go-redis 5 (golang-gopkg-redis.v5-dev) through the proxy: a pool behind every call. ../features.py says what the
// lines mean.
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"gopkg.in/redis.v5"
)

var (
	host    = os.Getenv("LK_HOST")
	cluster = os.Getenv("LK_BACKEND") == "cluster"
	binary  = allBytes() + "\r\n$3\r\nfoo\r\n*1\r\n\x00\x00\r\n"
	c       = open(redis.Options{})
)

func allBytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

func open(options redis.Options) *redis.Client {
	if options.Addr == "" {
		options.Addr = host + ":" + os.Getenv("LK_PORT")
	}
	options.ReadTimeout = 8 * time.Second
	return redis.NewClient(&options)
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

func refused(words string, err error) {
	if err == nil || !strings.Contains(err.Error(), words) {
		panic(fmt.Sprintf("expected %s, got %v", words, err))
	}
}

func raw(args ...interface{}) (interface{}, error) {
	cmd := redis.NewCmd(args...)
	c.Process(cmd)
	return cmd.Result()
}

var features = []struct {
	name string
	run  func()
}{
	{"connect", func() {
		equal(c.Ping().Val(), "PONG")
		equal(c.Echo("hello").Val(), "hello")
		equal(strings.Contains(c.Info().Val(), "redis_version"), true)
		if !cluster {
			third := open(redis.Options{DB: 3})
			check(third.Set("only", "three", 0).Err())
			equal(c.Get("only").Err(), redis.Nil)
			third.Close()
		}
	}},
	{"auth", func() {
		login := host + ":" + os.Getenv("LK_LOGIN_PORT")
		equal(open(redis.Options{Addr: login, Password: os.Getenv("LK_LOGIN_PASSWORD")}).Ping().Val(), "PONG")
		refused("WRONGPASS", open(redis.Options{Addr: login, Password: "wrong"}).Ping().Err())
		refused("NOAUTH", open(redis.Options{Addr: login}).Get("a").Err())
	}},
	{"strings", func() {
		equal(c.Set("s", "v", 0).Val(), "OK")
		equal(c.Get("s").Val(), "v")
		equal(c.Get("none").Err(), redis.Nil)
		equal(c.SetNX("s", "x", time.Minute).Val(), false)
		equal(c.GetSet("s", "y").Val(), "v")
		equal(c.IncrBy("n", 42).Val(), int64(42))
		equal(c.IncrByFloat("f", 1.5).Val(), 1.5)
	}},
	{"binary", func() {
		check(c.Set(binary, binary, 0).Err())
		equal(c.Get(binary).Val(), binary)
		equal(c.HSet("bin", binary, binary).Val(), true)
		equal(c.HGetAll("bin").Val(), map[string]string{binary: binary})
	}},
	{"large", func() {
		value := strings.Repeat(binary, 4096)
		check(c.Set("large", value, 0).Err())
		equal(c.Get("large").Val() == value, true)
	}},
	{"hashes", func() {
		check(c.HMSet("h", map[string]string{"a": "1", "b": "two"}).Err())
		equal(c.HGetAll("h").Val(), map[string]string{"a": "1", "b": "two"})
		equal(c.HIncrBy("h", "a", 2).Val(), int64(3))
		equal(c.HDel("h", "a", "none").Val(), int64(1))
	}},
	{"lists", func() {
		equal(c.RPush("l", "a", "b", "c").Val(), int64(3))
		equal(c.LRange("l", 0, -1).Val(), []string{"a", "b", "c"})
		equal(c.LRem("l", 1, "b").Val(), int64(1))
		equal(c.LPop("l").Val(), "a")
	}},
	{"sets", func() {
		equal(c.SAdd("{s}1", "a", "b", "c").Val(), int64(3))
		equal(c.SAdd("{s}2", "c", "d").Val(), int64(2))
		equal(c.SInter("{s}1", "{s}2").Val(), []string{"c"})
		equal(c.SIsMember("{s}1", "a").Val(), true)
	}},
	{"zsets", func() {
		equal(c.ZAdd("z", redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 2.5, Member: "b"}).Val(), int64(2))
		equal(c.ZScore("z", "b").Val(), 2.5)
		equal(c.ZRange("z", 0, -1).Val(), []string{"a", "b"})
	}},
	{"streams", func() { // this version has no methods for them
		reply, err := raw("XADD", "x", "5-1", "f", "v")
		check(err)
		equal(fmt.Sprintf("%s", reply), "5-1")
		reply, err = raw("XREAD", "STREAMS", "x", "0")
		check(err)
		equal(fmt.Sprintf("%s", reply), "[[x [[5-1 [f v]]]]]")
	}},
	{"expiry", func() {
		check(c.Set("e", "v", 100*time.Second).Err())
		equal(c.TTL("e").Val() > 95*time.Second, true)
		equal(c.Persist("e").Val(), true)
		equal(c.PExpire("e", 30*time.Millisecond).Val(), true)
		for end := time.Now().Add(5 * time.Second); c.Exists("e").Val(); {
			equal(time.Now().Before(end), true)
		}
	}},
	{"multikey", func() {
		var pairs []interface{}
		var names []string
		var values []interface{}
		for i := 0; i < 100; i++ {
			name := fmt.Sprint("mk:", i)
			pairs, names, values = append(pairs, name, i), append(names, name), append(values, fmt.Sprint(i))
		}
		check(c.MSet(pairs...).Err())
		equal(c.MGet(append(names, "none")...).Val(), append(values, nil))
		equal(c.Del(names...).Val(), int64(100))
	}},
	{"pipeline", func() {
		p := c.Pipeline()
		for i := 0; i < 200; i++ {
			p.Set(fmt.Sprint("p:", i), i, 0)
			p.Incr("count")
			p.LPush(fmt.Sprint("p:", i), "x")
			p.Get(fmt.Sprint("p:", i))
			p.MGet(fmt.Sprint("p:", i), "p:0")
		}
		commands, err := p.Exec()
		refused("WRONGTYPE", err)
		equal(len(commands), 1000)
		for i := 0; i < 200; i++ {
			equal(commands[5*i].(*redis.StatusCmd).Val(), "OK")
			equal(commands[5*i+1].(*redis.IntCmd).Val(), int64(i+1))
			refused("WRONGTYPE", commands[5*i+2].Err())
			equal(commands[5*i+3].(*redis.StringCmd).Val(), fmt.Sprint(i))
			equal(commands[5*i+4].(*redis.SliceCmd).Val(), []interface{}{fmt.Sprint(i), "0"})
		}
	}},
	{"scripts", func() {
		script := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
		for i := 1; i <= 3; i++ { // EVALSHA first, then EVAL
			n, err := script.Run(c, []string{"sc"}, 14).Result()
			check(err)
			equal(n, int64(14*i))
		}
		refused("NOSCRIPT", c.EvalSha(strings.Repeat("0", 40), nil).Err())
	}},
	{"scan", func() {
		for i := 0; i < 500; i++ {
			check(c.Set(fmt.Sprint("scan:", i), 1, 0).Err())
		}
		found := map[string]bool{}
		iterator := c.Scan(0, "scan:*", 20).Iterator()
		for iterator.Next() {
			found[iterator.Val()] = true
		}
		check(iterator.Err())
		equal(len(found), 500)
	}},
	{"errors", func() {
		check(c.Set("err", "text", 0).Err())
		refused("WRONGTYPE", c.LPush("err", 1).Err())
		_, err := raw("NOSUCHCOMMAND", "a")
		refused("unknown command", err)
		_, err = raw("GET")
		refused("wrong number of arguments", err)
		equal(c.Get("err").Val(), "text")
	}},
	{"pool", func() {
		shared := open(redis.Options{PoolSize: 8})
		var group sync.WaitGroup
		for n := 0; n < 16; n++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for i := 0; i < 100; i++ {
					shared.Incr("pool")
				}
			}()
		}
		group.Wait()
		equal(c.Get("pool").Val(), "1600")
	}},
	{"multi", func() {
		p := c.TxPipeline()
		p.Set("{t}a", 1, 0)
		n := p.Incr("{t}a")
		_, err := p.Exec()
		check(err)
		equal(n.Val(), int64(2))
	}},
	{"watch", func() {
		check(c.Set("w", 1, 0).Err())
		change := func(tx *redis.Tx) error {
			value, err := tx.Get("w").Int64()
			if err != nil {
				return err
			}
			if value == 1 {
				check(c.Set("w", 10, 0).Err())
			}
			_, err = tx.Pipelined(func(p *redis.Pipeline) error {
				p.Set("w", value+1, 0)
				return nil
			})
			return err
		}
		if err := c.Watch(change, "w"); err != redis.TxFailedErr {
			panic(fmt.Sprint("expected a failed transaction, got ", err))
		}
		check(c.Watch(change, "w"))
		equal(c.Get("w").Val(), "11")
	}},
	{"blocking", func() {
		if err := c.BLPop(time.Second, "bl").Err(); err != redis.Nil {
			panic(err)
		}
		go func() {
			time.Sleep(200 * time.Millisecond)
			c.RPush("bl", "later")
		}()
		equal(c.BRPop(5*time.Second, "bl").Val(), []string{"bl", "later"})
	}},
	{"pubsub", func() {
		subscriber, err := c.Subscribe("news", "more")
		check(err)
		for subscribed := 0; ; {
			got, err := subscriber.ReceiveTimeout(3 * time.Second)
			check(err)
			if _, is := got.(*redis.Subscription); is {
				if subscribed++; subscribed == 2 {
					receivers, err := c.Publish("news", binary).Result()
					check(err)
					equal(cluster || receivers == 1, true) // on a cluster PUBLISH counts the receivers of one node
				}
			} else if message, is := got.(*redis.Message); is {
				equal(message.Payload, binary)
				break
			}
		}
		check(subscriber.Unsubscribe("news"))
		subscriber.Close()
	}},
	{"reconnect", func() {
		check(c.Set("before", 1, 0).Err())
		fmt.Println("restart")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			panic("no restart")
		}
		for end := time.Now().Add(5 * time.Second); c.Get("before").Val() != "1"; {
			equal(time.Now().Before(end), true) // every connection of the pool says once that it is lost
		}
	}},
}

func main() {
	for _, feature := range features {
		func() {
			defer func() {
				if why := recover(); why != nil {
					fmt.Printf("%s\tfail\t%s\n", feature.name, strings.Join(strings.Fields(fmt.Sprint(why)), " "))
				} else {
					fmt.Printf("%s\tok\n", feature.name)
				}
			}()
			feature.run()
		}()
	}
}
