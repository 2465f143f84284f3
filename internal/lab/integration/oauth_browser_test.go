package integration

import (
	"context"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"golang.org/x/net/html"
)

// A browser opens an address and presses the button of every form that comes, until a
// page has none. It fills in the name of the account where it is asked for.
type browser interface {
	logIn(t *testing.T, address, account string) webPage
}

// A webPage is where that ends.
type webPage struct {
	status int
	url    *url.URL
	text   string
}

// A formBrowser knows forms, cookies and redirects.
type formBrowser struct {
	client *http.Client
	stopAt string // the beginning of addresses that are not opened
}

func newFormBrowser(t *testing.T) *formBrowser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &formBrowser{}
	b.client = &http.Client{Jar: jar, Timeout: patience, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		if b.stopAt != "" && strings.HasPrefix(req.URL.String(), b.stopAt) {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	return b
}

// open gets an address.
func (b *formBrowser) open(t *testing.T, address string) (webPage, *html.Node) {
	t.Helper()
	return b.do(t, request(t, t.Context(), "GET", address, ""))
}

// do makes a request, follows redirects, and returns the page at their end with its form.
func (b *formBrowser) do(t *testing.T, req *http.Request) (webPage, *html.Node) {
	t.Helper()
	res, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	root, err := html.Parse(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	p := webPage{res.StatusCode, res.Request.URL, ""}
	if location, err := res.Location(); err == nil {
		p.url = location
	}
	var text strings.Builder
	var form *html.Node
	for n := range root.Descendants() {
		if n.Type == html.TextNode {
			text.WriteString(n.Data)
		} else if n.Data == "form" {
			form = n
		}
	}
	p.text = strings.Join(strings.Fields(text.String()), " ")
	return p, form
}

// submit presses the button of a form.
func (b *formBrowser) submit(t *testing.T, at webPage, form *html.Node, account string) (webPage, *html.Node) {
	t.Helper()
	fields := url.Values{}
	for n := range form.Descendants() {
		switch name := attribute(n, "name"); {
		case n.Data != "input" || name == "":
		case name == "login":
			fields.Set(name, account)
		default:
			fields.Set(name, attribute(n, "value"))
		}
	}
	to, err := at.url.Parse(attribute(form, "action"))
	if err != nil {
		t.Fatal(err)
	}
	return b.do(t, request(t, t.Context(), "POST", to.String(), fields.Encode(),
		"Content-Type: application/x-www-form-urlencoded", "Origin: "+at.url.Scheme+"://"+at.url.Host))
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func (b *formBrowser) logIn(t *testing.T, address, account string) webPage {
	t.Helper()
	at, form := b.open(t, address)
	for range mostForms {
		if form == nil {
			return at
		}
		at, form = b.submit(t, at, form, account)
	}
	t.Fatalf("no end of forms at %s: %s", at.url, at.text)
	return webPage{}
}

// mostForms is how many forms a login may have.
const mostForms = 5

func (c *chromium) logIn(t *testing.T, address, account string) webPage {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	type state struct {
		Location, Text string
		Forms, Names   int
	}
	const look = `({location: location.href, text: document.body.innerText, forms: document.forms.length,
		names: document.querySelectorAll("input[name=login]").length})`
	var now state
	step := chromedp.Navigate(address)
	for range mostForms + 1 {
		response, err := chromedp.RunResponse(ctx, step)
		if err == nil {
			now, err = chromedp.Run(ctx, chromedp.Evaluate[state](look))
		}
		if err == nil && now.Names > 0 {
			_, err = chromedp.Run(ctx, chromedp.SendKeys("input[name=login]", account))
		}
		if err != nil {
			t.Fatalf("Chromium after %s: %v", now.Location, err)
		}
		if now.Forms == 0 {
			at, err := url.Parse(now.Location)
			if err != nil {
				t.Fatal(err)
			}
			return webPage{int(response.Status), at, strings.Join(strings.Fields(now.Text), " ")}
		}
		step = chromedp.Click("form button")
	}
	t.Fatalf("no end of forms at %s: %s", now.Location, now.Text)
	return webPage{}
}
