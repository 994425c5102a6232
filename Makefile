# Everything a contributor runs by hand; .ci/run is made of the same targets.

.DEFAULT_GOAL := help
# One recipe, one shell, and a failure inside a pipe is a failure.
SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

PACKAGES ?= ./...
# Of one fuzz target, and of the chaos run.
FUZZTIME  ?= 30s
CHAOSTIME ?= 5m
# Of the bucket that is listed by make scale.
SCALE     ?= 1000000
# Of one benchmark of a stage, as go test takes it.
BENCHTIME ?= 1s
# Of one test binary; e2e waits for leases to run out.
TIMEOUT   ?= 15m

COMMANDS := worker producer tallyman
# What a command passes on the straight way. BenchmarkWrites is left out of it: it
# measures a server.
STAGES   := . ./command ./dedupe ./internal/pipeline ./kvstate ./lease ./stream

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  variables: PACKAGES=$(PACKAGES) FUZZTIME=$(FUZZTIME) CHAOSTIME=$(CHAOSTIME) SCALE=$(SCALE) BENCHTIME=$(BENCHTIME) TIMEOUT=$(TIMEOUT)"

.PHONY: build
build: ## compile static worker, producer and tallyman into ./bin
	CGO_ENABLED=0 go build -trimpath -o bin/ $(COMMANDS:%=./cmd/%)

.PHONY: test
test: ## run the tests
	go test -timeout $(TIMEOUT) $(PACKAGES)

.PHONY: race
race: ## run the tests under the race detector, as CI does
	GORACE=atexit_sleep_ms=10 go test -race -timeout $(TIMEOUT) $(PACKAGES)

.PHONY: sweep
sweep: ## run the tests of workers, desk and journal, and real faults, on pools whose commands are swept out
	TALLYMAN_REMOVAL=sweep go test -count=1 -timeout $(TIMEOUT) -run 'Invariant|Worker_Drain|Worker_Failed|Worker_Park|Worker_Take|Requeue|Bulk|Cancel|Relay' . ./desk ./journal
	TALLYMAN_REMOVAL=sweep go test -tags failpoints -count=1 -timeout $(TIMEOUT) -run 'TestKill$$' ./tests/e2e/

.PHONY: postgres
postgres: ## run the tests of the outbox beside a private PostgreSQL
	.ci/postgres go test -race -count=1 -timeout $(TIMEOUT) ./outbox/... ./cmd/producer/... ./examples/outbox/... ./examples/outboxpg/...

.PHONY: e2e
e2e: nats-cli ## run real binaries through real faults, invariants checked after each
	PATH="$(CURDIR)/bin:$$PATH" go test -tags failpoints -count=1 -timeout $(TIMEOUT) ./tests/e2e/...

.PHONY: chaos
chaos: nats-cli ## run random faults for CHAOSTIME; prints its seed, TALLYMAN_SEED repeats it
	PATH="$(CURDIR)/bin:$$PATH" TALLYMAN_CHAOS=$(CHAOSTIME) go test -tags failpoints -count=1 -timeout 0 -v -run Chaos ./tests/e2e/...

.PHONY: scale
scale: ## list a bucket of SCALE records in bounded memory
	TALLYMAN_SCALE=$(SCALE) go test -count=1 -timeout $(TIMEOUT) -v -run ManyKeys ./kvstate/

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME
	.ci/fuzz $(FUZZTIME)

.PHONY: lint
lint: ## check format, vet and golangci-lint
	@unformatted=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs -r gofmt -l); \
	if [[ -n $$unformatted ]]; then printf 'not gofmt-ed:\n%s\n' "$$unformatted" >&2; exit 1; fi
	@large=$$(git ls-files -z | xargs -0r du -k 2>/dev/null | awk '$$1 > 1024'); \
	if [[ -n $$large ]]; then printf 'larger than 1 MiB, a compiled program?\n%s\n' "$$large" >&2; exit 1; fi
	go vet ./...
	go vet -tags failpoints ./...
	go vet -tags containers ./tests/containers/
	"$$(.ci/tool golangci-lint)" run ./...

.PHONY: bench
bench: ## run the benchmarks; compare two runs with benchstat
	go -C bench test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-stages
bench-stages: ## measure time and allocations of each stage that a command passes
	go test -run '^$$' -bench . -skip '^BenchmarkWrites$$' -benchmem -benchtime $(BENCHTIME) -timeout $(TIMEOUT) $(STAGES)

.PHONY: bench-outbox
bench-outbox: ## measure relay and scans of the outbox, up to 1,000,000 rows, on SQLite and PostgreSQL
	.ci/postgres go -C bench test -run '^$$' -bench Outbox -benchtime 3x .
	TALLYMAN_BENCH_ROWS=1000000 .ci/postgres go test -run '^$$' -bench Scan -benchtime 300x -timeout 0 ./outbox

.PHONY: images
images: ## build all container images from Go source, pulling none
	images/build.sh

.PHONY: containers
containers: images ## run docker-compose.yml, kill a node and a worker, check the books
	go test -tags containers -count=1 -timeout $(TIMEOUT) -v ./tests/containers/...

.PHONY: nats-cli
nats-cli: ## compile the nats CLI into ./bin
	@mkdir -p bin
	@install -m 0755 "$$(.ci/tool nats)" bin/nats

.PHONY: demo
demo: build ## watch a pool lose a worker and keep its books
	bin/tallyman demo

.PHONY: clean
clean: ## remove ./bin, ./dist and test results; keeps compiled tools
	rm -rf bin dist
	go clean -testcache

.PHONY: ci
ci: ## run all that CI runs
	.ci/run
