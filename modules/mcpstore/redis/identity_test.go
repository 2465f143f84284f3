package redis

import (
	"slices"
	"testing"
)

// Address is for operators and logs, so it has no credentials.
func TestAddressHasNoCredentials(t *testing.T) {
	for want, settings := range map[string]Redis{
		"redis://127.0.0.1:6379":      {URL: "redis://127.0.0.1:6379", Username: "ann", Password: "secret"},
		"rediss://redis.test:6380/2":  {URL: "rediss://ann:secret@redis.test:6380/2"},
		"redis://redis.test":          {URL: "redis://:secret@redis.test"},
		"unix:///run/redis.sock?db=3": {URL: "unix://ann:secret@/run/redis.sock?db=3"},
		"redis://a:26379 b:1 c:2":     {URL: "redis://ann:secret@a:26379", Addresses: []string{"b:1", "c:2"}},
		"":                            {URL: "redis://ann:sec ret@%"},
	} {
		if got := settings.Address(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTLSFiles(t *testing.T) {
	for _, test := range []struct {
		tls  *TLS
		want []string
	}{
		{nil, nil},
		{&TLS{ServerName: "redis.test"}, nil},
		{&TLS{CA: "ca"}, []string{"ca"}},
		{&TLS{CA: "ca", Certificate: "cert", Key: "key"}, []string{"ca", "cert", "key"}},
	} {
		if got := (&Redis{TLS: test.tls}).Files(); !slices.Equal(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
