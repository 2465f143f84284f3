package shop

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func number(variable string) uint64 {
	n, err := strconv.ParseUint(os.Getenv(variable), 10, 64)
	if err != nil {
		panic(variable + ": " + err.Error())
	}
	return n
}

// A talker prints messages of a program that works.
type talker struct {
	*rand.Rand
	clock time.Time
}

func newTalker(area string) *talker {
	h := fnv.New64a()
	h.Write([]byte(area))
	r := rand.New(rand.NewPCG(number("SHOP_SEED"), h.Sum64()))
	return &talker{r, time.Date(2026, 3, 1+r.IntN(28), r.IntN(24), r.IntN(60), 0, 0, time.UTC)}
}

// area is a test of something that works: cases that print messages, until the wanted
// number of lines is reached.
func area(t *testing.T, name string, cases, messages []string) {
	k := newTalker(name)
	for said := 0; said < int(number("SHOP_LINES")); {
		lines := 1 + k.IntN(5)
		t.Run(k.pick(cases), func(t *testing.T) {
			for range lines {
				k.say(t, k.pick(messages))
			}
		})
		said += lines + 2
	}
}

func (k *talker) pick(from []string) string { return from[k.IntN(len(from))] }

// say prints a message with numbers filled in, through the test or as a server's log.
func (k *talker) say(t *testing.T, message string) {
	for strings.Contains(message, "#") {
		message = strings.Replace(message, "#", strconv.Itoa(k.IntN(9000)+1), 1)
	}
	if k.IntN(2) == 0 {
		t.Log(message)
		return
	}
	k.clock = k.clock.Add(time.Duration(k.IntN(900)) * time.Millisecond)
	level := []string{"DEBUG", "INFO", "INFO", "INFO", "WARN"}[k.IntN(5)]
	fmt.Printf("%s %-5s %s\n", k.clock.Format("2006-01-02T15:04:05.000Z"), level, message)
}

// Messages of every area. Some look alarming at first sight.
var server = []string{
	"GET /health 200 #us request_id=#",
	"pool: # idle connections, # in use",
	"config reloaded from /etc/shop/shop.toml in #us",
	"gc: heap # kB, pause #us",
	"retry 1 of 3 after #ms: want an error, got one as expected",
	"rejected request # with 400 as it should be",
	"metrics: errors=0 panics=0 requests=#",
	"feature failure_injection is off",
	"cache hit ratio 0.#",
	"tracing: exported # spans",
}

func with(messages ...string) []string { return append(messages, server...) }

func TestCatalog(t *testing.T) {
	area(t, "catalog", []string{"list", "filter by colour", "page", "unknown product", "sorted by price"}, with(
		"GET /products?page=# 200 #us", "loaded # products from the fixture", "product # has # variants",
		"filter colour=red leaves # products", "thumbnail of product # is # bytes"))
}

func TestOrders(t *testing.T) {
	area(t, "orders", []string{"place", "cancel", "partial delivery", "address missing", "two parcels"}, with(
		"POST /orders 201 #us order=#", "order # is paid", "order # is split into # parcels",
		"order # cancelled by customer #", "stock of article # reserved for order #"))
}

func TestUploads(t *testing.T) {
	area(t, "uploads", []string{"small file", "resume", "image", "empty file", "checksum"}, with(
		"POST /uploads 201 #us size=#", "upload # resumed at byte #", "checksum of upload # is fine",
		"file # stored in # chunks", "upload # scanned, nothing found"))
}

func TestCarts(t *testing.T) {
	area(t, "carts", []string{"add", "remove", "merge after login", "voucher", "quantity"}, with(
		"cart # has # items", "PUT /carts/# 200 #us", "voucher # taken off cart #",
		"cart # of customer # merged into cart #", "cart # expires in # minutes"))
}

func TestPrices(t *testing.T) {
	area(t, "prices", []string{"rebate", "currency", "per unit", "rounding of halves", "list"}, with(
		"price of article # is #.50 EUR", "rebate of # percent for customer #", "tax table has # rows",
		"exchange rate of # currencies loaded", "# prices imported in #us"))
}

func TestSessions(t *testing.T) {
	area(t, "sessions", []string{"login", "logout", "refresh", "two devices", "wrong password"}, with(
		"session # opened for customer #", "POST /login 200 #us", "token # renewed for # minutes",
		"session # closed by logout", "login of customer # refused: wrong password, 401 as expected"))
}

func TestInvoices(t *testing.T) {
	area(t, "invoices", []string{"number", "pdf", "reverse charge", "credit note", "due date"}, with(
		"invoice # written for order #", "PDF of invoice # has # pages", "invoice # is due in # days",
		"credit note # for invoice #", "total of invoice # is #.10 EUR"))
}

func TestStock(t *testing.T) {
	area(t, "stock", []string{"reserve", "release", "count", "two warehouses", "sold out"}, with(
		"article #: # in warehouse #", "reserved # of article #", "released # of article #",
		"article # is sold out, 409 as expected", "stocktaking # took #us"))
}

func TestMail(t *testing.T) {
	area(t, "mail", []string{"order confirmation", "newsletter", "bounce", "attachment", "unsubscribe"}, with(
		"mail # queued for customer #", "mail # delivered in #us", "bounce of mail # noted",
		"template confirmation rendered in #us", "queue of mails is # long"))
}

func TestSearch(t *testing.T) {
	area(t, "search", []string{"one word", "phrase", "no result", "typo", "synonyms"}, with(
		"GET /search?q=shoes 200 #us hits=#", "index has # documents", "query # took #us, # hits",
		"synonyms of # words loaded", "no hits for query #, offered # others"))
}

func TestDatabase(t *testing.T) {
	area(t, "database", []string{"migrate", "rollback", "prepared", "transaction", "copy"}, with(
		"migration # applied in #us", "connection # to the database opened", "transaction # committed",
		"transaction # rolled back as expected", "# rows copied"))
}

func TestWebhooks(t *testing.T) {
	area(t, "webhooks", []string{"deliver", "signature", "retry", "disabled", "order of events"}, with(
		"webhook # delivered, 204 in #us", "signature of event # is fine", "event # queued for # endpoints",
		"endpoint # is disabled, skipped", "payload of event # is # bytes of JSON"))
}

func TestCertificates(t *testing.T) {
	area(t, "certificates", []string{"load", "chain", "renewal", "client", "two names"}, with(
		"certificate # valid for # days", "chain of # certificates verified", "TLS handshake # took #us",
		"renewal of certificate # is due in # days", "OCSP response # stapled"))
}

func TestExport(t *testing.T) {
	area(t, "export", []string{"csv", "empty", "quoted", "columns", "large"}, with(
		"export # has # rows", "wrote # bytes to export-#.csv", "export # finished in #us",
		"column # is empty and left out", "export # downloaded by customer #"))
}

func TestPermissions(t *testing.T) {
	area(t, "permissions", []string{"owner", "guest", "support", "admin", "forbidden"}, with(
		"customer # may read order #", "guest may not read order #, 403 as expected", "role support has # permissions",
		"policy loaded with # rules", "admin # took the place of customer #"))
}

func TestReports(t *testing.T) {
	area(t, "reports", []string{"daily", "by country", "top articles", "empty month", "year"}, with(
		"report # covers # orders", "revenue of day # is #.00 EUR", "country # has # orders",
		"report # rendered in #us", "nothing sold in month #, report is empty"))
}
