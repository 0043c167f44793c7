// The hand of a worker of histories, with go-redis 5: gohand PORT. ../../history/worker.py says what a line means. Its connection has no name.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"gopkg.in/redis.v5"
)

// What the worker reads for a reply.
func text(reply interface{}) string {
	switch r := reply.(type) {
	case int64:
		return fmt.Sprintf(":%d", r)
	case []interface{}:
		parts := []string{}
		for _, part := range r {
			parts = append(parts, fmt.Sprint(part))
		}
		return "*" + strings.Join(parts, "\t")
	}
	return fmt.Sprintf("+%v", reply)
}

// An error of the server begins with a word in capitals.
func failure(err error) string {
	word := strings.SplitN(err.Error(), " ", 2)[0]
	if err == redis.Nil {
		return "_"
	} else if word == strings.ToUpper(word) && word != "EOF" {
		return "-" + err.Error()
	}
	return "!" + err.Error()
}

func main() {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1], PoolSize: 1, ReadTimeout: 8 * time.Second})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := []interface{}{}
		for _, word := range strings.Split(lines.Text(), "\t") {
			words = append(words, word)
		}
		cmd := redis.NewCmd(words...)
		if err := c.Process(cmd); err != nil {
			fmt.Println(failure(err))
		} else {
			fmt.Println(text(cmd.Val()))
		}
	}
}
