package acl

import (
	"net/netip"
	"strconv"
	"strings"
)

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
