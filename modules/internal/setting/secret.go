package setting

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
)

// ShortestKey is how long a session_key has to be. It is no password that people
// remember.
const ShortestKey = 32

// SessionKey returns the session_key that a configuration has, with its placeholders replaced.
func SessionKey(config string) ([]byte, error) {
	key, err := caddy.NewReplacer().ReplaceOrErr(config, true, true)
	if err != nil {
		return nil, err
	}
	if len(key) < ShortestKey {
		return nil, fmt.Errorf("it has %d characters, and needs %d", len(key), ShortestKey)
	}
	return []byte(key), nil
}
