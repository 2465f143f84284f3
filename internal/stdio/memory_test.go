package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

func TestBlocksHaveRoom(t *testing.T) {
	sizes := []int{
		0,
		1,
		smallest,
		smallest + 1,
		2 * smallest,
		3*smallest - 1,
		3 * smallest,
		3*smallest + 1,
		5 << 20,
		largest - 1,
		largest,
		largest + 1,
		3 * largest,
	}
	for _, size := range sizes {
		b := newBlock(size)
		if len(b.bytes) < size || len(b.bytes) > max(size+size/4, smallest) {
			t.Errorf("a block for %d bytes has %d", size, len(b.bytes))
		}
		b.free()
		if again := newBlock(size); len(again.bytes) != len(b.bytes) {
			t.Errorf("the next block for %d bytes has %d", size, len(again.bytes))
		}
	}
}

// Responses reuse memory, but not that of a response that is still being read.
func TestResponseMemoryIsReused(t *testing.T) {
	p := newPuppets(t)
	var clients sync.WaitGroup
	for i, c := range "abcdefgh" {
		clients.Go(func() {
			client := p.client().initialize("{}")
			for round := range 20 {
				unit := []int{100, 9_000}[round%2]
				text := strings.Repeat(string(c), (i+1)*(round+1)*unit)
				id := fmt.Sprintf(`"%c%d"`, c, round)
				r := client.post(say(id, `{"jsonrpc":"2.0","id":$ID,"result":"`+text+`"}`+"\n"))
				if want := `{"jsonrpc":"2.0","id":` + id + `,"result":"` + text + `"}`; r.whole() != want {
					t.Errorf("%s: the response differs", id)
				}
			}
		})
	}
	clients.Wait()
}

func TestClosedBodyIsEmpty(t *testing.T) {
	p := newPuppets(t)
	r := p.client().post(request(`1`, "fill", `{"code":100000}`))
	beginning := make([]byte, 10)
	if _, err := io.ReadFull(r.Body, beginning); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
		if n, err := r.Body.Read(beginning); n > 0 || !errors.Is(err, os.ErrClosed) {
			t.Errorf("read %d bytes, %v", n, err)
		}
	}
}
