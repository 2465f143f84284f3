package auth

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	// Unlike encoding/json, this package matches names exactly and refuses duplicates.
	"github.com/go-jose/go-jose/v4/json"
	"github.com/go-jose/go-jose/v4/jwt"
)

const maxJWT = 16 << 10

// A tokenFault says why a token is invalid. It contains nothing of the token, so both the
// client and the log may see it.
type tokenFault string

func (f tokenFault) Error() string { return string(f) }

const (
	faultLength    tokenFault = "the token is too long"
	faultForm      tokenFault = "the token is malformed"
	faultEncrypted tokenFault = "the token is encrypted"
	faultAlgorithm tokenFault = "the alg of the token is not allowed"
	faultType      tokenFault = "the typ of the token is not that of an access token"
	faultCritical  tokenFault = "the token has unsupported extensions"
	faultOwnKey    tokenFault = "the token brings its own key"
	faultKey       tokenFault = "the key of the token is unknown"
	faultSignature tokenFault = "the signature of the token is invalid"
	faultIssuer    tokenFault = "the token is from another issuer"
	faultAudience  tokenFault = "the token is for another audience"
	faultNoExpiry  tokenFault = "the token has no exp"
	faultExpired   tokenFault = "the token has expired"
	faultNotYet    tokenFault = "the token is not valid yet"
	faultFuture    tokenFault = "the token was issued in the future"
	faultScope     tokenFault = "the scope of the token is neither a string nor a list of strings"
)

// claimFaults maps the errors of go-jose to faults.
var claimFaults = map[error]tokenFault{
	jwt.ErrInvalidIssuer:     faultIssuer,
	jwt.ErrInvalidAudience:   faultAudience,
	jwt.ErrExpired:           faultExpired,
	jwt.ErrNotValidYet:       faultNotYet,
	jwt.ErrIssuedInTheFuture: faultFuture,
}

// A claimSet contains the claims of a token.
type claimSet map[string]json.RawMessage

// looksLikeJWT reports whether a bearer token has three parts of base64url, or five with
// a JSON object first, as encrypted tokens have. The parts need not decode: a damaged JWT
// is still a JWT.
func looksLikeJWT(token string) bool {
	if token == "" || token[0] == '.' || strings.Trim(token, wordCharacters+"=.") != "" {
		return false
	}
	dots := strings.Count(token, ".")
	return dots == 2 || dots == 4 && strings.HasPrefix(token, "eyJ")
}

// verify returns the claims of a valid token, whatever its scopes.
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
	if err := checkHeader(parts[0]); err != nil {
		return nil, err
	}
	signed, err := jose.ParseSignedCompact(token, j.algorithms)
	if _, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
		return nil, faultAlgorithm
	}
	if err != nil {
		return nil, faultForm // the error may quote the token
	}
	payload, err := j.verifySignature(ctx, signed)
	if err != nil {
		return nil, err
	}
	var claims claimSet
	if !utf8.Valid(payload) || json.Unmarshal(payload, &claims) != nil {
		return nil, faultForm
	}
	return claims, j.checkClaims(payload)
}

// isNotCanonical reports whether a part differs from what an encoder writes. Decoders
// ignore some bits of the last character.
func isNotCanonical(part string) bool {
	_, err := base64.RawURLEncoding.Strict().DecodeString(part)
	return err != nil
}

// checkHeader refuses tokens that bring a key or its address, that have critical
// extensions, or that are for another purpose, such as logging out. It runs before
// go-jose parses the header, because parsing a key can take seconds.
func checkHeader(part string) error {
	text, _ := base64.RawURLEncoding.DecodeString(part) // it is canonical
	var header map[string]json.RawMessage
	if json.Unmarshal(text, &header) != nil {
		return faultForm
	}
	for name := range header {
		switch name {
		case "jwk", "jku", "x5c", "x5u":
			return faultOwnKey
		case "crit", "b64":
			return faultCritical
		}
	}
	raw, has := header["typ"]
	if !has {
		return nil
	}
	var typ string
	_ = json.Unmarshal(raw, &typ)
	switch strings.TrimPrefix(strings.ToLower(typ), "application/") {
	case "jwt", "at+jwt":
		return nil
	}
	return faultType
}

// verifySignature returns the signed payload. If the key is unknown, it fetches the keys
// again, because the issuer may have a new one.
func (j *JWT) verifySignature(ctx context.Context, signed *jose.JSONWebSignature) ([]byte, error) {
	for _, unknown := range []bool{false, true} {
		keys, err := j.keys.get(ctx, time.Duration(j.Refresh), unknown, j.logger)
		if err != nil {
			return nil, fmt.Errorf("wait for the keys of the issuer: %w", err)
		}
		if payload, err := verifyWith(keys, signed); err != faultKey {
			return payload, err
		}
	}
	return nil, faultKey
}

// verifyWith verifies a token with the keys that it names, or with all keys if it names
// none. A key with an alg is for that algorithm only; go-jose checks types and curves.
func verifyWith(keys []jose.JSONWebKey, signed *jose.JSONWebSignature) ([]byte, error) {
	header, fault := signed.Signatures[0].Protected, faultKey
	for _, key := range keys {
		if header.KeyID != "" {
			if key.KeyID != header.KeyID {
				continue
			}
			fault = faultSignature
		}
		if key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		if payload, err := signed.Verify(key.Key); err == nil {
			return payload, nil
		}
	}
	return nil, fault
}

// checkClaims refuses tokens that are from another issuer, for another audience, or not
// valid at this time.
func (j *JWT) checkClaims(payload []byte) error {
	var claims struct {
		jwt.Claims
		Subject json.RawMessage `json:"sub"` // not checked here, so of any type
		ID      json.RawMessage `json:"jti"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return faultForm
	}
	expected := jwt.Expected{Issuer: j.Issuer, AnyAudience: j.Audience}
	if err := claims.ValidateWithLeeway(expected, time.Duration(j.Leeway)); err != nil {
		return cmp.Or(claimFaults[err], faultForm)
	}
	if claims.Expiry == nil {
		return faultNoExpiry
	}
	return nil
}

// identity returns the client that the configured claim names.
func (j *JWT) identity(claims claimSet) (identity string, err error) {
	if json.Unmarshal(claims[j.Claim], &identity) != nil {
		return "", tokenFault("the claim " + j.Claim + " of the token is missing or not a string")
	}
	if err := CheckIdentity(identity); err != nil {
		return "", fmt.Errorf("claim %s: %w", j.Claim, err)
	}
	return identity, nil
}

// checkScopes refuses tokens that lack a scope. RFC 9068 calls the claim scope, some
// issuers call it scp.
func (j *JWT) checkScopes(claims claimSet) error {
	if len(j.Scopes) == 0 {
		return nil
	}
	raw, has := claims["scope"]
	if !has {
		raw, has = claims["scp"]
	}
	var granted jwt.Audience // like an audience, a string or a list of strings
	if has && json.Unmarshal(raw, &granted) != nil {
		return faultScope
	}
	granted = strings.Fields(strings.Join(granted, " "))
	for _, scope := range j.Scopes {
		if !granted.Contains(scope) {
			return &ForbiddenError{Reason: "insufficient_scope"}
		}
	}
	return nil
}
