// Package rerank asks a reranker, a model behind HTTP, how relevant each line of a text is to a
// goal.
//
// [Sample] selects the lines to send, [Wire] is the format of requests, and [Client] sends them
// once. Responses come in many shapes (answer.go).
//
// The key goes only to the endpoint: redirects are not followed, and errors quote neither a
// response nor more of the endpoint's URL than its host.
package rerank

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
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

// Config configures a Client.
type Config struct {
	// URL is the endpoint: see [ParseURL].
	URL string

	// Key is the API key, sent as a bearer token. It may be empty.
	Key string

	// NeedsKey makes an empty Key an error.
	NeedsKey bool

	// Wire is the format of requests. Model is the model that they name if the format has one.
	Wire  Wire
	Model string

	// Timeout bounds a request, from dialing to the last byte.
	Timeout time.Duration

	// MaxDocs is how many lines are sent at most.
	MaxDocs int
}

// Scored is the result of a reranker.
type Scored struct {
	Scores []float64 // one per line, NaN for lines not scored
	Docs   int       // number of lines scored
	Status int       // HTTP status
}

// Kinds of faults.
const (
	KindConfig = "config" // nothing was sent
	KindHTTP   = "http"   // no response, or not status 200
	KindParse  = "parse"  // status 200 without usable scores
)

// A Fault says why there are no scores.
type Fault struct {
	Kind   string
	Status int   // HTTP status other than 200, or 0
	Err    error // contains no key, and only the host of the URL
}

// maxAnswer bounds a response in bytes. A score takes 20 bytes, and an item may repeat its line.
const maxAnswer = 8 << 20

// A Client sends requests to one reranker. It is safe for concurrent use.
type Client struct {
	config    Config
	fault     error // error of the configuration
	transport *http.Transport
	closed    atomic.Bool
}

// New returns a Client, which must be closed. It does not dial. Err and every Score report errors
// of the configuration.
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

// Err returns the error of the configuration.
func (c *Client) Err() error { return c.fault }

// Close closes connections when they become idle. It does not wait.
func (c *Client) Close() {
	c.closed.Store(true)
	c.transport.CloseIdleConnections()
}

// ParseURL parses the URL of an endpoint: http or https, without a user. Errors do not repeat it.
func ParseURL(text string) (*url.URL, error) {
	endpoint, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("not a URL")
	case endpoint.Scheme != "http" && endpoint.Scheme != "https":
		return nil, errors.New("not an http or https URL")
	case endpoint.User != nil:
		return nil, errors.New("must not contain a user or password")
	case endpoint.Hostname() == "":
		return nil, errors.New("missing host")
	}
	if port := endpoint.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("invalid port")
		}
	}
	return endpoint, nil
}

func (c *Config) check() error {
	if c.Key == "" && c.NeedsKey {
		return errors.New("missing API key")
	}
	for _, char := range []byte(c.Key) {
		if char < ' ' || char > '~' {
			return errors.New("the API key has characters that are invalid in a header")
		}
	}
	if _, err := ParseURL(c.URL); err != nil {
		return fmt.Errorf("endpoint URL: %w", err)
	}
	return nil
}

// Score sends one request to the reranker. Without lines it returns neither scores nor a fault.
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
	answer, fault := c.post(ctx, goal, documents)
	if fault != nil {
		return nil, fault
	}
	scores, err := readScores(answer, len(documents))
	if err != nil {
		return nil, &Fault{Kind: KindParse, Err: err}
	}
	return scoresOfLines(scores, chosen, len(lines)), nil
}

// scoresOfLines assigns the scores of documents to their lines.
func scoresOfLines(scores []float64, chosen []int, n int) *Scored {
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

// post sends the documents and returns the body of the response.
func (c *Client) post(ctx context.Context, goal string, documents []string) ([]byte, *Fault) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	request, err := c.request(ctx, goal, documents)
	if err != nil {
		return nil, &Fault{Kind: KindConfig, Err: errors.New("cannot create a request")}
	}
	defer func() {
		if c.closed.Load() {
			c.transport.CloseIdleConnections()
		}
	}()
	// http.Client would follow redirects, and its errors contain the URL.
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, c.httpFault(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, &Fault{KindHTTP, response.StatusCode,
			fmt.Errorf("%s responded with status %d", request.URL.Host, response.StatusCode)}
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, c.httpFault(ctx, err)
	}
	if len(answer) > maxAnswer {
		return nil, &Fault{Kind: KindParse, Err: fmt.Errorf("the response is longer than %d bytes", maxAnswer)}
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
	// Not sent. It tells the transport that the request may be retried if an idle connection turns out
	// to be closed.
	request.Header["Idempotency-Key"] = nil
	return request, nil
}

// httpFault returns the fault of a failed request.
func (c *Client) httpFault(ctx context.Context, err error) *Fault {
	return &Fault{Kind: KindHTTP, Err: c.cause(ctx, err)}
}

// cause returns why a request failed. It keeps only errors whose text comes from this machine,
// because other errors may quote the response.
func (c *Client) cause(ctx context.Context, err error) error {
	var (
		operation   *net.OpError
		record      tls.RecordHeaderError
		certificate *tls.CertificateVerificationError
		alert       tls.AlertError
	)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("request canceled: %w", context.Canceled)
	case ctx.Err() != nil || isTimeout(err):
		return fmt.Errorf("no complete response after %s: %w", c.config.Timeout, context.DeadlineExceeded)
	case errors.Is(err, errProxy):
		return errProxy
	case errors.As(err, &operation) && operation.Op == "proxyconnect":
		return fmt.Errorf("connect to the proxy: %w", c.cause(ctx, operation.Err))
	case operation != nil:
		return operation
	case errors.As(err, &record):
		return errors.New(strings.TrimSpace(record.Msg))
	case errors.As(err, &certificate):
		return certificate
	case errors.As(err, &alert):
		return alert
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("the connection was closed before the end of the response")
	}
	return errors.New("invalid HTTP response")
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

var errProxy = errors.New("invalid proxy URL in HTTP_PROXY or HTTPS_PROXY")

// proxy returns the proxy that the environment names, or nil for local addresses. The error does
// not quote the proxy, because its URL may contain a password.
func proxy(r *http.Request) (*url.URL, error) {
	proxy, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errProxy
	}
	return proxy, nil
}

// A Wire is a format of requests.
type Wire int

const (
	// Queries is {"queries":["<goal>"],"documents":[…]}, DeepInfra's format.
	Queries Wire = iota

	// Query is {"query":"<goal>","documents":[…],"model":"<model>"}, the format of Cohere, Jina and
	// compatible servers.
	Query
)

// request returns the body of a request, without HTML escapes.
func (w Wire) request(model, goal string, documents []string) ([]byte, error) {
	var body any = struct {
		Queries   []string `json:"queries"`
		Documents []string `json:"documents"`
	}{[]string{goal}, documents}
	if w == Query {
		body = struct {
			Query     string   `json:"query"`
			Documents []string `json:"documents"`
			Model     string   `json:"model,omitempty"`
		}{goal, documents, model}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(body)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Sample returns the indexes of the lines to send if there are n lines and at most limit can be
// sent. If that is not all lines, they are spread evenly, and include the first line and, unless
// limit is 1, the last.
func Sample(n, limit int) []int {
	limit = max(0, min(n, limit))
	chosen := make([]int, limit)
	for i := 1; i < limit; i++ {
		chosen[i] = i * (n - 1) / (limit - 1)
	}
	return chosen
}
