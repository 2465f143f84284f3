package prune

import "context"

func (r *Request) prune(ctx context.Context) (*Result, error) {
	l := split(r.Text)
	n := l.len()
	allowed := min(int(float64(n)*r.Options.MaxPruneRatio+1e-9), n-min(n, r.Options.MinKeepLines))
	if allowed <= 0 {
		return render(r, l, nil), ctx.Err()
	}
	start := (n - allowed) / 2
	return render(r, l, []block{{start, start + allowed, offGoal}}), ctx.Err()
}
