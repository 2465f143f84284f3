# Build, run and test the Caddy binary with every module of this project in it:
#
#	make -f xcaddy.mk run     build if needed, then serve the Caddyfile
#	make -f xcaddy.mk test    everything that must pass
#	make -f xcaddy.mk help    the other targets

MODULE := github.com/caddy-mcp-gateway/caddy-mcp-gateway
CADDY  := bin/caddy

# The same flags for xcaddy and for `go test`, so that both share one build
# cache and a fresh machine compiles Caddy once. No -trimpath, which is xcaddy's
# default: it would split the cache, and Caddy's test harness does not run with it.
TAGS := nobadger,nomysql,nopgx
export CGO_ENABLED := 0
export XCADDY_GO_BUILD_FLAGS := -tags $(TAGS)

GO_FILES := $(shell find . -name '*.go' -not -path '*/node_modules/*')
GO_TEST  := go test -timeout 30m -tags $(TAGS)
FUZZTIME ?= 60s
FUZZ     ?= Fuzz[A-Za-z0-9_]+

# Of a release. What the environment has under these names is about something else.
VERSION   :=
COMMIT    :=
PLATFORMS :=

# The official SDKs of MCP and of models, for the tests that talk to them.
PEERS := internal/integration/peers

# The gateways that bench-gateway sets this one beside.
GATEWAY_PEERS := internal/bench/gateway/peers

# Agents that people use, which take 1.3 GB.
CLIENTS := internal/integration/clients

# The public conformance suite of MCP.
SUITE := internal/conformance/suite

.DEFAULT_GOAL := help
.PHONY: help run build test race conformance chaos clients fuzz bench bench-gateway bench-cache bench-prune dashboard lint release clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' xcaddy.mk | expand -t 15

run: build ## build if needed, then serve the Caddyfile
	$(CADDY) run --config Caddyfile

build: $(CADDY) ## build bin/caddy

# go.sum pins every dependency, so after the download nothing needs the network.
# With the proxy off nobody is asked for versions of this module, which a registry
# that does not know it would refuse. xcaddy then complains of test dependencies
# that it does not need: its output goes to a file and is shown only if it fails.
# The module is replaced under the version of this folder, which is what the binary
# then says it has. A new commit alone builds nothing: the binary is of the one before.
$(CADDY): $(filter-out %_test.go,$(GO_FILES)) go.mod go.sum xcaddy.mk
	@mkdir -p $(@D)
	@echo "building $(CADDY), log in $(CADDY).log"
	@go mod download
	@version=$$(go run ./internal/release -describe -version '$(VERSION)') || exit 1; \
	GOPROXY=off GOSUMDB=off go tool xcaddy build \
		$$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2) \
		--with $(MODULE)/modules@$$version --replace $(MODULE)@$$version=. --output $(CADDY) \
		>$(CADDY).log 2>&1 || { cat $(CADDY).log; exit 1; }

test: build $(PEERS)/node_modules ## run every test, those of the built binary included
	$(GO_TEST) ./...

race: build $(PEERS)/node_modules ## the same under the race detector, which needs a C compiler
	CGO_ENABLED=1 $(GO_TEST) -race ./...

conformance: build $(SUITE)/node_modules ## the public suite: what a server passes directly, it passes behind the gateway
	go run ./internal/conformance -caddy $(CADDY)

clients: build $(CLIENTS)/node_modules $(PEERS)/node_modules ## Claude Code, Codex, Cline, Continue and Inspector do what docs/clients.md says; needs 1.3 GB
	CLIENTS=installed $(GO_TEST) ./internal/integration -run 'Client|Inspector|ClaudeDesktop' -v

$(CLIENTS)/node_modules: $(CLIENTS)/package-lock.json
	npm ci --no-audit --no-fund --prefix $(CLIENTS) && touch $@

$(SUITE)/node_modules: $(SUITE)/package-lock.json
	npm ci --no-audit --no-fund --prefix $(SUITE) && touch $@

$(PEERS)/node_modules: $(PEERS)/package-lock.json
	@if command -v npm >/dev/null; then npm ci --no-audit --no-fund --prefix $(PEERS) && touch $@; \
	else echo "npm not found: the tests against the official SDKs will be skipped"; fi

chaos: build ## break what is around the built Caddy, at length, and print how it was survived
	CHAOS=long go test -timeout 90m -count=1 -v -tags $(TAGS) ./internal/chaos

# At the end of FUZZTIME go test may fail without an input that does (go.dev/issue/75804).
fuzz: ## fuzz every parser of foreign bytes, FUZZTIME each, or one of them: FUZZ=FuzzMasker
	@targets=$$(grep -roE --include='*_test.go' '^func $(FUZZ)\(' internal modules | sort); \
	test -n "$$targets" || { echo "there is no fuzz target $(FUZZ)"; exit 1; }; \
	echo "$$targets" | while IFS=':(' read -r file func _; do \
		printf '%-24s %-29s ' "$${file%/*}" "$${func#func }"; \
		if out=$$($(GO_TEST) "./$${file%/*}" -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x 2>&1) || \
			{ echo "$$out" | grep -q 'context deadline exceeded' && ! echo "$$out" | grep -q 'Failing input'; }; \
		then echo "$$(echo "$$out" | sed -n 's/.*\(execs: [0-9]*\).*/\1/p' | tail -n 1)"; \
		else echo failed; echo "$$out"; exit 1; fi; \
	done

bench: build ## throughput and memory, as ratios to named baselines
	go run ./internal/bench -caddy $(CADDY)

bench-gateway: build $(GATEWAY_PEERS)/npm/node_modules ## this gateway beside others, 25 minutes; flags in BENCHFLAGS
	-cd $(GATEWAY_PEERS)/go && go build -o $(CURDIR)/bin/peers/ ./relay github.com/TBXark/mcp-proxy
	go run ./internal/bench/gateway -caddy $(CADDY) $(BENCHFLAGS)

$(GATEWAY_PEERS)/npm/node_modules: $(GATEWAY_PEERS)/npm/package-lock.json
	@npm ci --no-audit --no-fund --ignore-scripts --prefix $(GATEWAY_PEERS)/npm && touch $@ || \
	echo "npm is not there, or fails: the tables will say so of the gateways that come from it"

bench-cache: ## what masking costs where prompts are cached, simulated; flags in CACHEFLAGS
	go run ./internal/bench/cache $(CACHEFLAGS)

bench-prune: ## what pruning keeps and saves, beside simpler ways; flags in PRUNEFLAGS
	@go mod download
	go run ./internal/bench/prune $(PRUNEFLAGS)

dashboard: build ## draw docs/dashboard.svg from four minutes of a load; needs prometheus in PATH
	go run ./internal/dashboard -load 4m -caddy $(CADDY)

lint: ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l $(GO_FILES))" || { gofmt -d $(GO_FILES); exit 1; }
	go vet -tags $(TAGS) ./...
	go tool staticcheck -tags $(TAGS) ./...
	cd internal/conformance/gosdk && go vet ./...
	cd $(GATEWAY_PEERS)/go && go vet ./relay

# VERSION=v1.2.3 is for a commit without a tag, COMMIT=HEAD for a folder in which more
# has changed, PLATFORMS="linux/amd64 linux/arm64" for fewer than all.
release: ## archives for all platforms in dist, and their checksums, which anybody can reproduce
	go run ./internal/release -version '$(VERSION)' -commit '$(COMMIT)' -platforms '$(PLATFORMS)'

clean: ## remove what was built
	rm -rf bin dist $(PEERS)/node_modules $(SUITE)/node_modules $(CLIENTS)/node_modules $(GATEWAY_PEERS)/npm/node_modules
