package prune

import "context"

// Features returns the features of a request's lines, one row each, for the command train.
func Features(r *Request) [][]float32 {
	l := split(r.Text)
	never := func() bool { return false }
	wording := readWording(l, r.Goal, never)
	sheet, err := readFeatures(context.Background(), l, outlineOf(l, r.Source, never), r.Source, r.Goal, wording)
	if err != nil {
		return nil
	}
	rows := make([][]float32, l.len())
	for i := range rows {
		rows[i] = sheet.row(i)
	}
	return rows
}
