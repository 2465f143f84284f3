package mcpgateway

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// Focus gives tools an optional argument by which clients say what they look for. A result
// that the mask finds too large is then cut to the lines, or the items of JSON, that bear on that,
// in place of head and tail. Servers never see the argument. Tools that have one of this name keep
// their own.
type Focus struct {
	// Give tools no such argument. Default: false
	Off bool `json:"off,omitempty"`

	// The name of the argument. Default: focus
	Argument string `json:"argument,omitempty"`
}

// UnmarshalCaddyfile sets up the argument from Caddyfile tokens. Syntax:
//
//	focus [on|off] {
//		argument <name>
//	}
func (f *Focus) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	var on bool
	if err := setting.Switch(&on)(d); err != nil {
		return err
	}
	f.Off = !on
	return setting.Checked(d, setting.Lines{
		"argument": setting.Text(&f.Argument),
	}, f.check)
}

// parseFocus reads the line and block of focus.
func parseFocus(f **Focus) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		*f = new(Focus)
		return (*f).UnmarshalCaddyfile(d.NewFromNextSegment())
	}
}

// argumentName is what the name of an argument can be for all model APIs.
var argumentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// provision returns the argument as the gateway has it; nil if there is none.
func (f *Focus) provision() (*toolview.Focus, error) {
	if !f.on() {
		return nil, nil
	}
	if f.Argument == "" {
		f.Argument = "focus"
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return toolview.NewFocus(f.Argument), nil
}

// check reports an argument that has no valid name.
func (f *Focus) check() error {
	if f.Argument != "" && !argumentName.MatchString(f.Argument) {
		return fmt.Errorf("argument: %q is not a name of up to 64 letters, digits, _ and -", f.Argument)
	}
	return nil
}

// errNoMask says that there is nothing to focus.
var errNoMask = errors.New("focus: results are not masked: mask is missing or off")

// on reports whether tools get the argument.
func (f *Focus) on() bool { return f != nil && !f.Off }

// checkFocus refuses the argument for a server whose results are not masked.
func (h *Handler) checkFocus(s *Server) error {
	if s.Focus.on() && !h.masks(s) {
		return errNoMask
	}
	return nil
}

// masks reports whether results of a server are masked.
func (h *Handler) masks(s *Server) bool {
	mask := cmp.Or(s.Mask, h.Mask)
	return mask != nil && (mask.MaxChars == nil || *mask.MaxChars > 0)
}

// provisionFocus gives the server the argument. The one of the gateway is for servers with a mask.
func (s *Server) provisionFocus(fallback *Focus) (err error) {
	switch {
	case s.Focus != nil:
		s.focus, err = s.Focus.provision()
	case s.masked && s.mask != nil:
		s.focus, err = fallback.provision()
	}
	return err
}
