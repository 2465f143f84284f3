package setting

import (
	"math"
	"testing"
)

func TestEnvInt(t *testing.T) { // P59
	tests := []struct {
		name, value string
		want        int
		ok          bool
	}{
		{"a number", "128", 128, true},
		{"a negative number", "-5", -5, true},
		{"a number with spaces around it", " 7\t\n", 7, true},
		{"a number with a sign", "+7", 7, true},
		{"a number too large for int", "99999999999999999999", math.MaxInt, true},
		{"a negative number too large for int", "-99999999999999999999", math.MinInt, true},
		{"an empty value", "", 0, false},
		{"spaces", "  ", 0, false},
		{"a word", "many", 0, false},
		{"a fraction", "1.5", 0, false},
		{"a number with a unit", "20000ms", 0, false},
		{"two numbers", "1 2", 0, false},
		{"another base", "0x10", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("SETTING", tt.value)
			if n, ok := EnvInt("SETTING"); ok != tt.ok || ok && n != tt.want {
				t.Errorf("got %d, %t, want %d, %t", n, ok, tt.want, tt.ok)
			}
		})
	}
	t.Run("not set", func(t *testing.T) {
		if n, ok := EnvInt("SETTING_THAT_IS_NOT_SET"); ok {
			t.Errorf("got %d", n)
		}
	})
}

func TestClamp(t *testing.T) { // P59
	tests := []struct {
		name    string
		n, want int
		beyond  bool
	}{
		{"below", 0, 1, true},
		{"far below", math.MinInt, 1, true},
		{"at the lower limit", 1, 1, false},
		{"between", 64, 64, false},
		{"at the upper limit", 512, 512, false},
		{"above", 513, 512, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, beyond := Clamp(tt.n, 1, 512); got != tt.want || beyond != tt.beyond {
				t.Errorf("got %d, %t, want %d, %t", got, beyond, tt.want, tt.beyond)
			}
		})
	}
}
