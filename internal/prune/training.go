package prune

import "context"

// Features returns what a request tells of its lines, one row each, for those who
// train the network: see the command train.
func Features(r *Request) [][]float32 {
	l := split(r.Text)
	never := func() bool { return false }
	sheet, err := read(context.Background(), l, outlineOf(l, r.Source, never), r.Source, r.Goal, readWording(l, r.Goal, never))
	if err != nil {
		return nil
	}
	rows := make([][]float32, l.len())
	for i := range rows {
		rows[i] = sheet.row(i)
	}
	return rows
}
