package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
)

const (
	talkTurns = 1000 // of the first request of a talk
	talkMore  = 50   // requests of an agent in it, each a turn longer
)

// A talk is a conversation at the length that it has in each of an agent's requests.
type talk struct {
	text  []byte // of all turns, from behind the opening brace
	ends  []int  // where in text each request is cut
	short []int  // how many bytes are left of each when it is masked
}

// newTalk returns a talk whose first request has about size bytes.
func newTalk(size int, lines []string) (*talk, error) {
	all := talkTurns + talkMore
	t := &talk{text: conversation(all, size/talkTurns*all, lines)[1:]}
	for turn := talkTurns; turn <= all; turn++ {
		end := bytes.LastIndex(t.text, fmt.Appendf(nil, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d"`, turn))
		if end < 0 {
			end = len(t.text) - len(talkEnd)
		}
		t.ends = append(t.ends, end)
	}
	mask := conversationMasker()
	for i := range t.ends {
		short, err := mask(t.request(0, i))
		if err != nil {
			return nil, err
		}
		t.short = append(t.short, len(short))
	}
	return t, nil
}

const talkEnd = "]}"

// opening begins a talk. Talks of different numbers have no beginning in common.
func opening(number int64) string { return fmt.Sprintf(`{"user":"%012d",`, number) }

// request returns one of the requests of a talk.
func (t *talk) request(number int64, i int) []byte {
	return slices.Concat([]byte(opening(number)), t.text[:t.ends[i]], []byte(talkEnd))
}

// Agents call a model, each with talks of its own.
type agents struct {
	url    string
	talk   *talk
	once   bool // each request is the first of a talk
	masked bool // the model gets them so
	each   []agent
}

type agent struct {
	number int64
	next   int // request of the talk
}

var talks atomic.Int64

func (a *agents) check(ctx context.Context) error { return a.call(ctx, 0, make([]byte, 1<<10)) }

func (a *agents) load(ctx context.Context, connections int, d time.Duration) load.Result {
	return load.Loop(ctx, connections, d, func(ctx context.Context, i int) error { return a.call(ctx, i, make([]byte, 1<<10)) })
}

// call has an agent make its next request.
func (a *agents) call(ctx context.Context, client int, buf []byte) error {
	who := &a.each[client]
	if who.number == 0 || a.once || who.next == len(a.talk.ends) {
		who.number, who.next = talks.Add(1), 0
	}
	i := who.next
	who.next++
	head, end := opening(who.number), a.talk.ends[i]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url,
		io.MultiReader(strings.NewReader(head), bytes.NewReader(a.talk.text[:end]), strings.NewReader(talkEnd)))
	if err != nil {
		return err
	}
	req.ContentLength = int64(len(head) + end + len(talkEnd))
	want := received(int(req.ContentLength))
	if a.masked {
		want = received(a.talk.short[i])
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := load.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	n, err := io.ReadFull(resp.Body, buf)
	if err != nil && err != io.ErrUnexpectedEOF {
		return err
	}
	if !bytes.Equal(buf[:n], want) {
		return fmt.Errorf("the model says %s, want %s", buf[:n], want)
	}
	return nil
}

// A talkCase is what agents talk about.
type talkCase struct {
	name  string
	size  int
	lines func() ([]string, error)
}

var talkCases = func() (all []talkCase) {
	logs := func() ([]string, error) { return logLines(), nil }
	source := func() ([]string, error) { return goSource("encoding/json/scanner.go") }
	for _, size := range []int{2, 20} {
		all = append(all,
			talkCase{fmt.Sprintf("log/%dMB", size), size * 1_000_000, logs},
			talkCase{fmt.Sprintf("source/%dMB", size), size * 1_000_000, source})
	}
	return all
}()

// reportTalks compares tool_result_mask with reverse_proxy alone.
func reportTalks(ctx context.Context, chosen *regexp.Regexp, caddy, upstream string, budget time.Duration) error {
	titled := false
	for _, c := range talkCases {
		var t *talk
		for _, clients := range []int{1, connections} {
			for _, kind := range []string{"next turn", "first seen"} {
				name := fmt.Sprintf("proxy%s%s/%s/%d", conversationPath, c.name, strings.ReplaceAll(kind, " ", "_"), clients)
				if !chosen.MatchString(name) {
					continue
				}
				if !titled {
					printHeading("requests/s", "plain", "masked")
					titled = true
				}
				if t == nil {
					lines, err := c.lines()
					if err != nil {
						return err
					}
					if t, err = newTalk(c.size, lines); err != nil {
						return err
					}
				}
				if err := compareTalks(ctx, name, t, kind == "first seen", clients, caddy, upstream, budget); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	if titled {
		fmt.Printf("Conversations have %d turns or up to %d more. In next_turn each request continues the last one of its client, for %d\n", talkTurns, talkMore, talkMore)
		fmt.Println("requests, as an agent does; in first_seen none does. The upstream says how much of a request has come.")
		fmt.Println("Client and upstream share the cores with caddy, so what masking spares them counts for it.")
	}
	return nil
}

func compareTalks(ctx context.Context, name string, t *talk, once bool, clients int, caddy, upstream string, budget time.Duration) error {
	gw, err := startGateway(ctx, caddy, caddyfile, upstream)
	if err != nil {
		return err
	}
	defer gw.stop()
	c := contest{name: name, connections: clients}
	for i := range c.sites {
		c.sites[i] = &agents{gw.urls[i] + conversationPath, t, once, i == masked, make([]agent, clients)}
	}
	return c.run(ctx, gw, budget/(2*rounds))
}
