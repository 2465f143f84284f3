package mcpconsole

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
)

var conversationsPage = page{
	pattern: "/conversations", name: "conversations", title: "Conversations",
	show: showConversations, live: liveSnapshots("conversations", showConversations),
}

func showConversations(v *consoleRequest) (any, error) {
	routes, err := get[[]activity.Route](v, "/conversations")
	if err != nil {
		return nil, err
	}
	return newConversationsView(routes), nil
}

// A routeView shows the conversations of a route.
type routeView struct {
	activity.Route
}

func newConversationsView(routes []activity.Route) (views []routeView) {
	for _, route := range routes {
		views = append(views, routeView{route})
	}
	return views
}

// sizes returns how much clients sent and how much of it the model got: in tokens or, if the
// provider reports none, in bytes. words formats such a size.
func (r routeView) sizes() (before, after int64, words func(int64) string) {
	if r.TokensBefore == 0 {
		return r.BytesBefore, r.BytesAfter, func(n int64) string { return size(float64(n)) }
	}
	return r.TokensBefore, r.TokensAfter, func(n int64) string { return short(float64(n)) + " tokens" }
}

// Before returns how much clients sent, as text.
func (r routeView) Before() string {
	before, _, words := r.sizes()
	return words(before)
}

// After returns how much the model got, as text.
func (r routeView) After() string {
	_, after, words := r.sizes()
	return words(after)
}

// Part returns the model's share of what clients sent, as a bar width.
func (r routeView) Part() string {
	before, after, _ := r.sizes()
	return share(float64(after), float64(before))
}

// Label returns the description of the bar.
func (r routeView) Label() string {
	before, after, _ := r.sizes()
	return "The model got " + percent(float64(after), float64(before)) + " of what clients sent"
}

// Hits returns the share of input tokens that the provider had cached, or a dash if it reports
// none.
func (r routeView) Hits() string { return ratioText(r.Usage.Cached, r.Usage.Input) }

// CostShare returns the cost as a share of the unmasked cost, or a dash if that is unknown.
func (r routeView) CostShare() string { return ratioText(r.Cost, r.CostBefore) }

// ratioText returns a share as text, or a dash if there is no whole.
func ratioText[T int64 | float64](part, whole T) string {
	if whole <= 0 {
		return "–"
	}
	return percent(float64(part), float64(whole))
}
