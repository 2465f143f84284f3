//go:build unix

package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
)

// A browser opens pages, submits forms and follows redirects. It keeps cookies.
type browser struct{ client http.Client }

func newBrowser() *browser {
	jar, _ := cookiejar.New(nil) // never fails
	return &browser{http.Client{
		Jar: jar,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 10 {
				return errors.New("too many redirects")
			}
			req.Header.Del("Origin") // browsers send it only with the POST
			return nil
		},
	}}
}

// A page is a loaded page.
type page struct {
	url  *url.URL
	text string // HTML
}

// A form is the form of a page.
type form struct {
	method string
	action *url.URL
	values url.Values
}

// login opens a login page of the gateway and submits its form. The authorization server, to
// which the form leads, must redirect the browser back to the gateway.
func (b *browser) login(ctx context.Context, address string) error {
	login, err := b.load(ctx, http.MethodGet, address, "", nil)
	if err != nil {
		return err
	}
	form, err := login.form()
	if err != nil {
		return err
	}
	if form.method != http.MethodPost {
		return fmt.Errorf("login page %s: got a form with method %s, want POST", login.url, form.method)
	}
	end, err := b.load(ctx, form.method, form.action.String(), login.url.Scheme+"://"+login.url.Host, form.values)
	if err != nil {
		return err
	}
	if end.url.Host != login.url.Host {
		return fmt.Errorf("the login ended at %s, want a page of the gateway", end.url)
	}
	return nil
}

// load returns a page, which must have status 200.
func (b *browser) load(ctx context.Context, method, address, origin string, values url.Values) (*page, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(values.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/html,*/*;q=0.8")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", origin)
	}
	res, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: got %d %q", res.Request.Method, res.Request.URL.Path, res.StatusCode,
			visibleText(string(text)))
	}
	return &page{res.Request.URL, string(text)}, nil
}

// markup matches the parts of a page that a browser does not show as text.
var markup = regexp.MustCompile(`(?s)<(style|title)\b.*?</(style|title)>|<[^>]*>`)

// visibleText returns the text of a page in one line.
func visibleText(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(markup.ReplaceAllString(page, " "))), " ")
}

// form returns the only form of a page.
func (p *page) form() (*form, error) {
	var found []*form
	tokens := xml.NewDecoder(strings.NewReader(p.text))
	tokens.Strict, tokens.AutoClose, tokens.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		token, err := tokens.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("page %s: %w", p.url, err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attributes := make(map[string]string)
		for _, a := range start.Attr {
			attributes[strings.ToLower(a.Name.Local)] = a.Value
		}
		switch name := strings.ToLower(start.Name.Local); {
		case name == "form":
			action, err := p.url.Parse(attributes["action"])
			if err != nil {
				return nil, err
			}
			found = append(found, &form{strings.ToUpper(attributes["method"]), action, url.Values{}})
		case name == "input" && attributes["name"] != "" && len(found) > 0:
			found[len(found)-1].values.Set(attributes["name"], attributes["value"])
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("page %s: got %d forms, want 1\n%s", p.url, len(found), p.text)
	}
	return found[0], nil
}
