package local

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A fault is a way to make a test of the shop in testdata fail, with goals in the words of
// people who see the symptom.
type fault struct {
	name, test string
	endsRun    bool // ends the test run
	hangs      bool // until the timeout
	goals      []string
}

var faults = []fault{
	{name: "upload", test: "TestLargeUpload", goals: []string{
		"why does the upload of large files fail?",
		"customers can not send us videos anymore, small pictures work",
		"which limit do big uploads run into?",
		"an upload of 50 MB is answered with 413 instead of 201",
		"find out what cuts off the request body",
	}},
	{name: "cart", test: "TestGuestCart", endsRun: true, goals: []string{
		"why does the cart crash for guests?",
		"the shop dies when someone who is not logged in opens the cart",
		"find the nil pointer dereference and where it comes from",
		"what happens to a cart without an owner?",
		"the greeting of the cart panics",
	}},
	{name: "price", test: "TestGrossPrice", goals: []string{
		"which gross prices are off by one cent?",
		"prices with tax are wrong for shoes",
		"is half a cent rounded up or down when tax is added?",
		"the amounts we show differ from those on the receipt",
		"find out for which articles the tax is computed wrongly",
	}},
	{name: "session", test: "TestSessionEnds", goals: []string{
		"why are customers still logged in after their session has expired?",
		"a token is accepted although it has ended",
		"the account page answers 200 when it should be 401",
		"do sessions really end after thirty minutes?",
		"security says that old tokens work, show me the evidence",
	}},
	{name: "invoice", test: "TestInvoiceLayout", goals: []string{
		"what is wrong with the total on invoices?",
		"the VAT is missing in the sum that customers have to pay",
		"how does the invoice differ from the golden file?",
		"accounting complains about invoices of 1,250.00 EUR",
		"show the difference between the expected and the actual invoice",
	}},
	{name: "stock", test: "TestParallelReservations", goals: []string{
		"why was the last article sold twice?",
		"is there a data race when several buyers reserve at once?",
		"which goroutines write to the warehouse at the same time?",
		"reservations get lost under load",
		"find the unsynchronised access in the stock of the warehouse",
	}},
	{name: "mail", test: "TestNewsletter", endsRun: true, hangs: true, goals: []string{
		"why does sending the newsletter never finish?",
		"the build hangs and is killed after a while",
		"which test timed out, and what was it waiting for?",
		"the newsletter is stuck on a channel",
		"no newsletter has gone out since Monday",
	}},
	{name: "search", test: "TestLastPageOfHits", endsRun: true, goals: []string{
		"why does the last page of the search results crash?",
		"slice bounds out of range when paging through hits",
		"customers see an internal error on page three of their search",
		"how is the page of hits cut when there are only 23?",
		"where does the search panic?",
	}},
	{name: "database", test: "TestMigrations", endsRun: true, goals: []string{
		"why can the migrations not be applied?",
		"the service does not start, it seems that the database is down",
		"connection refused on port 5432",
		"what made the program exit before all tests had run?",
		"how often do we try to reach the database before giving up?",
	}},
	{name: "webhook", test: "TestPaymentWebhook", goals: []string{
		"why are payments not marked as paid?",
		"the event of the payment provider can not be decoded",
		"we get HTML where JSON should be",
		"invalid character '<' looking for beginning of value",
		"what did the provider send to our webhook?",
	}},
	{name: "certificate", test: "TestSupplierConnection", goals: []string{
		"why are the prices of the supplier so old?",
		"the connection to the supplier can not be verified",
		"has a certificate expired?",
		"TLS to api.supplier.example is broken since March",
		"find out why the supplier is unreachable",
	}},
	{name: "export", test: "TestExportIsCancelled", goals: []string{
		"does a cancelled export leak goroutines?",
		"memory grows whenever a client hangs up during an export",
		"what still runs after the export was cancelled?",
		"the writer of the export blocks for ever",
		"which goroutine is left, and who created it?",
	}},
}

// Limits for logs in lines, and the number of tests in the shop that print most of them.
const (
	minLog, maxLog = 200, 3000
	areas          = 16
)

// logTasks runs the tests of a shop n times, each time with a fault.
func logTasks(seed uint64, n int) ([]task.Task, error) {
	s, err := openShop()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(s.directory)
	random := rand.New(rand.NewPCG(seed, 3))
	tasks := make([]task.Task, n)
	for i := range tasks {
		f := &faults[i%len(faults)]
		goal := f.goals[i/len(faults)%len(f.goals)]
		if tasks[i], err = s.task(f, goal, random); err != nil {
			return nil, fmt.Errorf("fault %s: %w", f.name, err)
		}
	}
	return tasks, nil
}

//go:embed testdata/shop/*.go
var shopFiles embed.FS

// A shop is the module under test, in a temporary directory.
type shop struct {
	directory string
	root      string // GOROOT
}

func openShop() (s shop, err error) {
	if s.root, err = runGo("env", "GOROOT"); err != nil {
		return s, err
	}
	if s.directory, err = os.MkdirTemp("", "shop"); err != nil {
		return s, err
	}
	if err = s.write(); err != nil {
		os.RemoveAll(s.directory)
	}
	return s, err
}

func (s *shop) write() (err error) {
	// Stack traces have the path without symbolic links.
	if s.directory, err = filepath.EvalSymlinks(s.directory); err != nil {
		return err
	}
	files, err := shopFiles.ReadDir("testdata/shop")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := shopFiles.ReadFile("testdata/shop/" + file.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.directory, file.Name()), text, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(s.directory, "go.mod"), []byte("module example.com/shop\n\ngo 1.24\n"), 0o600)
}

// task runs the tests until their output has an allowed length. If a fault ends the run early,
// the output may be too short.
func (s shop) task(f *fault, goal string, random *rand.Rand) (task.Task, error) {
	for range 50 {
		wanted := minLog * math.Pow(maxLog/minLog, random.Float64())
		if f.endsRun {
			wanted *= 2
		}
		out, err := s.test(f, int(wanted/areas), random.Uint64(), random.Int64N(1e6)+1)
		if err != nil {
			return task.Task{}, err
		}
		lines := prune.Lines(s.normalize(out))
		if len(lines) < minLog || len(lines) > maxLog {
			continue
		}
		return failureTask(f.test, goal, lines)
	}
	return task.Task{}, errors.New("no log of an allowed length")
}

// test returns the output of go test -v for a shop with a fault. Shuffle is the seed for the
// order of the tests.
func (s shop) test(f *fault, lines int, seed uint64, shuffle int64) (string, error) {
	timeout := "60s"
	if f.hangs {
		timeout = "3s" // all other tests take milliseconds
	}
	command := exec.Command("go", "test", "-v", "-count=1", "-vet=off", "-timeout="+timeout, "-shuffle="+
		strconv.FormatInt(shuffle, 10))
	command.Dir = s.directory
	command.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "GOTOOLCHAIN=local",
		"CGO_ENABLED=0", "GOTRACEBACK=single",
		"SHOP_FAULT="+f.name, "SHOP_LINES="+strconv.Itoa(lines), "SHOP_SEED="+strconv.FormatUint(seed, 10))
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := command.Run(); err == nil {
		return "", errors.New("the tests pass")
	} else if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		return "", err
	}
	return out.String(), nil
}

var (
	duration  = regexp.MustCompile(`\(\d+\.\d+s\)`)
	elapsed   = regexp.MustCompile(`(?m)\t\d+\.\d+s$`)
	running   = regexp.MustCompile(`(?m)^(\t\tTest\w+) \(\d+s\)$`)
	address   = regexp.MustCompile(`0x[0-9a-f]{6,}`)
	goroutine = regexp.MustCompile(`goroutine ([2-9]|\d\d+)\b`)
)

// normalize replaces everything that differs between runs and machines.
func (s shop) normalize(out string) string {
	out = strings.ReplaceAll(out, s.directory, "/home/ci/shop")
	out = strings.ReplaceAll(out, s.root, "/usr/local/go")
	out = duration.ReplaceAllString(out, "(0.00s)")
	out = elapsed.ReplaceAllString(out, "\t0.041s")
	out = running.ReplaceAllString(out, "$1 (3s)")
	out = address.ReplaceAllString(out, "0xc000012340")
	return goroutine.ReplaceAllString(out, "goroutine 21")
}

// failureTask returns the task to find the failure of a test in a log.
func failureTask(test, goal string, lines []string) (task.Task, error) {
	t := task.Task{Goal: goal, Source: prune.Logs}
	relevant := failureLines(test, lines)
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, mark)
		if relevant[i] && strings.TrimSpace(lines[i]) != "" {
			t.Relevant = append(t.Relevant, i+1)
		}
	}
	t.Text = joinLines(lines)
	if len(t.Relevant) == 0 {
		return task.Task{}, fmt.Errorf("no lines about the failure of %s", test)
	}
	return t, nil
}

// mark is the prefix of lines that a fault has printed.
const mark = "\x01"

// faultFile is the file of the failing tests, as in messages.
const faultFile = "fault_test.go:"

// failureLines reports which lines are about the failure of a test: the output of the fault,
// the messages of the test, its FAIL lines, and the message of a panic with the stacks that
// lead to the test. Earlier messages of such a test come from another file.
func failureLines(test string, lines []string) []bool {
	relevant := make([]bool, len(lines))
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch trimmed := strings.TrimLeft(line, " "); {
		case strings.HasPrefix(line, mark), strings.HasPrefix(trimmed, "--- FAIL: "+test):
			relevant[i] = true
		case strings.HasPrefix(trimmed, faultFile):
			relevant[i] = true
			for indent := len(line) - len(trimmed) + 4; i+1 < len(lines) && strings.HasPrefix(lines[i+1],
				strings.Repeat(" ", indent)); i++ {
				relevant[i+1] = true
			}
		case strings.HasPrefix(line, "panic: "):
			panicLines(lines, i, relevant)
			return relevant
		}
	}
	return relevant
}

// panicLines marks the message of a panic that starts at line start, and the stacks after it
// that lead to a fault.
func panicLines(lines []string, start int, relevant []bool) {
	end := start
	for ; end < len(lines) && lines[end] != ""; end++ {
		relevant[end] = true
	}
	for end < len(lines) {
		start = end + 1
		for end = start; end < len(lines) && lines[end] != "" && !closing.MatchString(lines[end]); end++ {
		}
		leads := strings.Contains(strings.Join(lines[start:end], "\n"), faultFile)
		for i := start; i < end; i++ {
			relevant[i] = leads
		}
	}
}

// closing matches the last lines of the go command's output.
var closing = regexp.MustCompile(`^(exit status \d+|FAIL\b.*)$`)
