package acl

import (
	"net/url"
	"path"
	"strings"
	"testing"
)

// FuzzResource compares with a reader of URIs that is slow and simple, and knows
// nothing of what else a server may take for the same.
func FuzzResource(f *testing.F) { // A55
	for _, uri := range []string{
		"file:///secret/x", "file:///pub/../secret", "file:///pub/%2e%2e/secret", "file:///%2573ecret/x", `file:\\\secret\x`,
		"file://host/secret?x#y", "file:///a//../secret/..;/b", "file:secret", "http://h.example:80/a/b", "HTTP://u@h.Example/a",
		"note:abc/def", "note:x/../abc", "file:///pub%2f..%2fsecret", "file:///..%5csecret", "file:///\u017fecret%00", "{x}",
		"file:///C|/x", "http://x\\@h.example/a", "file:///secret%23/../pub",
	} {
		f.Add(uri)
	}
	prefixes := []string{"file:///secret", "http://h.example/a", "note:abc"}
	denies, allows := make(map[string]*Policy), make(map[string]*Policy)
	for _, prefix := range prefixes {
		denies[prefix] = policy(f, "deny resource:"+prefix+", allow")
		allows[prefix] = policy(f, "allow resource:"+prefix+", deny")
	}
	f.Fuzz(func(t *testing.T, uri string) {
		for _, prefix := range prefixes {
			below, ok := isBelow(uri, prefix)
			denied, allowed := !denies[prefix].Resource("s", uri), allows[prefix].Resource("s", uri)
			if allowed && !denied {
				t.Errorf("%q is below %s to allow it and not to deny it", uri, prefix)
			}
			if ok && below && !denied {
				t.Errorf("%q is below %s and not denied", uri, prefix)
			}
			if ok && !below && allowed && strings.HasPrefix(prefix, "file:") {
				t.Errorf("%q is not below %s and allowed", uri, prefix)
			}
			if denies[prefix].Template("s", uri) && !strings.Contains(uri, "{") && denied {
				t.Errorf("%q is shown and not read", uri)
			}
		}
	})
}

// isBelow reports whether a URI comes to one below a prefix.
func isBelow(uri, prefix string) (below, ok bool) {
	u, err := url.Parse(uri)
	if err != nil {
		return false, false
	}
	p, _ := url.Parse(prefix)
	if u.Scheme != p.Scheme {
		return false, true
	}
	host := strings.TrimSuffix(strings.ToLower(u.Host), ":80")
	if host != p.Host && u.Scheme != "file" {
		return false, true
	}
	at, root := cleanPath(u), cleanPath(p)
	return at == root || strings.HasPrefix(at, root+"/"), true
}

func cleanPath(u *url.URL) string {
	p := u.Path + u.Opaque
	for {
		decoded, err := url.PathUnescape(p)
		if err != nil || decoded == p {
			break
		}
		p = decoded
	}
	return strings.ToLower(path.Clean("/" + strings.ReplaceAll(p, `\`, "/")))
}
