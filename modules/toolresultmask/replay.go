package toolresultmask

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/transcript"
)

// A replay sends the conversations of transcripts, masked and unmasked, to a simulated provider
// that bills them.
type replay struct {
	handler          *Handler
	prices           bill.Prices
	conversation     chat.Conversation
	unmasked, masked bill.Cache
}

func newReplay(h *Handler, ttl time.Duration) *replay {
	cache := bill.Cache{Minimum: chat.MinCached, TTL: ttl}
	return &replay{
		handler:  h,
		prices:   bill.Prices{Read: h.CachePrices.Read, Write: h.CachePrices.Write},
		unmasked: cache,
		masked:   cache,
	}
}

// A billedRequest is the cost of a request, in uncached input tokens.
type billedRequest struct {
	Unmasked     int     `json:"unmasked"` // tokens
	Sent         int     `json:"sent"`     // tokens
	Read         int     `json:"read"`     // tokens, part of Sent
	Written      int     `json:"written"`  // tokens, part of Sent
	CostUnmasked float64 `json:"cost_unmasked"`
	Cost         float64 `json:"cost"`
	Results      int     `json:"results_masked"`
	Moved        bool    `json:"moved"` // masks results that had been sent before
}

// A billedTranscript is the cost of all requests of a conversation.
type billedTranscript struct {
	Name         string          `json:"name"`
	Requests     int             `json:"requests"`
	Unmasked     int             `json:"unmasked"`
	Sent         int             `json:"sent"`
	CostUnmasked float64         `json:"cost_unmasked"`
	Cost         float64         `json:"cost"`
	TokensRatio  float64         `json:"tokens_ratio"`
	BillRatio    float64         `json:"bill_ratio"`
	Moves        int             `json:"moves"`
	Each         []billedRequest `json:"each,omitempty"` // only if there is one transcript
}

func (b *billedTranscript) add(r billedRequest) {
	b.Requests++
	b.Unmasked += r.Unmasked
	b.Sent += r.Sent
	b.CostUnmasked += r.CostUnmasked
	b.Cost += r.Cost
	if r.Moved {
		b.Moves++
	}
	b.Each = append(b.Each, r)
}

// An unreadFile is a file that could not be replayed.
type unreadFile struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// maxTranscript is the largest file in bytes. Files are read into memory.
const maxTranscript = 256 << 20

// transcriptsIn yields the files at the paths. In folders it yields the files that have the
// extension of a transcript.
func transcriptsIn(paths []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, path := range paths {
			stopped := false
			_ = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
				matches := name == path || slices.Contains([]string{".json", ".jsonl", ".traj"}, filepath.Ext(name))
				if err == nil && (entry.IsDir() || !matches) {
					return nil
				}
				if err == nil && name != path {
					err = checkRegular(name)
				}
				stopped = !yield(name, err)
				if stopped {
					return fs.SkipAll
				}
				return nil
			})
			if stopped {
				return
			}
		}
	}
}

// checkRegular rejects pipes and devices in folders, which would block.
func checkRegular(name string) error {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	return err
}

// readTranscript returns the conversations of a file.
func readTranscript(r io.Reader) ([]*transcript.Conversation, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxTranscript+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxTranscript {
		return nil, fmt.Errorf("larger than %s", humanize.IBytes(maxTranscript))
	}
	return transcript.Read(text)
}

// billConversation sends the requests of a conversation to the simulated provider, and returns
// their cost.
func (r *replay) billConversation(name string, conversation *transcript.Conversation) (billedTranscript, error) {
	billed := billedTranscript{Name: name}
	r.unmasked.Reset()
	r.masked.Reset()
	var progress chat.Progress
	for request := range conversation.Requests() {
		var plan chat.Plan
		err := r.handler.parse(&r.conversation, request.Body)
		switch {
		case err == nil:
			plan, progress = r.conversation.MaskAfter(&r.handler.policy, &progress, r.masked.Expired(request.At))
		case !errors.Is(err, errNotMasked):
			return billed, err
		}
		unmasked, _ := r.unmasked.Send(request.Body, nil, request.At)
		sent, _ := r.masked.Send(request.Body, plan.Edits, request.At)
		billed.add(billedRequest{
			Unmasked: unmasked.Prompt(), Sent: sent.Prompt(), Read: sent.Read, Written: sent.Written,
			CostUnmasked: unmasked.Cost(r.prices), Cost: sent.Cost(r.prices),
			Results: plan.Results, Moved: plan.Broken,
		})
	}
	if billed.Unmasked == 0 {
		return billed, transcript.ErrUnknownFormat
	}
	billed.TokensRatio = float64(billed.Sent) / float64(billed.Unmasked)
	billed.BillRatio = billed.Cost / billed.CostUnmasked
	return billed, nil
}

// A replayReport prints the results of a replay.
type replayReport interface {
	billed(billedTranscript) // called for each conversation
	unread(unreadFile)       // called for each file that cannot be replayed
	end(replaySummary) error // called once
}

// run replays the transcripts at the paths, or the one on standard input.
func (r *replay) run(paths []string, stdin io.Reader, report replayReport) error {
	var sum replaySummary
	billFile := func(name string, conversations []*transcript.Conversation, err error, alone bool) {
		for i, conversation := range conversations {
			numbered := name
			if len(conversations) > 1 {
				numbered = fmt.Sprintf("%s#%d", name, i+1)
			}
			billed, failure := r.billConversation(numbered, conversation)
			if failure != nil {
				err = failure
				continue
			}
			if !alone || len(conversations) > 1 {
				billed.Each = nil
			}
			sum.add(billed)
			report.billed(billed)
		}
		if err != nil {
			if pathErr := new(fs.PathError); errors.As(err, &pathErr) {
				err = pathErr.Err // without the name, which is printed quoted
			}
			sum.Unread++
			report.unread(unreadFile{name, err.Error()})
		}
	}
	if len(paths) == 0 || slices.Equal(paths, []string{"-"}) {
		conversations, err := readTranscript(stdin)
		billFile("standard input", conversations, err, true)
		paths = nil
	}
	for name, err := range transcriptsIn(paths) {
		var conversations []*transcript.Conversation
		if err == nil {
			conversations, err = readFile(name)
		}
		billFile(name, conversations, err, len(paths) == 1 && name == paths[0])
	}
	if err := report.end(sum); err != nil {
		return err
	}
	if sum.Transcripts == 0 {
		return errors.New("no transcript to bill")
	}
	return nil
}

func readFile(name string) ([]*transcript.Conversation, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readTranscript(file)
}

// A replaySummary is the cost of all transcripts together.
type replaySummary struct {
	Transcripts  int     `json:"transcripts"`
	Unread       int     `json:"unread"`
	Requests     int     `json:"requests"`
	Moves        int     `json:"moves"`
	TokensRatio  float64 `json:"tokens_ratio"`
	BillRatio    float64 `json:"bill_ratio"` // of the summed costs
	Median       float64 `json:"median"`
	Worst        float64 `json:"worst"`
	Raised       int     `json:"raised"`
	RaisedBy2    int     `json:"raised_by_2_percent"`
	RaisedBy5    int     `json:"raised_by_5_percent"`
	unmasked     int
	sent         int
	costUnmasked float64
	cost         float64
	ratios       []float64
}

func (s *replaySummary) add(b billedTranscript) {
	s.Transcripts++
	s.Requests += b.Requests
	s.Moves += b.Moves
	s.unmasked += b.Unmasked
	s.sent += b.Sent
	s.costUnmasked += b.CostUnmasked
	s.cost += b.Cost
	i, _ := slices.BinarySearch(s.ratios, b.BillRatio)
	s.ratios = slices.Insert(s.ratios, i, b.BillRatio)
	s.TokensRatio = float64(s.sent) / float64(s.unmasked)
	s.BillRatio = s.cost / s.costUnmasked
	s.Median = (s.ratios[(len(s.ratios)-1)/2] + s.ratios[len(s.ratios)/2]) / 2
	s.Worst = s.ratios[len(s.ratios)-1]
	for limit, count := range map[float64]*int{1: &s.Raised, 1.02: &s.RaisedBy2, 1.05: &s.RaisedBy5} {
		if b.BillRatio > limit {
			*count++
		}
	}
}

// A replayTable prints a table: the requests of a single transcript, or else one line per
// transcript.
type replayTable struct {
	out, errors io.Writer
	lines       int
	alone       bool
}

func (t *replayTable) billed(b billedTranscript) {
	if b.Each != nil {
		t.alone = true
		fmt.Fprintf(t.out, "%7s %10s %10s %10s %10s %13s %10s %8s\n",
			"request", "unmasked", "sent", "read", "written", "cost unmasked", "cost", "masked")
		for i, r := range b.Each {
			moved := ""
			if r.Moved {
				moved = "  moved"
			}
			fmt.Fprintf(t.out, "%7d %10s %10s %10s %10s %13s %10s %8d%s\n", i+1, comma(r.Unmasked), comma(r.Sent),
				comma(r.Read), comma(r.Written), comma(int(r.CostUnmasked)), comma(int(r.Cost)), r.Results, moved)
		}
		fmt.Fprintf(t.out, "%7s %10s %10s %10s %10s %13s %10s\n", "total", comma(b.Unmasked), comma(b.Sent), "", "",
			comma(int(b.CostUnmasked)), comma(int(b.Cost)))
		return
	}
	t.lines++
	if t.lines == 1 {
		fmt.Fprintf(t.out, "%8s %7s %7s %7s  %s\n", "requests", "tokens", "bill", "moves", "transcript")
	}
	fmt.Fprintf(t.out, "%8d %7.2f %7.2f %7d  %s\n", b.Requests, b.TokensRatio, b.BillRatio, b.Moves, printable(b.Name))
}

func (t *replayTable) unread(f unreadFile) {
	fmt.Fprintf(t.errors, "%s: %s\n", printable(f.Name), f.Reason)
}

func (t *replayTable) end(s replaySummary) error {
	if s.Unread > 0 && !t.alone {
		fmt.Fprintf(t.errors, "%d files could not be read\n", s.Unread)
	}
	switch {
	case s.Transcripts == 0:
		return nil
	case t.alone:
		_, err := fmt.Fprintf(t.out, "%d requests, %d moves: %.2f of the tokens, %.2f of the bill\n",
			s.Requests, s.Moves, s.TokensRatio, s.BillRatio)
		return err
	}
	_, err := fmt.Fprintf(t.out, "%d transcripts, %d requests, %d moves: %.2f of the tokens, "+
		"%.2f of the bill (median %.2f, worst %.2f); %d bills raised, %d by more than 2 %%, %d by more than 5 %%\n",
		s.Transcripts, s.Requests, s.Moves, s.TokensRatio, s.BillRatio, s.Median, s.Worst,
		s.Raised, s.RaisedBy2, s.RaisedBy5)
	return err
}

// A replayJSON prints one JSON object at the end.
type replayJSON struct {
	out         io.Writer
	Transcripts []billedTranscript `json:"transcripts"`
	Unread      []unreadFile       `json:"unread"`
	Total       replaySummary      `json:"total"`
}

func (j *replayJSON) billed(b billedTranscript) { j.Transcripts = append(j.Transcripts, b) }

func (j *replayJSON) unread(f unreadFile) { j.Unread = append(j.Unread, f) }

func (j *replayJSON) end(s replaySummary) error {
	j.Total = s
	e := json.NewEncoder(j.out)
	e.SetIndent("", "  ")
	return e.Encode(j)
}
