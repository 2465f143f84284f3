package rerank

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Config says which reranker is asked, and how.
type Config struct {
	// URL is where requests go: see [ParseURL].
	URL string

	// Key is sent as a bearer token, unless it is empty.
	Key string

	// NeedsKey refuses to ask without a Key.
	NeedsKey bool

	// Wire is the form of requests, Model the model that they name if the form can.
	Wire  Wire
	Model string

	// Timeout bounds an exchange from the dialing to the last byte.
	Timeout time.Duration

	// MaxDocs is how many lines are sent at most.
	MaxDocs int
}

// Scored is what a reranker has answered.
type Scored struct {
	Scores []float64 // one per line, NaN where it was not scored
	Docs   int       // how many lines were scored
	Status int       // of the HTTP response
}

// The kinds of faults.
const (
	KindConfig = "config" // nothing was sent
	KindHTTP   = "http"   // no answer came, or none of status 200
	KindParse  = "parse"  // an answer of status 200 has no scores that can be used
)

// A Fault is why there are no scores.
type Fault struct {
	Kind   string
	Status int   // of an HTTP response that is not 200, or 0
	Err    error // has no key in it, nor more of the URL than its host
}

// maxAnswer bounds the answers that are read. A score takes 20 bytes, and an item that
// repeats its document is as long as the line.
const maxAnswer = 8 << 20

// A Client asks one reranker. It can be used by many at a time.
type Client struct {
	config    Config
	fault     error // of the configuration
	transport *http.Transport
	closed    atomic.Bool
}

// New returns a Client, which must be closed. It does not dial. What is wrong with the
// configuration is told by Err, and by every Score.
func New(config Config) *Client {
	return &Client{
		config: config,
		fault:  config.check(),
		transport: &http.Transport{
			Proxy:                  proxy,
			DialContext:            (&net.Dialer{Timeout: config.Timeout}).DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    config.Timeout,
			MaxConnsPerHost:        64,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

// Err returns what is wrong with the configuration.
func (c *Client) Err() error { return c.fault }

// Close closes connections when nobody uses them any more. It does not wait.
func (c *Client) Close() {
	c.closed.Store(true)
	c.transport.CloseIdleConnections()
}

// ParseURL returns the URL of an endpoint, which is one of http or https and has no
// user in it. Its errors do not repeat it.
func ParseURL(text string) (*url.URL, error) {
	endpoint, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("not a URL")
	case endpoint.Scheme != "http" && endpoint.Scheme != "https":
		return nil, errors.New("not a URL of http or https")
	case endpoint.User != nil:
		return nil, errors.New("it has a user or a password in it, where they could be seen")
	case endpoint.Hostname() == "":
		return nil, errors.New("it has no host")
	}
	if port := endpoint.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("it has a port that is none")
		}
	}
	return endpoint, nil
}

func (c *Config) check() error {
	if c.Key == "" && c.NeedsKey {
		return errors.New("there is no key")
	}
	for _, char := range []byte(c.Key) {
		if char < ' ' || char > '~' {
			return errors.New("the key has characters that a header cannot have")
		}
	}
	if _, err := ParseURL(c.URL); err != nil {
		return fmt.Errorf("the URL of the endpoint: %w", err)
	}
	return nil
}

// Score asks the reranker once. Without lines there is nothing to ask, and neither
// scores nor a fault.
func (c *Client) Score(ctx context.Context, goal string, lines []string) (*Scored, *Fault) {
	if c.fault != nil {
		return nil, &Fault{Kind: KindConfig, Err: c.fault}
	}
	if len(lines) == 0 {
		return nil, nil
	}
	chosen := Sample(len(lines), c.config.MaxDocs)
	documents := make([]string, len(chosen))
	for i, line := range chosen {
		documents[i] = lines[line]
	}
	answer, fault := c.ask(ctx, goal, documents)
	if fault != nil {
		return nil, fault
	}
	scores, err := read(answer, len(documents))
	if err != nil {
		return nil, &Fault{Kind: KindParse, Err: err}
	}
	return spread(scores, chosen, len(lines)), nil
}

// spread gives the scores of documents to the lines that they are.
func spread(scores []float64, chosen []int, n int) *Scored {
	scored := &Scored{Scores: make([]float64, n), Status: http.StatusOK}
	for i := range scored.Scores {
		scored.Scores[i] = math.NaN()
	}
	for i, line := range chosen {
		scored.Scores[line] = scores[i]
		if !math.IsNaN(scores[i]) {
			scored.Docs++
		}
	}
	return scored
}

// ask sends the documents and returns the body of the answer.
func (c *Client) ask(ctx context.Context, goal string, documents []string) ([]byte, *Fault) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	request, err := c.request(ctx, goal, documents)
	if err != nil {
		return nil, &Fault{Kind: KindConfig, Err: errors.New("no request can be made of it")}
	}
	defer func() {
		if c.closed.Load() {
			c.transport.CloseIdleConnections()
		}
	}()
	// Not by http.Client, which follows redirects and tells the URL in errors.
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, &Fault{KindHTTP, response.StatusCode, fmt.Errorf("%s answers with status %d", request.URL.Host, response.StatusCode)}
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	if len(answer) > maxAnswer {
		return nil, &Fault{Kind: KindParse, Err: fmt.Errorf("the answer is longer than %d bytes", maxAnswer)}
	}
	return answer, nil
}

func (c *Client) request(ctx context.Context, goal string, documents []string) (*http.Request, error) {
	body, err := c.config.Wire.request(c.config.Model, goal, documents)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.config.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	if c.config.Key != "" {
		request.Header.Set("Authorization", "Bearer "+c.config.Key)
	}
	// It is not sent. It tells the transport that a request may be sent again if the
	// connection turns out to have been closed while it was idle.
	request.Header["Idempotency-Key"] = nil
	return request, nil
}

// broken is the fault of an exchange that has not come to its end.
func (c *Client) broken(ctx context.Context, err error) *Fault {
	return &Fault{Kind: KindHTTP, Err: c.cause(ctx, err)}
}

// cause says why an exchange has not come to its end. Of the errors of net/http it
// takes those whose text comes from this machine; others quote what was received.
func (c *Client) cause(ctx context.Context, err error) error {
	var (
		operation   *net.OpError
		record      tls.RecordHeaderError
		certificate *tls.CertificateVerificationError
		alert       tls.AlertError
	)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("given up: %w", context.Canceled)
	case ctx.Err() != nil || isTimeout(err):
		return fmt.Errorf("not finished after %s: %w", c.config.Timeout, context.DeadlineExceeded)
	case errors.Is(err, errProxy):
		return errProxy
	case errors.As(err, &operation) && operation.Op == "proxyconnect":
		return fmt.Errorf("the proxy: %w", c.cause(ctx, operation.Err))
	case operation != nil:
		return operation
	case errors.As(err, &record):
		return errors.New(strings.TrimSpace(record.Msg))
	case errors.As(err, &certificate):
		return certificate
	case errors.As(err, &alert):
		return alert
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("the connection was closed before the end of the answer")
	}
	return errors.New("no HTTP response that can be understood")
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

var errProxy = errors.New("the environment names a proxy that is none")

// proxy returns the proxy that the environment names, which never is one for this
// machine. The error does not repeat the proxy, which may have a password.
func proxy(r *http.Request) (*url.URL, error) {
	proxy, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errProxy
	}
	return proxy, nil
}
