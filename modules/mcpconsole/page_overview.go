package mcpconsole

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var overviewPage = page{
	pattern: "/{$}", name: "overview", title: "Overview", show: showOverview, live: differences("overview", showOverview),
}

// An overview is what the page of this name shows.
type overview struct {
	adminapi.Overview
	Savings  adminapi.Savings
	Currency string
	Servers  int
	Down     []adminapi.ServerStatus // those of the servers that are known to be down
	Clients  int                     // sessions of clients with gateways
	Rate     float64                 // calls in a second, now
	Chart    recentChart
	Tools    [10]toolBar
	Days     []dayColumn
}

func showOverview(v *visit) (any, error) {
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

// newOverview puts the answers of the admin API together.
func newOverview(
	now adminapi.Overview, savings adminapi.Savings, servers []adminapi.ServerStatus, currency string, at time.Time,
) *overview {
	o := &overview{Overview: now, Savings: savings, Currency: currency, Servers: len(servers)}
	if currency == "" {
		o.Currency = "$"
	}
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

// Quiet reports whether nothing has gone through yet.
func (o *overview) Quiet() bool { return o.Total.Calls == 0 && o.Savings.Conversations.Calls == 0 }

// Money returns what a saving is worth, "" without a price.
func (o *overview) Money(saving adminapi.Saving) string {
	if o.Savings.Price == 0 {
		return ""
	}
	return money(o.Currency, saving.Money)
}

// Price returns what a million tokens cost.
func (o *overview) Price() string { return money(o.Currency, o.Savings.Price) }

// Reached returns which part of what servers sent has reached agents, for a bar.
func (o *overview) Reached() string { return share(float64(o.Total.Sent), float64(o.Total.Received)) }

// Cut returns how many bytes of what servers sent have not reached agents.
func (o *overview) Cut() int64 { return max(0, o.Total.Received-o.Total.Sent) }

// Up returns how many servers are not known to be down.
func (o *overview) Up() int { return o.Servers - len(o.Down) }

// currentRate returns how many calls there are in a second, by the last two intervals, of which the second is not over.
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

// A recentChart shows the calls of the last ten minutes.
type recentChart struct {
	Calls, Failed string // paths
	Top           float64
	Label         string
	Minutes       []minute // the latest first
}

// A minute has the calls that ended in a minute.
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
		Label: fmt.Sprintf("Calls in the last ten minutes: %d, of which %d failed; at most %s in a second",
			total.Calls, total.Failed, rate(peak)),
	}
}

// A toolBar shows how much of the results of a tool has reached agents. One without a name is not shown.
type toolBar struct {
	adminapi.ToolSaving
	Label          string
	Whole, Reached string // widths
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

// toolLabel returns what a tool is called.
func toolLabel(tool activity.Tool) string {
	switch {
	case tool == activity.Tool{}:
		return "all others"
	case tool.Server == "":
		return tool.Name
	}
	return tool.Server + " › " + tool.Name
}

// A dayColumn shows how much was kept out of contexts on a day.
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
