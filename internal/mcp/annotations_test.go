package mcp

import "testing"

func TestReadAnnotations(t *testing.T) {
	for _, test := range []struct {
		name, tool string
		want       Annotations
	}{
		{"none", `{"name":"x"}`, Destructive | OpenWorld},
		{"an empty object", `{"annotations":{}}`, Destructive | OpenWorld},
		{"read-only", `{"annotations":{"readOnlyHint":true}}`, ReadOnly | OpenWorld},
		{"read-only and destructive", `{"annotations":{"destructiveHint":true,"readOnlyHint":true}}`, ReadOnly | OpenWorld},
		{"the opposite of the defaults", `{"annotations":{"readOnlyHint":true,"idempotentHint":true,"openWorldHint":false}}`,
			ReadOnly | Idempotent},
		{"not destructive", `{"annotations":{"destructiveHint":false}}`, OpenWorld},
		{"escaped", `{"annotations":{"readOnly\u0048int":true}}`, ReadOnly | OpenWorld},
		{"a string", `{"annotations":{"readOnlyHint":"true"}}`, Unannotated},
		{"null", `{"annotations":{"destructiveHint":null}}`, Unannotated},
		{"another case", `{"annotations":{"ReadOnlyHint":true}}`, Unannotated},
		{"a hint twice", `{"annotations":{"readOnlyHint":true,"readOnlyHint":true}}`, Unannotated},
		{"annotations twice", `{"annotations":{"readOnlyHint":true},"annotations":{"readOnlyHint":true}}`, Unannotated},
		{"not an object", `{"annotations":[{"readOnlyHint":true}]}`, Unannotated},
		{"elsewhere", `{"_meta":{"annotations":{"readOnlyHint":true}},"readOnlyHint":true}`, Unannotated},
	} {
		if got := ReadAnnotations([]byte(test.tool)); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
