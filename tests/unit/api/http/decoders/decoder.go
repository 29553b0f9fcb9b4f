// Event stream read as openai-go before 3.43.0 does: every blank line ends an event, also one that has no data.
package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"strings"
)

func main() {
	response, err := http.Post(os.Args[1], "application/json", strings.NewReader(os.Args[2]))
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	data := ""
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			fmt.Println(data)
			data = ""
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		if field == "data" {
			data += strings.TrimPrefix(value, " ")
		}
	}
	if lines.Err() != nil {
		panic(lines.Err())
	}
}
