package acl

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// A location is the canonical form of a URI without its query and fragment: a scheme, an optional
// host, and the segments of a path.
type location struct {
	canonical string // scheme://host/segment/segment, all escapes decoded

	// Other forms that servers may treat as equal: they may ignore case, the host of a file URI, or
	// the end of a segment. The first form has all segments in full.
	readings []string
}

// isWithin reports whether s is the location prefix or below it. Every location is within the empty
// prefix.
func isWithin(s, prefix string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && (rest == "" || prefix == "" || rest[0] == '/')
}

var (
	errLength     = errors.New("it is longer than 64 KiB")
	errCharacters = errors.New("it contains control characters or is not UTF-8")
	errEscapes    = errors.New("a % in it is not followed by two hexadecimal digits")
	errDepth      = errors.New("it is escaped too many times")
	errScheme     = errors.New("it does not begin with a scheme and a colon")
	errHost       = errors.New("its host is ambiguous")
	errSegments   = errors.New("its path is ambiguous")
	errShortName  = errors.New("its path may contain a Windows short name, such as PROGRA~1")
)

const (
	maxURI       = 64 << 10 // bytes of a URI: to compare the forms of a MiB takes 0.3 s
	maxDecodings = 5        // how many times a URI is unescaped
)

// defaultPorts are the ports that a URI may omit, by scheme.
var defaultPorts = map[string]string{
	"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "sftp": "22", "ssh": "22",
	"postgres": "5432", "postgresql": "5432", "mysql": "3306", "redis": "6379", "mongodb": "27017",
}

// isWeb reports whether browsers read a host in every URI of a scheme, after any number of slashes.
func isWeb(scheme string) bool {
	switch scheme {
	case "http", "https", "ws", "wss", "ftp":
		return true
	}
	return false
}

// locate returns the location of a URI. It fails if the URI has no canonical form.
func locate(uri string) (location, error) {
	if len(uri) > maxURI {
		return location{}, errLength
	}
	if err := checkCharacters(uri); err != nil {
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
	segments, err := resolvePath(path, isOpaque(scheme, rest))
	if err != nil {
		return location{}, err
	}
	if !isWeb(scheme) && slices.ContainsFunc(segments, isShortName) {
		return location{}, errShortName
	}
	if scheme == "file" {
		switch {
		case len(segments) > 0 && isDrive(segments[0]):
			segments[0] = canonicalDrive(segments[0])
		case rest != "" && !isSlash(rune(rest[0])):
			return location{}, errSegments // relative to the root for browsers, to the working directory for others
		}
	}
	return newLocation(scheme, host, segments), nil
}

// checkCharacters refuses characters and escapes that are invalid in a URI.
func checkCharacters(uri string) error {
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

// cutScheme returns the scheme of a URI in lower case. A single letter is a Windows drive, not a
// scheme. It skips leading "url:", which some libraries cut off.
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

// cutQuery removes the query and the fragment. It refuses those with a .. in them, which a server
// that does not remove them would resolve.
func cutQuery(rest string) (string, error) {
	i := strings.IndexAny(rest, "?#")
	if i < 0 {
		return rest, nil
	}
	query, err := unescapeAll(rest[i:])
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

// isOpaque reports whether the part after a scheme is not a path. Its parts are divided by colons,
// as in urn:isbn:123.
func isOpaque(scheme, rest string) bool {
	return scheme != "file" && !isWeb(scheme) && rest != "" && !isSlash(rune(rest[0]))
}

// cutHost returns the host after a scheme, if there is one, and the path.
func cutHost(scheme, rest string) (host, path string, err error) {
	switch {
	case isWeb(scheme):
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
		return "", "", errHost // some parsers take the part after the @ for the host
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
	host, err := unescapeAll(host)
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
		if host[i] >= utf8.RuneSelf && scheme != "file" && hasNetworkHost(scheme) {
			return "", errHost // libraries convert it to Punycode in different ways
		}
	}
	if scheme == "file" && isDrive(host) {
		return host, nil
	}
	name, port := cutPort(scheme, strings.ToLower(host))
	if hasNetworkHost(scheme) {
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

// cutPort splits a host into its name, without a trailing dot, and its port with a colon, which is
// empty for the default port.
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

// resolvePath returns the segments of a path. Some servers resolve .. before they unescape, as URIs
// require; some do it after, as files require; some cut parameters off first. resolvePath fails if
// the results differ.
func resolvePath(path string, opaque bool) ([]string, error) {
	divides := isSlash
	if opaque {
		divides = func(c rune) bool { return isSlash(c) || c == ':' }
	}
	decoded, err := unescapeAll(path)
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
			return nil, errSegments // some treat a drive as a root, others as a directory
		case segment == "..":
			up = true
			segments = segments[:max(len(segments)-1, 0)]
		case isDots(segment):
			return nil, errSegments
		default:
			segments = append(segments, segment)
		}
	}
	if up && (strings.ContainsAny(decoded, terminators) || !hasSegments(segments, resolveURI(path), divides)) {
		return nil, errSegments
	}
	return segments, nil
}

// resolveURI resolves the . and .. of a path by RFC 3986: empty segments count, and escaped slashes
// do not divide.
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

// hasSegments reports whether a path has exactly these segments.
func hasSegments(segments []string, path string, divides func(rune) bool) bool {
	decoded, err := unescapeAll(path)
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

// unescapeAll unescapes until nothing changes. A % that is not part of an escape stays.
func unescapeAll(s string) (string, error) {
	for range maxDecodings {
		decoded := unescape(s)
		if decoded == s {
			return s, nil
		}
		s = decoded
	}
	return "", errDepth
}

// unescape unescapes once.
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
		decoded, s = append(decoded, hexValue(s[1])<<4|hexValue(s[2])), s[3:]
	}
	return string(append(decoded, s...))
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

func hexValue(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

func isSlash(c rune) bool { return c == '/' || c == '\\' }

// isDrive reports whether a segment is a Windows drive.
func isDrive(s string) bool {
	return len(s) == 2 && 'a' <= s[0]|0x20 && s[0]|0x20 <= 'z' && (s[1] == ':' || s[1] == '|')
}

func canonicalDrive(s string) string { return string([]byte{s[0] | 0x20, ':'}) }

// newLocation makes a location from its parts.
func newLocation(scheme, host string, segments []string) location {
	at := location{canonical: scheme + ":"}
	if host != "" {
		at.canonical += "//" + host
	}
	var whole, cut strings.Builder
	for _, segment := range segments {
		whole.WriteString("/" + fold(segment))
		if head := cutTerminator(segment); head != "" {
			cut.WriteString("/" + fold(head))
		}
	}
	if len(segments) > 0 {
		at.canonical += "/" + strings.Join(segments, "/")
	}
	hosts := []string{""}
	switch {
	case host != "" && scheme == "file":
		hosts = []string{"/" + fold(host), ""} // many servers ignore it
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

// isDots reports whether a file system or server may take a segment for . or .., because it ignores
// the end of the segment or invisible characters in it.
func isDots(segment string) bool {
	head := cutTerminator(segment)
	return head != "" && fold(head) == ""
}

// terminators are the characters at which some servers cut off a segment: those of parameters and
// of escaped queries.
const terminators = ";?#"

// cutTerminator returns a segment up to a terminator, or to the colon before the name of an NTFS
// stream.
func cutTerminator(segment string) string {
	if i := strings.IndexAny(segment, terminators+":"); i >= 0 {
		return segment[:i]
	}
	return segment
}

// isShortName reports whether a segment may be a short name, which Windows adds to files: at most
// eight characters that end in ~ and a number, and an extension of at most three.
func isShortName(segment string) bool {
	name, extension, _ := strings.Cut(fold(segment), ".")
	head, digits, tilde := strings.Cut(name, "~")
	return tilde && head != "" && len(name) <= 8 && len(extension) <= 3 &&
		digits != "" && strings.Trim(digits, "0123456789") == ""
}

// fold returns one form for all segments that a file system may treat as equal. They may differ in
// case, in composed and invisible characters, and in dots and spaces at the end.
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

// foldRune returns the same character for all that differ only in case, and -1 for invisible ones.
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

// hasNetworkHost reports whether the host in a URI of this scheme is a network host. In other
// schemes it may be any name: note://010/ and note://8/ are two notes.
func hasNetworkHost(scheme string) bool { return scheme == "file" || defaultPorts[scheme] != "" }

// canonicalAddress returns a host as browsers and resolvers read it: 2852039166, 0xa9.254.43518 and
// [::ffff:a9fe:a9fe] are 169.254.169.254. It is not ok for an invalid address, or an IPv6 address
// that may be translated to an IPv4 address. It returns names unchanged.
func canonicalAddress(host string) (address string, ok bool) {
	if inner, bracket := strings.CutPrefix(host, "["); bracket {
		inner, closed := strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		if !closed || err != nil || !ip.Is6() || ip.Zone() != "" {
			return "", false
		}
		switch {
		case ip.Is4In6():
			return ip.Unmap().String(), true
		case isTranslated(ip):
			return "", false
		}
		return "[" + ip.String() + "]", true
	}
	labels := strings.Split(host, ".")
	if _, isNumber := parseNumber(labels[len(labels)-1]); !isNumber {
		return host, true
	}
	return dottedQuad(labels)
}

// translations are the prefixes of IPv6 addresses that contain an IPv4 address.
var translations = []netip.Prefix{
	netip.MustParsePrefix("::ffff:0:0:0/96"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
}

func isTranslated(ip netip.Addr) bool {
	for _, prefix := range translations {
		if prefix.Contains(ip) {
			return true
		}
	}
	return false
}

// parseNumber parses a label of decimal digits, or of hexadecimal digits after 0x. A number that is
// too large has a value above any address. So has a number with a leading 0 that is not the same in
// octal and in decimal, because resolvers disagree on it.
func parseNumber(label string) (n uint64, isNumber bool) {
	const invalid = 1 << 40 // larger than any address
	digits, base := label, 10
	switch {
	case label == "":
		return 0, false
	case strings.HasPrefix(label, "0x"), strings.HasPrefix(label, "0X"):
		if digits, base = label[2:], 16; digits == "" {
			return 0, true
		}
	case label[0] == '0':
		if digits = strings.TrimLeft(label[1:], "0"); len(digits) > 1 || digits > "7" {
			return invalid, strings.Trim(label, "0123456789") == ""
		}
		digits = "0" + digits
	}
	n, err := strconv.ParseUint(digits, base, 64)
	switch {
	case strings.HasPrefix(digits, "+"), strings.Contains(digits, "_"):
		return 0, false
	case err == nil:
		return min(n, invalid), true
	}
	return invalid, strings.Trim(label, "0123456789") == "" ||
		base == 16 && strings.Trim(digits, "0123456789abcdefABCDEF") == ""
}

// dottedQuad returns the address of one to four numbers. The last number fills the remaining
// bytes.
func dottedQuad(labels []string) (string, bool) {
	if len(labels) > 4 {
		return "", false
	}
	var address uint64
	for i, label := range labels {
		n, isNumber := parseNumber(label)
		left := 4 - i // bytes
		if i < len(labels)-1 {
			left = 1
		}
		if !isNumber || n >= 1<<(8*left) {
			return "", false
		}
		if i < len(labels)-1 {
			n <<= 8 * (3 - i)
		}
		address |= n
	}
	octets := [4]byte{byte(address >> 24), byte(address >> 16), byte(address >> 8), byte(address)}
	return netip.AddrFrom4(octets).String(), true
}
