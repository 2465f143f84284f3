package mcpconsole

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
)

var conversationsPage = page{
	pattern: "/conversations", name: "conversations", title: "Conversations",
	show: showConversations, live: differences("conversations", showConversations),
}

func showConversations(v *visit) (any, error) {
	routes, err := get[[]activity.Route](v, "/conversations")
	if err != nil {
		return nil, err
	}
	return newConversationsView(routes), nil
}

// A routeView shows the conversations that went through a route.
type routeView struct {
	activity.Route
}

func newConversationsView(routes []activity.Route) (views []routeView) {
	for _, route := range routes {
		views = append(views, routeView{route})
	}
	return views
}

// sizes returns how much clients sent and how much of that the model got: in tokens or, if the provider has not told of
// any, in bytes.
func (r routeView) sizes() (before, after int64, words func(int64) string) {
	if r.TokensBefore == 0 {
		return r.BytesBefore, r.BytesAfter, func(n int64) string { return size(float64(n)) }
	}
	return r.TokensBefore, r.TokensAfter, func(n int64) string { return short(float64(n)) + " tokens" }
}

// Before says how much clients sent.
func (r routeView) Before() string {
	before, _, words := r.sizes()
	return words(before)
}

// After says how much of that the model got.
func (r routeView) After() string {
	_, after, words := r.sizes()
	return words(after)
}

// Part is the width of what the model got, of a bar for all that clients sent.
func (r routeView) Part() string {
	before, after, _ := r.sizes()
	return share(float64(after), float64(before))
}

// Label says what the bar shows.
func (r routeView) Label() string {
	before, after, _ := r.sizes()
	return "The model got " + percent(float64(after), float64(before)) + " of what clients sent"
}

// Hits says how much of the input the provider had in its cache, if it tells.
func (r routeView) Hits() string { return known(r.Usage.Cached, r.Usage.Input) }

// CostShare says how much of the cost without masking is left, if that is known.
func (r routeView) CostShare() string { return known(r.Cost, r.CostBefore) }

// known returns which part of a whole something is, unless there is none.
func known[T int64 | float64](part, whole T) string {
	if whole <= 0 {
		return "–"
	}
	return percent(float64(part), float64(whole))
}
