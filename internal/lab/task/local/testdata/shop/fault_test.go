package shop

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"
)

// injected reports whether this fault is active.
func injected(fault string) bool { return os.Getenv("SHOP_FAULT") == fault }

// tell prints lines of a failure that do not come from the test itself. The benchmark
// recognizes them by the mark at their start and removes it.
func tell(lines ...string) {
	for _, line := range lines {
		fmt.Println("\x01" + line)
	}
}

func TestLargeUpload(t *testing.T) {
	newTalker("large").say(t, "POST /uploads size=52428801")
	if injected("upload") {
		tell(`2026-03-09T10:14:07.310Z ERROR body of request 8813 cut after 52428800 bytes: http: request body too large`)
		t.Errorf("status of an upload of 52428801 bytes: got 413, want 201")
		t.Errorf("stored chunks: got 50, want 51")
	}
}

type cart struct{ owner *customer }

type customer struct{ name string }

//go:noinline
func (c *cart) greeting() string { return "Hello " + c.owner.name }

func TestGuestCart(t *testing.T) {
	newTalker("guest").say(t, "cart # opened by a guest")
	if injected("cart") {
		t.Log(new(cart).greeting())
	}
}

func TestGrossPrice(t *testing.T) {
	for _, test := range []struct {
		name             string
		net, percent     int
		want, unlessGood int
	}{
		{"books", 1000, 7, 1070, 1070},
		{"shoes", 4999, 19, 5949, 5948},
		{"nothing", 0, 19, 0, 0},
		{"half a cent", 50, 19, 60, 59},
		{"abroad", 2500, 0, 2500, 2500},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.want
			if injected("price") {
				got = test.unlessGood
			}
			if got != test.want {
				t.Errorf("%d cents with %d percent tax: got %d, want %d", test.net, test.percent, got, test.want)
			}
		})
	}
}

func TestSessionEnds(t *testing.T) {
	newTalker("ends").say(t, "clock set # minutes ahead")
	if injected("session") {
		t.Errorf("token of a session that ended 31m0s ago is still accepted")
		t.Fatalf("GET /account: got 200, want 401")
	}
}

func TestInvoiceLayout(t *testing.T) {
	newTalker("layout").say(t, "compare with testdata/invoice.golden")
	if injected("invoice") {
		t.Errorf("%s", strings.Join([]string{
			"invoice differs from testdata/invoice.golden (-want +got):",
			"  Invoice 2026-0113",
			"- Net          1,250.00 EUR",
			"- VAT 19 %       237.50 EUR",
			"- Total        1,487.50 EUR",
			"+ Net          1,250.00 EUR",
			"+ VAT 19 %       237.50 EUR",
			"+ Total        1,250.00 EUR",
			"  Payable within 14 days",
		}, "\n"))
	}
}

func TestParallelReservations(t *testing.T) {
	newTalker("parallel").say(t, "# buyers want the last of article #")
	if injected("stock") {
		tell(
			"==================",
			"WARNING: DATA RACE",
			"Write at 0x00c00012a0f8 by goroutine 41:",
			"  example.com/shop.(*warehouse).reserve()",
			"      /home/ci/shop/warehouse.go:88 +0x7c",
			"  example.com/shop.TestParallelReservations.func1()",
			"      /home/ci/shop/fault_test.go:101 +0x44",
			"",
			"Previous read at 0x00c00012a0f8 by goroutine 40:",
			"  example.com/shop.(*warehouse).available()",
			"      /home/ci/shop/warehouse.go:61 +0x3a",
			"  example.com/shop.TestParallelReservations.func1()",
			"      /home/ci/shop/fault_test.go:100 +0x30",
			"==================",
		)
		t.Errorf("race detected during execution of test")
	}
}

func TestNewsletter(t *testing.T) {
	newTalker("newsletter").say(t, "newsletter # goes to # customers")
	if injected("mail") {
		sent := make(chan bool)
		<-sent
	}
}

type hits []int

//go:noinline
func (h hits) page(n, size int) []int { return h[n*size : (n+1)*size] }

func TestLastPageOfHits(t *testing.T) {
	newTalker("page").say(t, "query # has 23 hits")
	if injected("search") {
		t.Log(make(hits, 23).page(2, 10))
	}
}

func TestMigrations(t *testing.T) {
	newTalker("migrations").say(t, "# migrations to apply")
	if injected("database") {
		tell("2026-03-09T10:14:09.002Z ERROR dial tcp 127.0.0.1:5432: connect: connection refused")
		log.SetFlags(0)
		log.SetPrefix("\x01")
		log.Fatal("migrate: no connection to the database after 5 attempts")
	}
}

func TestPaymentWebhook(t *testing.T) {
	newTalker("payment").say(t, "payment # confirmed by the provider")
	body := `{"status":"paid"}`
	if injected("webhook") {
		body = `<html><body>502 Bad Gateway</body></html>`
	}
	var event struct{ Status string }
	if err := json.Unmarshal([]byte(body), &event); err != nil {
		t.Fatalf("decode the event of the payment provider: %v\nbody: %s", err, body)
	}
}

func TestSupplierConnection(t *testing.T) {
	newTalker("supplier").say(t, "fetch prices of supplier #")
	if injected("certificate") {
		tell("2026-03-09T10:14:11.870Z WARN  supplier api.supplier.example unreachable, prices are 9 days old")
		t.Fatalf(`Get "https://api.supplier.example/prices": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-03-09T10:14:11Z is after 2026-02-28T23:59:59Z`)
	}
}

func TestExportIsCancelled(t *testing.T) {
	newTalker("cancelled").say(t, "client hung up after # rows")
	if injected("export") {
		t.Errorf("%s", strings.Join([]string{
			"found unexpected goroutines:",
			"[Goroutine 57 in state chan send, with example.com/shop.(*export).write on top of the stack:",
			"example.com/shop.(*export).write(...)",
			"\t/home/ci/shop/export.go:143",
			"created by example.com/shop.(*export).start in goroutine 52",
			"\t/home/ci/shop/export.go:97",
			"]",
		}, "\n"))
	}
}
