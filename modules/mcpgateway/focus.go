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

// Focus gives tools an optional argument with which clients say what they look for. A result that
// is too large is then cut to the lines or JSON items that are relevant to it, instead of to head
// and tail. Servers never get the argument. A tool that already has an argument of this name keeps
// it.
type Focus struct {
	// Do not add the argument, for example to the tools of one server. Default: false
	Off bool `json:"off,omitempty"`

	// The name of the argument: up to 64 letters, digits, _ and -. Default: focus
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
	return setting.BlockChecked(d, setting.Lines{
		"argument": setting.Text(&f.Argument),
	}, f.check)
}

// parseFocus parses the focus line and block.
func parseFocus(f **Focus) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		*f = new(Focus)
		return (*f).UnmarshalCaddyfile(d.NewFromNextSegment())
	}
}

// argumentName matches names that all model APIs accept.
var argumentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// provision converts the argument for internal/gateway. It returns nil if focus is off.
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

// check validates the name of the argument.
func (f *Focus) check() error {
	if f.Argument != "" && !argumentName.MatchString(f.Argument) {
		return fmt.Errorf("argument: %q is not a name of up to 64 letters, digits, _ and -", f.Argument)
	}
	return nil
}

// errNoMask is the error for focus without a mask.
var errNoMask = errors.New("focus: requires mask, which is missing or off")

// on reports whether tools get the argument.
func (f *Focus) on() bool { return f != nil && !f.Off }

// checkFocus refuses focus for a server whose results are not shortened.
func (h *Handler) checkFocus(s *Server) error {
	if s.Focus.on() && !h.masks(s) {
		return errNoMask
	}
	return nil
}

// masks reports whether results of a server are shortened.
func (h *Handler) masks(s *Server) bool {
	mask := cmp.Or(s.Mask, h.Mask)
	return mask != nil && (mask.MaxChars == nil || *mask.MaxChars > 0)
}

// provisionFocus sets the focus of the server. The gateway's focus, the fallback, applies only to
// servers with a mask.
func (s *Server) provisionFocus(fallback *Focus) (err error) {
	switch {
	case s.Focus != nil:
		s.focus, err = s.Focus.provision()
	case s.hasMask && s.mask != nil:
		s.focus, err = fallback.provision()
	}
	return err
}
