package mcppruner

import (
	"encoding/json"
	"math"
	"math/big"
	"testing"
)

// FuzzWhole compares parseWhole with math/big.
func FuzzWhole(f *testing.F) {
	for _, literal := range []string{"0", "-0", "-0.0e5", "1", "-1", "100.0", "1e2", "1.5", "15e-1", "150e-1", "1.50e1",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e400", "-1e400", "1e-400", "0.1e1",
		"123456789012345678901234567890e-20", "1e99999999999999999999", "0e-99999999999999999999"} {
		f.Add(literal)
	}
	f.Fuzz(func(t *testing.T, literal string) {
		var number json.Number
		if json.Unmarshal([]byte(literal), &number) != nil || literal != number.String() || len(literal) > 40 {
			return
		}
		n, ok := parseWhole(literal)
		if _, err := number.Float64(); err != nil {
			return // too large for a float64, and slow for math/big
		}
		want, isRat := new(big.Rat).SetString(literal)
		if !isRat {
			return // the exponent is too large for math/big
		}
		if ok != want.IsInt() {
			t.Fatalf("%s: whole %t, want %t", literal, ok, want.IsInt())
		}
		if !ok {
			return
		}
		exact := want.Num()
		switch {
		case exact.Cmp(big.NewInt(math.MaxInt64)) >= 0:
			if n != math.MaxInt64 {
				t.Fatalf("%s: got %d", literal, n)
			}
		case exact.Cmp(big.NewInt(math.MinInt64)) <= 0:
			if n != math.MinInt64 {
				t.Fatalf("%s: got %d", literal, n)
			}
		case exact.IsInt64() && exact.Int64() != int64(n):
			// Numbers with a fraction or exponent have the precision of a float64.
			if off := exact.Int64() - int64(n); -1<<53 < exact.Int64() && exact.Int64() < 1<<53 || off > 1024 || off < -1024 {
				t.Fatalf("%s: got %d", literal, n)
			}
		}
	})
}
