package auth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	// It takes members by their exact names and refuses those that come twice.
	"github.com/go-jose/go-jose/v4/json"
	"github.com/go-jose/go-jose/v4/jwt"
)

const maxJWT = 16 << 10

// A tokenFault says which check a token has not passed. It has nothing of the token in
// it: clients and the log may both know it.
type tokenFault string

func (f tokenFault) Error() string { return string(f) }

const (
	faultLength    tokenFault = "the token is too long"
	faultForm      tokenFault = "the token is malformed"
	faultEncrypted tokenFault = "the token is encrypted"
	faultAlgorithm tokenFault = "the alg of the token is not allowed"
	faultType      tokenFault = "the typ of the token is not that of an access token"
	faultCritical  tokenFault = "the token has extensions that are not understood"
	faultOwnKey    tokenFault = "the token brings its own key"
	faultKey       tokenFault = "the key of the token is not known"
	faultSignature tokenFault = "the signature of the token is not good"
	faultIssuer    tokenFault = "the token is from another issuer"
	faultAudience  tokenFault = "the token is for another audience"
	faultNoExpiry  tokenFault = "the token does not expire"
	faultExpired   tokenFault = "the token has expired"
	faultNotYet    tokenFault = "the token is not good yet"
	faultFuture    tokenFault = "the token is from the future"
	faultScope     tokenFault = "the scope of the token is neither a text nor a list of texts"
)

// looksLikeJWT reports whether a bearer token is three parts of base64url, or five with
// a JSON object at their head, as encrypted ones are. Whether they can be decoded is
// not looked at: a token that is damaged is one of ours all the same.
func looksLikeJWT(token string) bool {
	notBase64 := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '=' || c == '.')
	}
	if token == "" || token[0] == '.' || strings.ContainsFunc(token, notBase64) {
		return false
	}
	dots := strings.Count(token, ".")
	return dots == 2 || dots == 4 && strings.HasPrefix(token, "eyJ")
}

// verify returns the claims of a token that is good for us, whatever its scopes.
func (j *JWT) verify(ctx context.Context, token string) (claimSet, error) {
	if len(token) > maxJWT {
		return nil, faultLength
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, faultEncrypted
	}
	if slices.ContainsFunc(parts, isNotCanonical) {
		return nil, faultForm
	}
	if err := checkOwnKey(parts[0]); err != nil {
		return nil, err
	}
	signed, err := jose.ParseSignedCompact(token, j.algorithms)
	if _, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
		return nil, faultAlgorithm
	}
	if err != nil {
		return nil, faultForm // the error may tell what is in the token
	}
	if err := checkHeader(signed.Signatures[0].Protected); err != nil {
		return nil, err
	}
	payload, err := j.verifySignature(ctx, signed)
	if err != nil {
		return nil, err
	}
	var claims claimSet
	if !utf8.Valid(payload) || json.Unmarshal(payload, &claims) != nil {
		return nil, faultForm
	}
	return claims, j.checkClaims(claims, time.Now())
}

// isNotCanonical reports whether a part is something else than what an encoder makes.
// The last character of many has bits that decoders pass over.
func isNotCanonical(part string) bool {
	_, err := base64.RawURLEncoding.Strict().DecodeString(part)
	return err != nil
}

// checkOwnKey refuses tokens that bring a key, or say where there is one, before anything
// reads it: to parse a key can take seconds.
func checkOwnKey(header string) error {
	text, _ := base64.RawURLEncoding.DecodeString(header) // it is canonical
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return faultForm
	}
	for _, name := range []string{"jwk", "jku", "x5c", "x5u"} {
		if _, has := members[name]; has {
			return faultOwnKey
		}
	}
	return nil
}

// checkHeader refuses tokens that are for something else, such as logging out, and
// those that must not be taken by who does not understand all of their header.
func checkHeader(header jose.Header) error {
	for _, name := range []jose.HeaderKey{"crit", "b64"} {
		if _, has := header.ExtraHeaders[name]; has {
			return faultCritical
		}
	}
	value, has := header.ExtraHeaders[jose.HeaderType]
	if !has {
		return nil
	}
	text, _ := value.(string)
	switch strings.TrimPrefix(strings.ToLower(text), "application/") {
	case "jwt", "at+jwt":
		return nil
	}
	return faultType
}

// verifySignature returns what is signed. A key that the token does not name is looked
// for among all that fit.
func (j *JWT) verifySignature(ctx context.Context, signed *jose.JSONWebSignature) ([]byte, error) {
	header := signed.Signatures[0].Protected
	kid, alg := header.KeyID, jose.SignatureAlgorithm(header.Algorithm)
	var payload []byte
	var known, verified bool
	err := j.keys.seek(ctx, time.Duration(j.Refresh), j.logger, func(keys []jose.JSONWebKey) bool {
		known, verified = false, false
		for _, key := range keys {
			if kid != "" && key.KeyID != kid {
				continue
			}
			known = known || kid != ""
			if !keyFits(key, alg) {
				continue
			}
			if text, err := signed.Verify(key.Key); err == nil {
				payload, verified = text, true
				return true
			}
		}
		return known
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("wait for the keys of the issuer: %w", err)
	case verified:
		return payload, nil
	case known:
		return nil, faultSignature
	}
	return nil, faultKey
}

// checkClaims refuses tokens that are not from our issuer, for us and for now.
func (j *JWT) checkClaims(claims claimSet, now time.Time) error {
	if issuer, ok := claims.text("iss"); !ok || issuer != j.Issuer {
		return faultIssuer
	}
	if !slices.ContainsFunc(claims.audience(), func(one string) bool { return slices.Contains(j.Audience, one) }) {
		return faultAudience
	}
	expiry, err := claims.date("exp")
	if err != nil {
		return err
	}
	notBefore, err := claims.date("nbf")
	if err != nil {
		return err
	}
	issued, err := claims.date("iat")
	if err != nil {
		return err
	}
	leeway := time.Duration(j.Leeway)
	switch {
	case expiry == nil:
		return faultNoExpiry
	case !now.Before(expiry.Time().Add(leeway)):
		return faultExpired
	case notBefore != nil && now.Add(leeway).Before(notBefore.Time()):
		return faultNotYet
	case issued != nil && now.Add(leeway).Before(issued.Time()):
		return faultFuture
	}
	return nil
}

// A claimSet is what a token says.
type claimSet map[string]json.RawMessage

// identity returns who a client is by one of the claims.
func (c claimSet) identity(claim string) (string, error) {
	text, ok := c.text(claim)
	if !ok {
		return "", tokenFault("the claim " + claim + " of the token is missing or not a text")
	}
	if err := CheckIdentity(text); err != nil {
		return "", fmt.Errorf("claim %s: %w", claim, err)
	}
	return text, nil
}

func (c claimSet) text(name string) (text string, ok bool) {
	raw := c[name]
	return text, len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &text) == nil
}

// date returns nil if there is none.
func (c claimSet) date(name string) (*jwt.NumericDate, error) {
	raw, has := c[name]
	if !has {
		return nil, nil
	}
	date := new(jwt.NumericDate)
	if date.UnmarshalJSON(raw) != nil {
		return nil, tokenFault("the " + name + " of the token is not a date")
	}
	return date, nil
}

func (c claimSet) audience() jwt.Audience {
	var audience jwt.Audience
	if raw, has := c["aud"]; !has || audience.UnmarshalJSON(raw) != nil {
		return nil
	}
	return audience
}

// scopes returns what the token allows. Most issuers have it in scope, as RFC 9068
// wants it, some in scp.
func (c claimSet) scopes() ([]string, error) {
	raw, has := c["scope"]
	if !has {
		raw, has = c["scp"]
	}
	if !has {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return strings.Fields(text), nil
	}
	var list []string
	if json.Unmarshal(raw, &list) != nil {
		return nil, faultScope
	}
	return list, nil
}
