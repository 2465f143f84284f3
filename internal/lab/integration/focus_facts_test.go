package integration

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A fact is a line within a large text. The goal asks for it in other words.
type fact struct {
	goal     string
	line     string
	want     string // part of the line that answers the goal; not in the goal
	nextGoal string // next goal if the first shares no word with the line
}

var codeFacts = []fact{
	{
		goal: "how many times is a failed upload tried again",
		line: "const maxUploadRetries = 47 // attempts before an upload is given up",
		want: "= 47",
	},
	{
		goal: "default port of the metrics listener",
		line: `var metricsAddress = flag.String("metrics.listen", ":9317", "where metrics are served")`,
		want: "9317",
	},
	{
		goal: "where is the password hash compared",
		line: "func verifyPasswordHash(stored, given []byte) int { return subtle.ConstantTimeCompare(stored, given) }",
		want: "ConstantTimeCompare(stored",
	},
	{
		goal: "the size of the queue for outgoing mail",
		line: "var mailQueue = make(chan *outgoingMail, 1536)",
		want: "1536",
	},
	{
		goal: "what does the cache do when an entry has expired",
		line: "func (c *entryCache) onExpired(k cacheKey) { c.refreshInBackground(k) }",
		want: "refreshInBackground(k)",
	},
	{
		goal: "which environment variable disables telemetry",
		line: `var telemetryDisabled = os.Getenv("ACME_NO_PHONE_HOME") != ""`,
		want: "ACME_NO_PHONE_HOME",
	},
	{
		goal: "known race in closing of sessions",
		line: "// BUG(kessler): closeSession races with renewSession if both hold a stale ticket.",
		want: "kessler",
	},
	{
		goal: "how long until an idle websocket is disconnected",
		line: "const websocketIdleTimeout = 95 * time.Second",
		want: "95 * time.Second",
	},
	{
		goal: "which error is returned if the disk quota is exceeded",
		line: `var errQuotaExceeded = errors.New("disk quota: volume is read-only until purge")`,
		want: "read-only until purge",
	},
	{
		goal: "the table that invoices are stored in",
		line: "const insertInvoice = `INSERT INTO billing_documents_v3 (id, customer, total) VALUES ($1, $2, $3)`",
		want: "billing_documents_v3",
	},
	{
		goal: "rate limit for anonymous users",
		line: "var anonymousLimiter = rate.NewLimiter(rate.Every(time.Minute/18), 6)",
		want: "time.Minute/18",
	},
	{
		goal: "which compression level do backups use",
		line: "func newBackupWriter(w io.Writer) (*gzip.Writer, error) { return gzip.NewWriterLevel(w, 7) }",
		want: "NewWriterLevel(w, 7)",
	},
	{
		goal: "minimum TLS version accepted from partners",
		line: "var partnerTLS = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: partnerHost}",
		want: "VersionTLS13, ServerName",
	},
}

var logFacts = []fact{
	{
		goal: "which settlement batch did the card processor refuse",
		line: "ERROR billing: card processor rejected settlement batch B-88213: currency mismatch",
		want: "B-88213",
	},
	{
		goal: "when does the TLS certificate expire",
		line: "WARN  tls: certificate for shop.example.com expires in 41 hours, renewal has not been tried",
		want: "41 hours",
	},
	{
		goal: "who deleted the production bucket",
		line: "INFO  audit: bucket prod-media-eu was removed, actor=svc-janitor, reason=retention",
		want: "svc-janitor",
	},
	{
		goal: "why was the pod killed, out of memory?",
		line: "ERROR kubelet: container recommender was OOMKilled, limit 768Mi, peak 771Mi",
		want: "771Mi",
	},
	{
		goal: "the stack overflow in the template renderer",
		line: "FATAL render: goroutine stack exceeds 1000000000-byte limit in template partial footer_promo",
		want: "footer_promo",
	},
	{
		goal: "replication lag of the standby",
		line: "WARN  postgres: standby pg-replica-3 is 94 MB behind, replication slot may be dropped",
		want: "94 MB",
	},
	{
		goal: "which feature flag was switched",
		line: "INFO  flags: flag checkout_one_click changed from off to 30% by deploy 7731",
		want: "checkout_one_click",
	},
	{
		goal: "failed login of the administrator from abroad",
		line: "WARN  auth: login of admin denied from 203.0.113.77, country not allowed",
		want: "203.0.113.77",
	},
	{
		goal: "the webhook that could not be delivered",
		line: "ERROR hooks: delivery to https://erp.example.org/in/orders given up after 12 attempts: 410 Gone",
		want: "erp.example.org",
	},
	{
		goal: "clock skew between the nodes",
		line: "WARN  ntp: node worker-19 clock differs by 8342 ms from its peers",
		want: "8342 ms",
	},
	{
		goal: "what was the checksum mismatch during restore",
		line: "ERROR restore: chunk 5518 checksum mismatch, expected 9f3ac1, read 77e0b2",
		want: "77e0b2",
	},
	{
		goal: "which customer hit the API quota",
		line: "WARN  api: quota of customer northwind-traders used up, 100000 of 100000 calls",
		want: "northwind-traders",
	},
	{
		goal: "did the nightly report job finish, and how many rows did it write",
		line: "INFO  cron: nightly report finished, 48817 rows written to warehouse",
		want: "48817 rows",
	},
}

var docFacts = []fact{
	{
		goal: "how can I turn off colored output",
		line: "Set `PLAIN_TERMINAL=1` to write without colors, such as in continuous integration.",
		want: "PLAIN_TERMINAL",
	},
	{
		goal:     "which license do the example images have",
		line:     "The pictures in the examples are under CC-BY-4.0; please credit the Harbour Archive.",
		want:     "Harbour Archive",
		nextGoal: "who is to be credited for the pictures",
	},
	{
		goal: "how to reset a forgotten master key",
		line: "If the master key is lost, run `vaultctl rekey --from-shares` with three of the five shares.",
		want: "--from-shares",
	},
	{
		goal: "maximum size of an attachment",
		line: "Attachments may have up to 24 MiB; larger ones are refused with status 413.",
		want: "24 MiB",
	},
	{
		goal: "is Windows on ARM supported",
		line: "Builds for Windows on ARM64 are experimental and have no installer before release 6.2.",
		want: "release 6.2",
	},
	{
		goal: "contact for reporting security problems",
		line: "Please send reports of vulnerabilities to disclosure@quillworks.example, encrypted if possible.",
		want: "disclosure@quillworks.example",
	},
	{
		goal: "when was the XML format removed",
		line: "Support for the XML format was dropped in 3.9, two years after it had been deprecated.",
		want: "dropped in 3.9",
	},
	{
		goal: "how do I raise the number of worker threads",
		line: "The option `pool.size` sets how many workers (threads) there are; 12 is the default.",
		want: "pool.size",
	},
	{
		goal: "what to do about a corrupted index",
		line: "A damaged index is rebuilt by `reindex --from-journal`, which takes about a minute per gigabyte.",
		want: "reindex --from-journal",
	},
	{
		goal: "which proxies are trusted by default",
		line: "By default the trusted proxies are those in 100.64.0.0/10, for that is where the mesh lives.",
		want: "100.64.0.0/10",
	},
	{
		goal: "how long are deleted projects kept",
		line: "A deleted project can be restored for 17 days; after that it is purged from all regions.",
		want: "17 days",
	},
	{
		goal: "where does the cache directory live on macOS",
		line: "On macOS cached files are in `~/Library/Caches/quill-blobs`, elsewhere below XDG_CACHE_HOME.",
		want: "quill-blobs",
	},
}

var jsonFacts = []fact{
	{
		goal: "the ticket about coffee machine on the third floor",
		line: "The coffee maker on floor three leaks; facilities asked for part ZX-81.",
		want: "ZX-81",
	},
	{
		goal: "invoice that was paid twice",
		line: "Invoice 2025-0917 has been paid twice by Meridian Foods, refund is pending.",
		want: "Meridian Foods",
	},
	{
		goal: "who reported the broken elevator",
		line: "Elevator B is broken again, reported by Tomasz from the mail room.",
		want: "Tomasz",
	},
	{
		goal: "the crash when exporting to PDF",
		line: "Export to PDF crashes with signal 11 if the page has more than 64 footnotes.",
		want: "64 footnotes",
	},
	{
		goal: "laptop stolen at the airport",
		line: "Laptop with asset tag LT-4471 was stolen at an airport, disk is encrypted.",
		want: "LT-4471",
	},
	{
		goal: "translation mistake in the Portuguese version",
		line: "In Portuguese the translation of checkout is wrong: it says vistoria.",
		want: "vistoria",
	},
	{
		goal: "request for more disk space on the build server",
		line: "Build server bs-09 needs more disk, 2 TB of space requested.",
		want: "bs-09",
	},
	{
		goal: "slow search for long product names",
		line: "Product search is slow if names are long: 11.4 seconds at 300 characters.",
		want: "11.4 seconds",
	},
	{
		goal: "customers who cannot unsubscribe from the newsletter",
		line: "The unsubscribe link of the newsletter leads to a 404 for customers of campaign WINTER-7.",
		want: "WINTER-7",
	},
	{
		goal: "wrong tax on shipments to Norway",
		line: "Shipments to Norway are taxed at 19 instead of 25 percent since rule NO-VAT-3.",
		want: "NO-VAT-3",
	},
	{
		goal: "accessibility of the login dialog with a screen reader",
		line: "A screen reader does not announce errors in the login dialog, see WCAG 4.1.3.",
		want: "WCAG 4.1.3",
	},
	{
		goal: "vacation calendar shows the wrong weekday",
		line: "The calendar of vacations begins with the wrong weekday in locale fa-IR.",
		want: "fa-IR",
	},
}

// A haystack is a text that contains a fact.
type haystack struct {
	fact
	name string // of the file
	text string
}

// minSize and maxSize are the approximate sizes of these texts in bytes.
const minSize, maxSize = 20_000, 500_000

// haystacks puts each fact into a text of its kind. The texts are the same in every run with the
// same Go and modules.
func haystacks(t *testing.T) (all []haystack) {
	t.Helper()
	sources, documents := goSources(t), markdown(t)
	for i, f := range codeFacts {
		text := sources[i*len(sources)/len(codeFacts)]
		all = append(all, haystack{f, fmt.Sprintf("code%02d.go", i), insertLine(text, "\n}\n", i, f.line)})
	}
	for i, f := range logFacts {
		text := serviceLog(i, sizeOf(i, len(logFacts)), f.line)
		all = append(all, haystack{f, fmt.Sprintf("service%02d.log", i), text})
	}
	for i, f := range docFacts {
		text := joinUpTo(documents[i%len(documents):], sizeOf(i, len(docFacts)))
		all = append(all, haystack{f, fmt.Sprintf("document%02d.md", i), insertLine(text, "\n\n", i, f.line+"\n")})
	}
	for i, f := range jsonFacts {
		text := tickets(t, i, sizeOf(i, len(jsonFacts)), f.line)
		all = append(all, haystack{f, fmt.Sprintf("tickets%02d.json", i), text})
	}
	for _, p := range all {
		if strings.Count(p.text, p.want) != 1 || strings.Contains(p.goal, p.want) {
			t.Fatalf("%s: %q occurs %d times in the text", p.name, p.want, strings.Count(p.text, p.want))
		}
		if len(p.text) < minSize || len(p.text) > maxSize+10_000 {
			t.Fatalf("%s: got %d bytes", p.name, len(p.text))
		}
	}
	return all
}

// sizeOf returns the size of text i of n. Sizes are evenly distributed.
func sizeOf(i, n int) int { return minSize + i*(maxSize-minSize)/(n-1) }

// placeOf returns the position of fact i in a text of this size, outside of head and tail.
func placeOf(i, size int) int { return size * (30 + 37*i%40) / 100 }

// insertLine inserts a line into a text, after a separator.
func insertLine(text, after string, i int, line string) string {
	index := placeOf(i, len(text))
	if next := strings.Index(text[index:], after); next >= 0 {
		index += next + len(after)
	}
	return text[:index] + line + "\n" + text[index:]
}

// goSources returns files of the standard library, from short to long.
func goSources(t *testing.T) (texts []string) {
	t.Helper()
	root := filepath.Join(goEnv(t, "GOROOT"), "src")
	walkFiles(t, root, ".go", func(path string, size int64) {
		if size >= minSize && size <= maxSize && !strings.HasSuffix(path, "_test.go") {
			texts = append(texts, readText(t, path))
		}
	})
	slices.SortStableFunc(texts, func(a, b string) int { return len(a) - len(b) })
	return texts
}

// markdown returns documents of the modules that the tests depend on.
func markdown(t *testing.T) (texts []string) {
	t.Helper()
	const caddy = "github.com/caddyserver/caddy/v2/modules/standard"
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Dir}}{{end}}", caddy)
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dirs := strings.Fields(string(out))
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		walkFiles(t, dir, ".md", func(path string, size int64) {
			if size >= 4_000 && size <= maxSize/4 {
				texts = append(texts, readText(t, path))
			}
		})
	}
	return texts
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// walkFiles visits the files with an extension, in order of name.
func walkFiles(t *testing.T, root, extension string, visit func(path string, size int64)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != extension:
			return nil
		}
		info, err := d.Info()
		if err == nil {
			visit(path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ToValidUTF8(string(text), "?")
}

// joinUpTo joins texts up to a size, at the end of a line.
func joinUpTo(texts []string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		b.WriteString(texts[i%len(texts)] + "\n\n")
	}
	text := b.String()[:size]
	return text[:strings.LastIndexByte(text, '\n')+1]
}

// timestamp returns the timestamp of line n of log i.
func timestamp(i, n int) string {
	began := time.Date(2026, 3, 1+i, 4, 0, 0, 0, time.UTC)
	return began.Add(time.Duration(n) * 317 * time.Millisecond).Format("2006-01-02T15:04:05.000Z")
}

// serviceLog returns the log of a shop with everyday failures and one planted line.
func serviceLog(seed, size int, planted string) string {
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	n := func(below int) int { return random.IntN(below) }
	pick := func(from ...string) string { return from[n(len(from))] }
	service := func() string { return pick("cart", "catalog", "checkout", "search", "accounts", "media") }
	var b strings.Builder
	for line := 0; b.Len() < size; line++ {
		b.WriteString(timestamp(seed, line) + " ")
		if planted != "" && b.Len() > placeOf(seed, size) {
			b.WriteString(planted + "\n")
			planted = ""
			continue
		}
		switch k := n(100); {
		case k < 55:
			fmt.Fprintf(&b, "INFO  http: %s /%s/%d %s in %d ms request=%08x",
				pick("GET", "GET", "POST", "PUT"), service(), n(90000),
				pick("200", "201", "204", "304", "404"), n(400), random.Uint32())
		case k < 70:
			fmt.Fprintf(&b, "DEBUG sql: select %s by id %d took %d us, %d rows", service(), n(90000), n(9000), n(20))
		case k < 78:
			fmt.Fprintf(&b, "INFO  queue: job %s-%d done after %d ms, %d waiting",
				pick("thumbnail", "mail", "export", "invoice"), n(9000), n(5000), n(40))
		case k < 84:
			fmt.Fprintf(&b, "INFO  auth: user %d logged in from 10.%d.%d.%d", n(90000), n(256), n(256), n(256))
		case k < 88:
			fmt.Fprintf(&b, "WARN  http: slow response of %s: %d ms", service(), 1000+n(4000))
		case k < 91:
			fmt.Fprintf(&b, "WARN  cache: %s evicted %d entries, memory is short", service(), n(500))
		case k < 94:
			fmt.Fprintf(&b, "ERROR http: upstream %s timed out after %d ms, request=%08x",
				service(), 5000+n(100), random.Uint32())
		case k < 96:
			fmt.Fprintf(&b, "ERROR queue: job %s-%d failed, attempt %d: connection reset by peer",
				pick("thumbnail", "mail", "export"), n(9000), 1+n(3))
		case k < 98:
			fmt.Fprintf(&b, "WARN  auth: login of user %d denied, wrong password", n(90000))
		default:
			fmt.Fprintf(&b, "INFO  deploy: %s %d.%d.%d is healthy on node worker-%d",
				service(), n(9), n(30), n(10), n(16))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// tickets returns a JSON array of records, one of which has this text.
func tickets(t *testing.T, seed, size int, text string) string {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(seed), 2))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	type ticket struct {
		ID       int      `json:"id"`
		Title    string   `json:"title"`
		State    string   `json:"state"`
		Assignee string   `json:"assignee"`
		Labels   []string `json:"labels"`
		Created  string   `json:"created"`
		Body     string   `json:"body"`
	}
	var all []ticket
	for total := 0; total < size; {
		title := pick("Cannot", "How to", "Please", "Again: cannot", "Question: how to") + " " +
			pick("open", "print", "share", "import", "rename", "archive") + " " +
			pick("a report", "an order", "my profile", "the dashboard", "old messages", "a document")
		next := ticket{
			1000 + len(all), title, pick("open", "closed", "waiting"), pick("ana", "boris", "chen", "dilek", "emeka"),
			[]string{pick("bug", "question", "wish"), pick("web", "mobile", "office")}, timestamp(seed, 900*len(all)),
			title + " " +
				pick("since the last update.", "on the new phone.", "from home.", "if the window is small.") + " " +
				pick("It worked before.", "Others see the same.", "The page stays white.", "It is not urgent."),
		}
		all = append(all, next)
		line, err := json.Marshal(next)
		if err != nil {
			t.Fatal(err)
		}
		total += len(line) + 1
	}
	all[placeOf(seed, len(all))].Body = text
	out, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
