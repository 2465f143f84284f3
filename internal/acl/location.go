package acl

import (
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// A location is what a URI comes to without its query and fragment: a scheme, a host
// if there is one, and the segments of a path.
type location struct {
	exact string // scheme://host/segment/segment, all escapes decoded

	// What it may come to for a server that is careless with case, hosts of files and
	// the ends of segments. The first is of the whole.
	readings []string
}

// within reports whether a location is that of a prefix or below it. Everything is
// within the empty prefix.
func within(s, prefix string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && (rest == "" || prefix == "" || rest[0] == '/')
}

var (
	errCharacters = errors.New("it has control characters or is not UTF-8")
	errEscapes    = errors.New("a % in it is not followed by two hexadecimal digits")
	errDepth      = errors.New("its escapes are escaped too often")
	errScheme     = errors.New("it does not begin with a scheme and a colon")
	errHost       = errors.New("its host can be read in more than one way")
	errSegments   = errors.New("its path can be read in more than one way")
	errShortName  = errors.New("its path may have a short name of Windows in it, such as PROGRA~1")
)

// maxDecodings is how often what was decoded may be decoded again.
const maxDecodings = 5

// defaultPorts are those that a URI need not have in it.
var defaultPorts = map[string]string{
	"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "sftp": "22", "ssh": "22",
	"postgres": "5432", "postgresql": "5432", "mysql": "3306", "redis": "6379", "mongodb": "27017",
}

// ofWeb reports whether browsers find a host in all URIs of a scheme, with however
// many slashes before it.
func ofWeb(scheme string) bool {
	switch scheme {
	case "http", "https", "ws", "wss", "ftp":
		return true
	}
	return false
}

// locate returns the location of a URI. Its error says why there is none.
func locate(uri string) (location, error) {
	if err := check(uri); err != nil {
		return location{}, err
	}
	scheme, rest, ok := cutScheme(uri)
	if !ok {
		return location{}, errScheme
	}
	rest, err := cutQuery(rest)
	if err != nil {
		return location{}, err
	}
	host, path, err := cutHost(scheme, rest)
	if err != nil {
		return location{}, err
	}
	segments, err := resolve(path, opaque(scheme, rest))
	if err != nil {
		return location{}, err
	}
	if !ofWeb(scheme) && slices.ContainsFunc(segments, isShortName) {
		return location{}, errShortName
	}
	if scheme == "file" {
		switch {
		case len(segments) > 0 && isDrive(segments[0]):
			segments[0] = drive(segments[0])
		case rest != "" && !isSlash(rune(rest[0])):
			return location{}, errSegments // browsers begin at the root, others where the server runs
		}
	}
	return join(scheme, host, segments), nil
}

// check refuses what no URI has in it.
func check(uri string) error {
	if !isText(uri) {
		return errCharacters
	}
	for rest := uri; ; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			return nil
		}
		if rest = rest[i+1:]; len(rest) < 2 || !isHex(rest[0]) || !isHex(rest[1]) {
			return errEscapes
		}
	}
}

func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// cutScheme returns the scheme of a URI in lower case. One letter is no scheme but a
// drive, in a path that is no URI. A url: in front says nothing: some libraries cut it off.
func cutScheme(uri string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(uri, ":")
	for ok && strings.EqualFold(scheme, "url") {
		scheme, rest, ok = strings.Cut(rest, ":")
	}
	if !ok || len(scheme) < 2 {
		return "", "", false
	}
	for i := range len(scheme) {
		switch c := scheme[i]; {
		case 'a' <= c|0x20 && c|0x20 <= 'z':
		case i > 0 && ('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return "", "", false
		}
	}
	return strings.ToLower(scheme), rest, true
}

// cutQuery cuts off the query and the fragment. A server that does not would resolve
// the .. in them.
func cutQuery(rest string) (string, error) {
	i := strings.IndexAny(rest, "?#")
	if i < 0 {
		return rest, nil
	}
	query, err := decode(rest[i:])
	if err != nil {
		return "", err
	}
	for segment := range strings.FieldsFuncSeq(query, isSlash) {
		if isDots(segment) {
			return "", errSegments
		}
	}
	return rest[:i], nil
}

// opaque reports whether what follows a scheme is no path. Colons divide it, as in
// urn:isbn:123.
func opaque(scheme, rest string) bool {
	return scheme != "file" && !ofWeb(scheme) && rest != "" && !isSlash(rune(rest[0]))
}

// cutHost returns the host that follows a scheme, if there is one, and the path that
// follows it.
func cutHost(scheme, rest string) (host, path string, err error) {
	switch {
	case ofWeb(scheme):
		rest = strings.TrimLeftFunc(rest, isSlash)
	case len(rest) >= 2 && isSlash(rune(rest[0])) && isSlash(rune(rest[1])):
		rest = rest[2:]
	default:
		return "", rest, nil
	}
	i := strings.IndexFunc(rest, isSlash)
	if i < 0 {
		i = len(rest)
	}
	authority, path := rest[:i], rest[i:]
	if strings.HasPrefix(path, `\`) && strings.Contains(path, "@") {
		return "", "", errHost // to some the host comes after the @
	}
	if host, err = canonicalHost(scheme, authority); err != nil {
		return "", "", err
	}
	if scheme == "file" && isDrive(host) {
		return "", host + path, nil
	}
	return host, path, nil
}

// canonicalHost returns the host and port of an authority.
func canonicalHost(scheme, authority string) (string, error) {
	host := authority
	if _, after, ok := strings.Cut(authority, "@"); ok {
		host = after
	}
	host, err := decode(host)
	if err != nil {
		return "", err
	}
	if !isText(host) {
		return "", errCharacters
	}
	if strings.ContainsAny(host, `/\?#@%`) {
		return "", errHost
	}
	for i := range len(host) {
		if host[i] >= utf8.RuneSelf && scheme != "file" && onNetwork(scheme) {
			return "", errHost // it is to be written in punycode, and there are many ways to get there
		}
	}
	if scheme == "file" && isDrive(host) {
		return host, nil
	}
	name, port := cutPort(scheme, strings.ToLower(host))
	if onNetwork(scheme) {
		var ok bool
		if name, ok = canonicalAddress(name); !ok {
			return "", errHost
		}
	}
	host = name + port
	if scheme == "file" && host == "localhost" {
		return "", nil
	}
	if isDots(host) {
		return "", errHost
	}
	return host, nil
}

// cutPort returns a host without the dot of the root, and its port after a colon,
// without the default one.
func cutPort(scheme, host string) (name, port string) {
	name = host
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.Trim(host[i+1:], "0123456789") == "" {
		if !strings.Contains(host[:i], ":") || strings.HasSuffix(host[:i], "]") {
			name, port = host[:i], strings.TrimLeft(host[i+1:], "0")
		}
	}
	if name != "." && name != ".." {
		name = strings.TrimSuffix(name, ".")
	}
	if port == "" || port == defaultPorts[scheme] {
		return name, ""
	}
	return name, ":" + port
}

// resolve returns the segments of a path. Some resolve .. before they decode, as is
// right for URIs, some after it, as is right for files, and some cut off parameters
// before that. Only what comes to the same for all of them has segments.
func resolve(path string, opaque bool) ([]string, error) {
	divides := isSlash
	if opaque {
		divides = func(c rune) bool { return isSlash(c) || c == ':' }
	}
	decoded, err := decode(path)
	if err != nil {
		return nil, err
	}
	if !isText(decoded) {
		return nil, errCharacters
	}
	var segments []string
	up := false
	for segment := range strings.FieldsFuncSeq(decoded, divides) {
		switch {
		case segment == ".":
		case segment == ".." && len(segments) == 1 && isDrive(segments[0]):
			return nil, errSegments // a drive is a root, or a directory like any
		case segment == "..":
			up = true
			segments = segments[:max(len(segments)-1, 0)]
		case isDots(segment):
			return nil, errSegments
		default:
			segments = append(segments, segment)
		}
	}
	if up && (strings.ContainsAny(decoded, ends) || !same(segments, resolveURI(path), divides)) {
		return nil, errSegments
	}
	return segments, nil
}

// resolveURI resolves the . and .. of a path by RFC 3986: empty segments count, and
// slashes that are escaped divide nothing.
func resolveURI(path string) string {
	var segments []string
	for segment := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		switch strings.ReplaceAll(strings.ToLower(segment), "%2e", ".") {
		case ".":
		case "..":
			segments = segments[:max(len(segments)-1, 0)]
		default:
			segments = append(segments, segment)
		}
	}
	return strings.Join(segments, "/")
}

// same reports whether a path has these segments, and no .. left in it.
func same(segments []string, path string, divides func(rune) bool) bool {
	decoded, err := decode(path)
	if err != nil {
		return false
	}
	i := 0
	for segment := range strings.FieldsFuncSeq(decoded, divides) {
		if segment == "." {
			continue
		}
		if i == len(segments) || segment != segments[i] {
			return false
		}
		i++
	}
	return i == len(segments)
}

// decode decodes escapes until there are none. A % that comes out of one may be just
// that.
func decode(s string) (string, error) {
	for range maxDecodings {
		decoded := unescape(s)
		if decoded == s {
			return s, nil
		}
		s = decoded
	}
	return "", errDepth
}

// unescape decodes escapes once.
func unescape(s string) string {
	i := strings.IndexByte(s, '%')
	if i < 0 {
		return s
	}
	decoded := make([]byte, 0, len(s))
	for ; i >= 0; i = strings.IndexByte(s, '%') {
		decoded = append(decoded, s[:i]...)
		if s = s[i:]; len(s) < 3 || !isHex(s[1]) || !isHex(s[2]) {
			decoded, s = append(decoded, '%'), s[1:]
			continue
		}
		decoded, s = append(decoded, digit(s[1])<<4|digit(s[2])), s[3:]
	}
	return string(append(decoded, s...))
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

func digit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

func isSlash(c rune) bool { return c == '/' || c == '\\' }

// isDrive reports whether a segment is a drive of Windows.
func isDrive(s string) bool {
	return len(s) == 2 && 'a' <= s[0]|0x20 && s[0]|0x20 <= 'z' && (s[1] == ':' || s[1] == '|')
}

func drive(s string) string { return string([]byte{s[0] | 0x20, ':'}) }

// join makes a location of its parts.
func join(scheme, host string, segments []string) location {
	at := location{exact: scheme + ":"}
	if host != "" {
		at.exact += "//" + host
	}
	var whole, cut strings.Builder
	for _, segment := range segments {
		whole.WriteString("/" + fold(segment))
		if head := cutEnd(segment); head != "" {
			cut.WriteString("/" + fold(head))
		}
	}
	if len(segments) > 0 {
		at.exact += "/" + strings.Join(segments, "/")
	}
	hosts := []string{""}
	switch {
	case host != "" && scheme == "file":
		hosts = []string{"/" + fold(host), ""} // many servers do not look at it
	case host != "":
		hosts = []string{"/" + fold(host)}
	}
	for _, host := range hosts {
		at.readings = append(at.readings, scheme+":"+host+whole.String())
		if cut.String() != whole.String() {
			at.readings = append(at.readings, scheme+":"+host+cut.String())
		}
	}
	return at
}

// isDots reports whether a segment is a . or .. to somebody: file systems and servers
// cut off what follows, or do not see what is in between.
func isDots(segment string) bool {
	head := cutEnd(segment)
	return head != "" && fold(head) == ""
}

// ends are characters at which some servers cut off the end of a segment:
// parameters, queries that were escaped.
const ends = ";?#"

// cutEnd returns a segment without its end, also one that names the stream of a file.
func cutEnd(segment string) string {
	if i := strings.IndexAny(segment, ends+":"); i >= 0 {
		return segment[:i]
	}
	return segment
}

// isShortName reports whether a segment may be one of the names that Windows gives to
// files besides their own: at most eight characters that end in ~ and a number, and
// an extension of at most three.
func isShortName(segment string) bool {
	name, extension, _ := strings.Cut(fold(segment), ".")
	head, digits, tilde := strings.Cut(name, "~")
	return tilde && head != "" && len(name) <= 8 && len(extension) <= 3 &&
		digits != "" && strings.Trim(digits, "0123456789") == ""
}

// fold makes the same of segments that a file system may take for the same: with
// other case, with characters composed or not, with characters that are not seen,
// with dots and spaces at the end.
func fold(segment string) string {
	folded := strings.Map(foldRune, norm.NFC.String(segment))
	if !isASCII(folded) {
		folded = norm.NFC.String(cases.Fold().String(folded)) // ß is ss
		folded = strings.ReplaceAll(folded, "i\u0307", "i")   // of İ
	}
	return strings.TrimRightFunc(folded, func(r rune) bool { return r == '.' || unicode.IsSpace(r) })
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

// foldRune returns one of the characters that differ only in case, always the same.
func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
		return -1
	}
	least := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		least = min(least, other)
	}
	return unicode.ToLower(least)
}
