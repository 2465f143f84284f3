# Build, run and test the Caddy binary with every module of this project in it:
#
#	make -f xcaddy.mk run     build if needed, then serve the Caddyfile
#	make -f xcaddy.mk test    everything that must pass
#	make -f xcaddy.mk help    the other targets

MODULE := github.com/caddy-mcp-gateway/caddy-mcp-gateway
CADDY  := bin/caddy

# Everything that is not shipped is in a separate module: tests of the built binary,
# benchmarks, the conformance suite, and tools.
LAB := internal/lab

# xcaddy and `go test` use the same flags, so that they share one build cache. xcaddy's
# default -trimpath would split the cache. `go vet` is part of lint. Tests wait as long as
# they compute, so twice as many packages as processors are tested at a time.
TAGS := nobadger,nomysql,nopgx
export CGO_ENABLED := 0
export XCADDY_RACE_DETECTOR := 0
RACE := $(if $(filter 1,$(XCADDY_RACE_DETECTOR)),-race)
export XCADDY_GO_BUILD_FLAGS := -tags $(TAGS)

GO_VERSION := $(shell sed -n 's/^go //p' go.mod)
GO_FILES   := $(shell find . -name '*.go' -not -path '*/node_modules/*')
PAGES      := $(shell find . -name '*.md' -not -path '*/node_modules/*')
SOURCES    := $(filter-out %_test.go ./$(LAB)/% ./internal/mcptest/% ./internal/jsontest/% ./internal/loopback/% ./internal/await/%,$(GO_FILES))
EMBEDDED   := $(shell find modules internal/tokens -type f -not -name '*.go' -not -path '*/testdata/*')
GO_TEST    := test -vet=off -timeout 30m -tags $(TAGS) -p $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
FUZZTIME   ?= 60s
FUZZ       ?= Fuzz[A-Za-z0-9_]+

# Settings of a release. Variables of these names in the environment are ignored.
VERSION   :=
COMMIT    :=
PLATFORMS :=
NODE      :=
MIRROR    :=

# The version that Go gives a commit: its highest version tag, else a pseudo-version
# after the highest tag before it. A folder with changes gets the suffix -dirty, because
# no module can be required at Go's +dirty. A folder without .git, such as an unpacked
# archive, has no version, even inside another repository.
define DESCRIBE
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
commit=$$(test -e .git && TZ=UTC git log -1 --no-show-signature --date=format-local:%Y%m%d%H%M%S --format=%cd-%H "$${1:-HEAD}" --) ||
	{ echo v0.0.0-unknown; exit; }
commit=$$(echo "$$commit" | cut -c1-27)
tag() { git -c versionsort.suffix=- tag --sort=-version:refname "$$@" | grep -E '^v[01](\.(0|[1-9][0-9]*)){2}(-[0-9A-Za-z.-]+)?$$' | head -n 1; }
own=$$(tag --points-at "$${1:-HEAD}")
before=$$(tag --merged "$${1:-HEAD}")
case $$own,$$before in
,) version=v0.0.0-$$commit ;;
,*-*) version=$$before.0.$$commit ;;
,*) version=$${before%.*}.$$(($${before##*.} + 1))-0.$$commit ;;
*) version=$$own ;;
esac
test -n "$$1" || test -z "$$(git status --porcelain)" || version=$$version-dirty
echo "$$version"
endef
export DESCRIBE
PRINT_VERSION = $(if $(VERSION),echo '$(VERSION)',sh -c "$$DESCRIBE" describe '$(COMMIT)' 2>/dev/null)

# npm packages: official SDKs of MCP and of models for tests; example servers of MCP
# Apps (230 MB); other gateways for benchmarks; agents (1.9 GB); the public conformance
# suite of MCP.
PEERS         := $(LAB)/integration/peers
APPS          := $(LAB)/integration/apps
GATEWAY_PEERS := $(LAB)/bench/gateway/peers
CLIENTS       := $(LAB)/integration/clients
SUITE         := $(LAB)/conformance/suite
NPM_CI        := npm ci --no-audit --no-fund --loglevel=error --update-notifier=false

.DEFAULT_GOAL := help
.PHONY: help run build test unit race conformance chaos replicas clients fuzz bench bench-gateway bench-cache bench-prune bench-focus lint version release clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' xcaddy.mk | expand -t 15

run: build ## build if needed, then serve the Caddyfile
	@echo "starting Caddy; press Ctrl+C to stop it"
	@echo "  http://127.0.0.1:8080/mcp       all MCP servers as one: the address for your agent"
	@echo "  http://127.0.0.1:8080/v1        the model, old tool results masked: the base URL for your agent"
	@echo "  http://localhost:2019/metrics   metrics"
	@$(CADDY) run --config Caddyfile

build: $(CADDY) ## build bin/caddy

# xcaddy builds this folder with the version that Go gives its commit, which the binary
# reports. The module may be unpublished, so neither a proxy (GOPRIVATE) nor git (GOVCS)
# is used for it. A new commit alone does not trigger a build.
#
# Before it compiles, xcaddy's `go get` also downloads modules for tests of
# dependencies. Meanwhile `go build` compiles Caddy into the cache from which xcaddy
# links.
$(CADDY): $(SOURCES) $(EMBEDDED) go.mod go.sum xcaddy.mk $(LAB)/go.mod
	@command -v go >/dev/null || { echo "go not found: install Go $(GO_VERSION) or newer, see go.dev/doc/install"; exit 1; }
	@mkdir -p $(@D)
	@echo "building $(CADDY): takes some minutes the first time, log in $(CADDY).log"
	@version=$$($(PRINT_VERSION)) && \
	caddy=$$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2) && \
	echo "  compiling xcaddy" && \
	go -C $(LAB) build -o "$(CURDIR)/bin/" github.com/caddyserver/xcaddy/cmd/xcaddy && \
	echo "  downloading modules and compiling Caddy $$caddy" && \
	{ go build $(RACE) -tags $(TAGS) ./modules github.com/caddyserver/caddy/v2/cmd github.com/caddyserver/caddy/v2/modules/standard & \
		GOPRIVATE=$(MODULE) GOVCS=$(MODULE):off bin/xcaddy build $$caddy --output $(CADDY) \
		--with $(MODULE)/modules@$$version --replace "$(MODULE)@$$version=$(CURDIR)" || echo "xcaddy failed"; \
		wait; } 2>&1 | awk -v file=$(CADDY).log ' \
		{ print > file; fflush(file) } \
		/^go: downloading / && ++modules % 50 == 0 { print "    " modules " modules downloaded"; fflush() } \
		/ exec .* build / { print "  linking $(CADDY)"; fflush() } \
		/^xcaddy failed/ { failed = 1 } \
		END { exit failed }' || { tail -n 40 $(CADDY).log; exit 1; }

# Tests, and the programs that they start, keep little memory and make much garbage. With
# fewer collections they compute an eighth less.
unit: ## run the unit tests of the plugin alone
	GOGC=400 go $(GO_TEST) ./...

test: build $(PEERS)/node_modules $(APPS)/node_modules unit ## run all tests, including those of the built binary
	GOGC=400 go -C $(LAB) $(GO_TEST) ./...

# The tests of the binary use one with the race detector. It exits with an error if it
# found a race.
race: $(PEERS)/node_modules $(APPS)/node_modules ## the same with the race detector, which needs a C compiler
	$(MAKE) -f xcaddy.mk build CADDY=bin/caddy-race CGO_ENABLED=1 XCADDY_RACE_DETECTOR=1
	GOGC=400 CGO_ENABLED=1 go $(GO_TEST) -race ./...
	GOGC=400 CADDY="$(CURDIR)/bin/caddy-race" CGO_ENABLED=1 go -C $(LAB) $(GO_TEST) -race ./...

conformance: build $(SUITE)/node_modules ## the public suite, for servers behind the gateway and for the gateway as a client
	go -C $(LAB) run ./conformance

clients: build $(CLIENTS)/node_modules $(PEERS)/node_modules ## test docs/clients.md with Claude Code, Codex, Gemini CLI and other agents; needs 1.9 GB
	CLIENTS=installed go -C $(LAB) $(GO_TEST) ./integration -run 'Client|Inspector|ClaudeDesktop' -v

$(CLIENTS)/node_modules: $(CLIENTS)/package-lock.json
	$(NPM_CI) --prefix $(CLIENTS) && touch $@

$(SUITE)/node_modules: $(SUITE)/package-lock.json
	@echo "installing the conformance suite"
	@$(NPM_CI) --prefix $(SUITE) && touch $@

$(PEERS)/node_modules $(APPS)/node_modules: %/node_modules: %/package-lock.json
	@if command -v npm >/dev/null; then \
		echo "installing the official MCP and model SDKs for the tests, and servers"; $(NPM_CI) --prefix $* && touch $@; \
	else echo "npm not found: the tests against the official SDKs will be skipped"; fi

chaos: build ## long fault injection around the built Caddy, with a report
	CHAOS=long go -C $(LAB) test -timeout 90m -count=1 -v -tags $(TAGS) ./chaos

replicas: build ## compare three replicas that share a Redis with one process; needs redis-server
	REPLICAS=long go -C $(LAB) test -timeout 90m -count=1 -v -tags $(TAGS) ./replicas

# At the end of FUZZTIME go test may fail without a failing input (go.dev/issue/75804).
fuzz: ## run every fuzz target for FUZZTIME, or one: FUZZ=FuzzMasker
	@targets=$$(grep -roE --include='*_test.go' '^func $(FUZZ)\(' internal modules | sort); \
	test -n "$$targets" || { echo "there is no fuzz target $(FUZZ)"; exit 1; }; \
	echo "$$targets" | while IFS=':(' read -r file func _; do \
		printf '%-24s %-29s ' "$${file%/*}" "$${func#func }"; \
		if out=$$(go $(GO_TEST) "./$${file%/*}" -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x 2>&1) || \
			{ echo "$$out" | grep -q 'context deadline exceeded' && ! echo "$$out" | grep -q 'Failing input'; }; \
		then echo "$$(echo "$$out" | sed -n 's/.*\(execs: [0-9]*\).*/\1/p' | tail -n 1)"; \
		else echo failed; echo "$$out"; exit 1; fi; \
	done

bench: build ## throughput and memory, as ratios to named baselines; flags in BENCHFLAGS
	go -C $(LAB) run ./bench $(BENCHFLAGS)

# Docker's gateway replaces a module in its go.mod, so it must be built in its own
# folder.
bench-gateway: DOCKER_GATEWAY := v0.28.0
bench-gateway: build $(GATEWAY_PEERS)/npm/node_modules ## compare this gateway with others, 25 minutes; flags in BENCHFLAGS
	-go -C $(LAB) build -o "$(CURDIR)/bin/peers/" ./bench/gateway/peers/go/relay github.com/TBXark/mcp-proxy
	-dir=$$(go mod download -json github.com/docker/mcp-gateway@$(DOCKER_GATEWAY) | sed -n 's/^.*"Dir": "\(.*\)",$$/\1/p') && \
	go -C "$$dir" build -o "$(CURDIR)/bin/peers/" \
		-ldflags '-X github.com/docker/mcp-gateway/cmd/docker-mcp/version.Version=$(DOCKER_GATEWAY)' ./cmd/docker-mcp
	go -C $(LAB) build -o "$(CURDIR)/bin/bench-gateway" ./bench/gateway
	bin/bench-gateway $(BENCHFLAGS)

$(GATEWAY_PEERS)/npm/node_modules: $(GATEWAY_PEERS)/npm/package-lock.json
	@$(NPM_CI) --ignore-scripts --prefix $(GATEWAY_PEERS)/npm && touch $@ || \
	echo "npm is missing or fails: the tables will say so for the gateways that come from it"

bench-cache: ## simulated cost of masking with a prompt cache; flags in CACHEFLAGS
	go -C $(LAB) run ./bench/cache $(CACHEFLAGS)

bench-prune: ## compare pruning with simpler methods; flags and repositories in PRUNEFLAGS
	go mod download
	go -C $(LAB) run ./bench/prune $(PRUNEFLAGS)

bench-focus: ## compare focus with simpler methods; flags and repositories in FOCUSFLAGS
	go mod download
	go -C $(LAB) run ./bench/focus $(FOCUSFLAGS)

# govulncheck needs a database, VULNDB. A scan of the modules first shows whether it is
# reachable.
lint: VULNDB ?= https://vuln.go.dev
lint: ## gofmt, go vet, staticcheck, revive, misspell, prose, actionlint, govulncheck
	@test -z "$$(gofmt -l $(GO_FILES))" || { gofmt -d $(GO_FILES); exit 1; }
	go -C $(LAB) build -o "$(CURDIR)/bin/" ./prose honnef.co/go/tools/cmd/staticcheck \
		github.com/mgechev/revive github.com/golangci/misspell/cmd/misspell \
		github.com/rhysd/actionlint/cmd/actionlint golang.org/x/vuln/cmd/govulncheck
	bin/prose .
	@echo misspell
	@bin/misspell -error -locale US -i cancelled,cancelling -source=go $(GO_FILES)
	@bin/misspell -error -locale US -i cancelled,cancelling $(PAGES)
	bin/actionlint -shellcheck= -pyflakes=
	@for module in . $(LAB); do \
		echo "go vet, staticcheck and revive in $$module"; \
		(cd $$module && go vet -tags $(TAGS) ./... && "$(CURDIR)/bin/staticcheck" -tags $(TAGS) ./... && \
			"$(CURDIR)/bin/revive" -config "$(CURDIR)/$(LAB)/revive.toml" -set_exit_status ./...) || exit 1; \
	done
	@if bin/govulncheck -db $(VULNDB) -C modules -scan module 2>&1 | grep -q 'fetching vulnerabilities'; then \
		echo "govulncheck skipped: the database of vulnerabilities cannot be reached"; \
	else \
		echo "govulncheck" && bin/govulncheck -db $(VULNDB) -tags $(TAGS) ./...; \
	fi

version: ## print the version of this folder
	@$(PRINT_VERSION)

# VERSION=v1.2.3 is for a commit without a tag, COMMIT=HEAD for a folder with other
# changes, PLATFORMS="linux/amd64 linux/arm64" for some platforms, NODE=false for a
# machine without npm or mmdebstrap, MIRROR for the Debian packages of an older commit.
release: ## archives, Debian packages and container images in dist, with reproducible checksums
	@version=$$($(PRINT_VERSION)) && \
	go -C $(LAB) run ./release -version "$$version" -commit '$(COMMIT)' -platforms '$(PLATFORMS)' $(if $(NODE),-node='$(NODE)') -mirror '$(MIRROR)'

clean: ## remove what was built
	rm -rf bin dist $(PEERS)/node_modules $(APPS)/node_modules $(SUITE)/node_modules $(CLIENTS)/node_modules $(GATEWAY_PEERS)/npm/node_modules
