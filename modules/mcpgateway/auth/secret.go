package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
)

// errWrittenOut does not repeat what was written.
var errWrittenOut = errors.New("a secret does not belong in the configuration: put it in an environment variable and write {env.NAME}, or in a file and write {file./path}")

// readSecret returns the secret that a configuration names as {env.NAME} or
// {file./path}. Its errors have that name, never the secret.
func readSecret(text string) (string, error) {
	if text == "" {
		return "", errors.New("missing")
	}
	if !namesSecret(text) {
		return "", errWrittenOut
	}
	secret, err := caddy.NewReplacer().ReplaceOrErr(text, true, true)
	if err != nil {
		return "", err
	}
	secret = strings.TrimRight(secret, "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s is empty", text)
	}
	if strings.TrimSpace(secret) != secret {
		return "", fmt.Errorf("%s begins or ends with a blank", text)
	}
	return secret, nil
}

// namesSecret reports whether a text is one placeholder that readSecret reads. Were
// there anything else beside it, a part of the secret would be written out.
func namesSecret(text string) bool {
	name, ok := strings.CutPrefix(text, "{env.")
	if !ok {
		name, ok = strings.CutPrefix(text, "{file.")
	}
	name, closed := strings.CutSuffix(name, "}")
	return ok && closed && name != "" && !strings.ContainsAny(name, "{}")
}

type digest = [sha256.Size]byte

const digestPrefix = "sha256:"

// readToken returns the SHA-256 of a token, which a configuration names or has as
// sha256:<hex>.
func readToken(text string) (digest, error) {
	if sum, ok := parseDigest(text); ok {
		return sum, nil
	}
	token, err := readSecret(text)
	if err != nil {
		return digest{}, err
	}
	return sha256.Sum256([]byte(token)), nil
}

func parseDigest(text string) (sum digest, ok bool) {
	text, ok = strings.CutPrefix(text, digestPrefix)
	if !ok || len(text) != hex.EncodedLen(len(sum)) {
		return sum, false
	}
	_, err := hex.Decode(sum[:], []byte(text))
	return sum, err == nil
}

// TokenFromCaddyfile returns what the JSON configuration has in the place of a token
// that stands in a Caddyfile. That is sha256:<hex> if it is written out, so that nobody
// can read it there. Anything with braces stays as it is: it is a placeholder, or it is
// refused when the configuration is loaded.
func TokenFromCaddyfile(text string) string {
	if _, ok := parseDigest(text); ok || text == "" || strings.ContainsAny(text, "{}") {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return digestPrefix + hex.EncodeToString(sum[:])
}

// CheckToken refuses what is written out in a Caddyfile and cannot be a bearer token, which
// has letters, digits and -._~+/= only (RFC 6750). It may be a secret all the same, so it is
// not repeated.
func CheckToken(text string) error {
	switch _, isDigest := parseDigest(text); {
	case text == "":
		return errors.New("it is empty")
	case isDigest, namesSecret(text):
		return nil
	case strings.ContainsAny(text, "{}"):
		return errors.New("with braces it is {env.NAME} or {file./path}, and nothing else beside it")
	case strings.HasPrefix(text, "$"):
		return errors.New("$NAME is the shell's way; here it is {env.NAME}")
	case strings.Trim(text, hmacWord+".~+/=") != "":
		return errors.New("it has other characters than letters, digits and -._~+/=")
	}
	return nil
}

// checkClientName refuses what cannot be the name of a client in a configuration. It
// may be a secret in the wrong place, so it is not repeated.
func checkClientName(name string) error {
	if strings.ContainsAny(name, "{}") {
		return errors.New("a placeholder is not the name of a client")
	}
	return CheckIdentity(name)
}

const maxIdentity = 256

// CheckIdentity refuses identities that no log, limit or pattern should have to deal
// with.
func CheckIdentity(identity string) error {
	switch {
	case identity == "":
		return errors.New("the identity is empty")
	case !utf8.ValidString(identity):
		return errors.New("the identity is not UTF-8")
	case utf8.RuneCountInString(identity) > maxIdentity:
		return fmt.Errorf("the identity is longer than %d characters", maxIdentity)
	case strings.ContainsFunc(identity, unicode.IsControl):
		return errors.New("the identity has control characters")
	}
	return nil
}

// credentialsOf returns what follows a scheme in the Authorization header, and whether
// it is of that scheme. Two headers are refused: somebody else may look at the other.
func credentialsOf(r *http.Request, scheme string) (credentials string, ok bool, err error) {
	headers := r.Header["Authorization"]
	if len(headers) > 1 {
		return "", false, errors.New("there are several Authorization headers")
	}
	if len(headers) == 0 {
		return "", false, nil
	}
	given, credentials, _ := strings.Cut(headers[0], " ")
	return strings.Trim(credentials, " "), strings.EqualFold(given, scheme), nil
}

// fingerprints returns texts that change with the secrets of each client, and with those of
// all, under no name.
func fingerprints(each func(add func(client string, secret []byte))) map[string]string {
	sums := map[string]hash.Hash{"": sha256.New()}
	each(func(client string, secret []byte) {
		if sums[client] == nil {
			sums[client] = sha256.New()
		}
		digest := sha256.Sum256(secret)
		for _, name := range []string{"", client} {
			_, _ = sums[name].Write(digest[:])
		}
	})
	prints := map[string]string{}
	for client, sum := range sums {
		prints[client] = hex.EncodeToString(sum.Sum(nil))
	}
	return prints
}
