package setting

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
)

// ShortestKey is the minimum length of a session_key. Programs store the key, so it can be long.
const ShortestKey = 32

// SessionKey returns the session_key of a configuration with placeholders replaced.
func SessionKey(config string) ([]byte, error) {
	key, err := caddy.NewReplacer().ReplaceOrErr(config, true, true)
	if err != nil {
		return nil, err
	}
	if len(key) < ShortestKey {
		return nil, fmt.Errorf("too short: %d characters, need at least %d", len(key), ShortestKey)
	}
	return []byte(key), nil
}
