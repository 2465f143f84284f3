# Build, run and test the Caddy binary with every module of this project in it:
#
#	make -f xcaddy.mk run     build if needed, then serve the Caddyfile
#	make -f xcaddy.mk test    everything that must pass
#	make -f xcaddy.mk help    the other targets

CADDY_VERSION := $(shell go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)
MODULE        := github.com/caddy-mcp-gateway/caddy-mcp-gateway
CADDY         := bin/caddy
SOURCES       := $(shell git ls-files -co --exclude-standard -- '*.go' go.mod go.sum 2>/dev/null || find . -name '*.go' -o -name 'go.*')

# The same flags for xcaddy and for `go test`, so that both share one build
# cache and a fresh machine compiles Caddy once. No -trimpath: xcaddy's default
# would split the cache, and Caddy's test harness refuses to run with it.
TAGS := nobadger,nomysql,nopgx
export CGO_ENABLED := 0
export XCADDY_GO_BUILD_FLAGS := -tags $(TAGS)

GOTEST   := go test -tags $(TAGS)
FUZZTIME ?= 60s

.PHONY: help run build test race fuzz bench lint clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: build ## build if needed, then serve the Caddyfile
	$(CADDY) run --config Caddyfile

build: $(CADDY) ## build bin/caddy with xcaddy

# go.sum pins every dependency, so after the download nothing needs the network:
# with the proxy off, nobody is asked for versions of this module, which a
# registry that does not know it would refuse.
$(CADDY): $(SOURCES)
	go mod download
	GOPROXY=off GOSUMDB=off go tool xcaddy build $(CADDY_VERSION) \
		--with $(MODULE)/modules --replace $(MODULE)=. --output $(CADDY)

test: build ## run every test, the built binary included
	$(GOTEST) ./...

race: build ## run every test under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GOTEST) -race ./...

lint: ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files -co --exclude-standard -- '*.go'))" || { gofmt -d $$(git ls-files -co --exclude-standard -- '*.go'); exit 1; }
	go vet -tags $(TAGS) ./...
	go tool staticcheck -tags $(TAGS) ./...

clean: ## remove what was built
	rm -rf bin
