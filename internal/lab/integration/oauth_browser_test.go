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

// A browser opens an address and submits every form, until a page has no form. It fills in
// the account name if a form asks for one.
type browser interface {
	logIn(t *testing.T, address, account string) webPage
}

// A webPage is the last page of a login.
type webPage struct {
	status int
	url    *url.URL
	text   string
}

// A formBrowser supports forms, cookies and redirects.
type formBrowser struct {
	client *http.Client
	stopAt string // prefix of redirect targets that are not followed
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

// open requests an address with GET.
func (b *formBrowser) open(t *testing.T, address string) (webPage, *html.Node) {
	t.Helper()
	return b.do(t, request(t, t.Context(), "GET", address, ""))
}

// do sends a request, follows redirects, and returns the final page with its form.
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

// submit submits a form of a page.
func (b *formBrowser) submit(t *testing.T, page webPage, form *html.Node, account string) (webPage, *html.Node) {
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
	action, err := page.url.Parse(attribute(form, "action"))
	if err != nil {
		t.Fatal(err)
	}
	return b.do(t, request(t, t.Context(), "POST", action.String(), fields.Encode(),
		"Content-Type: application/x-www-form-urlencoded", "Origin: "+page.url.Scheme+"://"+page.url.Host))
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
	page, form := b.open(t, address)
	for range maxForms {
		if form == nil {
			return page
		}
		page, form = b.submit(t, page, form, account)
	}
	t.Fatalf("too many forms, the last at %s: %s", page.url, page.text)
	return webPage{}
}

// maxForms limits the forms of one login.
const maxForms = 5

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
	for range maxForms + 1 {
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
			last, err := url.Parse(now.Location)
			if err != nil {
				t.Fatal(err)
			}
			return webPage{int(response.Status), last, strings.Join(strings.Fields(now.Text), " ")}
		}
		step = chromedp.Click("form button")
	}
	t.Fatalf("too many forms, the last at %s: %s", now.Location, now.Text)
	return webPage{}
}
