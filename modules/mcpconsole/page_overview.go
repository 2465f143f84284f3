package mcpconsole

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var overviewPage = page{
	pattern: "/{$}", name: "overview", title: "Overview", show: showOverview, live: liveSnapshots("overview",
		showOverview),
}

// An overview is the data of the overview page.
type overview struct {
	adminapi.Overview
	Savings  adminapi.Savings
	Currency string
	Servers  int
	Down     []adminapi.ServerStatus // servers known to be down
	Clients  int                     // client sessions
	Rate     float64                 // current calls per second
	Chart    recentChart
	Tools    [10]toolBar
	Days     []dayColumn
}

func showOverview(v *consoleRequest) (any, error) {
	now, err := get[adminapi.Overview](v, "/overview")
	if err != nil {
		return nil, err
	}
	price := url.QueryEscape(strconv.FormatFloat(v.h.Price, 'f', -1, 64))
	savings, err := get[adminapi.Savings](v, "/savings?price="+price)
	if err != nil {
		return nil, err
	}
	servers, err := get[[]adminapi.ServerStatus](v, "/servers")
	if err != nil {
		return nil, err
	}
	return newOverview(now, savings, servers, v.h.Currency, time.Now()), nil
}

// newOverview combines the responses of the admin API.
func newOverview(
	now adminapi.Overview, savings adminapi.Savings, servers []adminapi.ServerStatus, currency string, at time.Time,
) *overview {
	o := &overview{Overview: now, Savings: savings, Currency: cmp.Or(currency, "$"), Servers: len(servers)}
	for _, server := range servers {
		if server.State == adminapi.StateUnhealthy {
			o.Down = append(o.Down, server)
		}
	}
	for _, gateway := range now.Gateways {
		o.Clients += gateway.Clients
	}
	o.Rate = currentRate(now.Recent, at)
	o.Chart = newRecentChart(now.Recent)
	o.Tools = newToolBars(savings.Tools)
	o.Days = newDayColumns(savings.Days)
	return o
}

// NoTraffic reports whether there has been no traffic yet.
func (o *overview) NoTraffic() bool { return o.Total.Calls == 0 && o.Savings.Conversations.Calls == 0 }

// Money returns the value of a saving, "" without a price.
func (o *overview) Money(saving adminapi.Saving) string {
	if o.Savings.Price == 0 {
		return ""
	}
	return money(o.Currency, saving.Money)
}

// Price returns the price of a million tokens.
func (o *overview) Price() string { return money(o.Currency, o.Savings.Price) }

// Reached returns the share of received bytes that was sent to agents, as a bar width.
func (o *overview) Reached() string { return share(float64(o.Total.Sent), float64(o.Total.Received)) }

// Cut returns how many bytes from servers were not sent to agents.
func (o *overview) Cut() int64 { return max(0, o.Total.Received-o.Total.Sent) }

// Up returns the number of servers not known to be down.
func (o *overview) Up() int { return o.Servers - len(o.Down) }

// currentRate returns the calls per second over the last two intervals. The last one has not ended
// yet.
func currentRate(recent []activity.Interval, at time.Time) float64 {
	if len(recent) < 2 {
		return 0
	}
	last := recent[len(recent)-2:]
	seconds := at.Sub(last[0].At).Seconds()
	if seconds <= 0 {
		return 0
	}
	return float64(last[0].Calls+last[1].Calls) / seconds
}

// A recentChart is a chart of the calls in the last ten minutes.
type recentChart struct {
	Calls, Failed string // SVG paths
	Top           float64
	Label         string
	Minutes       []minute // the latest first
}

// A minute counts the calls that ended in a minute.
type minute struct {
	Ago           int
	Calls, Failed int64
}

func newRecentChart(recent []activity.Interval) recentChart {
	const inMinute = 6
	calls, failed := make([]float64, len(recent)), make([]float64, len(recent))
	minutes := make([]minute, (len(recent)+inMinute-1)/inMinute)
	var peak float64
	var total minute
	for i, interval := range recent {
		calls[i], failed[i] = float64(interval.Calls)/10, float64(interval.Failed)/10
		peak = max(peak, calls[i])
		m := &minutes[(len(recent)-1-i)/inMinute]
		m.Calls, m.Failed = m.Calls+interval.Calls, m.Failed+interval.Failed
		total.Calls, total.Failed = total.Calls+interval.Calls, total.Failed+interval.Failed
	}
	for i := range minutes {
		minutes[i].Ago = i
	}
	top := ceiling(peak)
	return recentChart{
		Calls: steps(calls, top), Failed: steps(failed, top), Top: top, Minutes: minutes,
		Label: fmt.Sprintf("Calls in the last ten minutes: %d, of which %d failed; at most %s per second",
			total.Calls, total.Failed, rate(peak)),
	}
}

// A toolBar shows how much of a tool's results was sent to agents. A bar without a label is hidden.
type toolBar struct {
	adminapi.ToolSaving
	Label          string
	Whole, Reached string // bar widths
}

func newToolBars(tools []adminapi.ToolSaving) (bars [10]toolBar) {
	var most float64
	for _, tool := range tools[:min(len(tools), len(bars))] {
		most = max(most, float64(tool.Received), float64(tool.Sent))
	}
	for i := range bars {
		bars[i].Whole, bars[i].Reached = "0%", "0%"
		if i >= len(tools) {
			continue
		}
		tool := tools[i]
		bars[i] = toolBar{
			ToolSaving: tool, Label: toolLabel(tool.Tool),
			Whole: share(float64(tool.Received), most), Reached: share(float64(min(tool.Sent, tool.Received)), most),
		}
	}
	return bars
}

// toolLabel returns the display name of a tool.
func toolLabel(tool activity.Tool) string {
	switch {
	case tool.IsOthers():
		return "all others"
	case tool.Server == "":
		return tool.Name
	}
	return tool.Server + " › " + tool.Name
}

// A dayColumn shows the tokens saved on a day.
type dayColumn struct {
	adminapi.DaySaving
	Day    string // such as 17 Nov
	Y      string
	Height string
}

func newDayColumns(days []adminapi.DaySaving) []dayColumn {
	var most float64
	for _, day := range days {
		most = max(most, float64(day.Tokens))
	}
	columns := make([]dayColumn, len(days))
	for i, day := range days {
		columns[i] = dayColumn{DaySaving: day, Day: day.Date, Height: share(float64(day.Tokens), most)}
		if most > 0 {
			columns[i].Y = share(most-float64(day.Tokens), most)
		} else {
			columns[i].Y = "100%"
		}
		if date, err := time.Parse(time.DateOnly, day.Date); err == nil {
			columns[i].Day = date.Format("2 Jan")
		}
	}
	return columns
}
