// Package configfile reads configuration files, and parts of them, for commands.
package configfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// Load reads and adapts a configuration like Caddy's own commands, but prints nothing. The default
// file is the Caddyfile in the current directory; config is nil if that does not exist. from is the
// name of the file.
func Load(file, adapter string) (config []byte, from string, err error) {
	from = cmp.Or(file, "Caddyfile")
	config, err = os.ReadFile(from)
	switch {
	case file == "" && errors.Is(err, fs.ErrNotExist):
		return nil, from, nil
	case err != nil:
		return nil, from, err
	case adapter == "" && filepath.Ext(from) == ".json":
		if !json.Valid(config) {
			return nil, from, fmt.Errorf("%s is not JSON; for the mcpServers JSON of a client, add --adapter mcp", from)
		}
		return config, from, nil
	}
	adapter = cmp.Or(adapter, "caddyfile")
	adapt := caddyconfig.GetAdapter(adapter)
	if adapt == nil {
		return nil, from, fmt.Errorf("unknown config adapter %q", adapter)
	}
	config, _, err = adapt.Adapt(config, map[string]any{"filename": from})
	return config, from, err
}

// Handlers returns the configurations of all handlers with this name in a configuration or a part
// of one, at any depth.
func Handlers(config []byte, name string) ([]json.RawMessage, error) {
	var root any
	decoder := json.NewDecoder(bytes.NewReader(config))
	decoder.UseNumber() // keep numbers as written
	if err := decoder.Decode(&root); err != nil {
		return nil, err
	}
	return handlers(root, name, nil), nil
}

func handlers(config any, name string, found []json.RawMessage) []json.RawMessage {
	switch value := config.(type) {
	case []any:
		for _, element := range value {
			found = handlers(element, name, found)
		}
	case map[string]any:
		if value["handler"] == name {
			delete(value, "handler")
			raw, _ := json.Marshal(value) // cannot fail
			return append(found, raw)
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			found = handlers(value[key], name, found)
		}
	}
	return found
}
