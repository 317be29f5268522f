# make lists the targets. What they write is in build/.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build install demo test test-long test-native test-lab test-device bench events-cost polling-cost lint vet generate clean \
	setup begin native lab device passes fuzz summary

# The kernels of the device tests' VM. A device of this host has its own.
KERNELS = $(or $(RXE_KERNEL),6.1)
FUZZTIME = 60s
# The benchmarks run one after another, and all of them so often.
BENCHRUNS = 7
BENCHTIME = 100ms
COMMANDS = ibvinfo pingpong
PREFIX = /usr/local
CVERBS = github.com/goverbs/goverbs/internal/cverbs

GOLANGCI_LINT = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
ACTIONLINT = go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: ## build the commands: build/ibvinfo and build/pingpong
	go build -o build/ ./cmd/...
	CGO_ENABLED=0 go build -o build/ ./cmd/ibvinfo

install: build ## install the commands and their manual pages (PREFIX=/usr/local, DESTDIR=)
	@mkdir -p build/man1 && go build -o build/ ./internal/cmd/manpage
	for c in $(COMMANDS); do build/manpage build/$$c >build/man1/$$c.1 || exit 1; done
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin share/man/man1 share/doc/goverbs)
	install $(COMMANDS:%=build/%) build/ibvinfo-verbs $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(COMMANDS:%=build/man1/%.1) $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 cmd/ibvinfo/schema.json $(DESTDIR)$(PREFIX)/share/doc/goverbs/ibvinfo.schema.json
	install -m 644 cmd/pingpong/FORMATS.md $(DESTDIR)$(PREFIX)/share/doc/goverbs/pingpong.formats.md

demo: setup build ## show ibvinfo, and pingpong between Go and C, on a real soft device
	@docker/demo

test: begin setup native passes lab device summary ## run every test, natively and on the device (RXE_KERNEL=6.1|6.12)
test-long: export GOVERBS_LONG = 1
test-long: KERNELS = 6.1 6.12
test-long: begin setup native passes fuzz lab device summary ## the same with full counts, both kernels, fuzzing
test-native: begin native summary ## run the tests that need no device
test-lab: begin lab summary ## run the tests of the lab itself
test-device: begin device summary ## run the device tests; see also docker/test-device -h
bench: ## benchmarks of the data path on a null provider: build/bench.txt, and their ratios
	@mkdir -p build && go test -c -o build/bench.test ./internal/bench && rm -f build/bench.txt
	@for run in $$(seq $(BENCHRUNS)); do (cd internal/bench && ../../build/bench.test -test.run '^$$' -test.bench . \
		-test.benchtime $(BENCHTIME)) >>build/bench.txt || exit 1; done
	@go run ./internal/cmd/benchratio <build/bench.txt
events-cost: setup build ## instructions that a round trip with events takes, in Go and in C, in the lab's VM
	@docker/cost events
polling-cost: setup build ## time of a round trip with polling, in Go and in C, in the lab's VM
	@docker/cost polling
vet: ## go vet, for every platform on which the module must build
	go test -count=1 -run '^TestVet$$' ./internal/boundary

lint: ## golangci-lint, actionlint, shellcheck
	$(GOLANGCI_LINT) run
	$(ACTIONLINT)
	shellcheck $$(grep -rlE --exclude-dir={build,.git} '^#!/bin/(ba)?sh' .)

generate: ## write the generated files anew
	go generate ./...

clean: ## remove build/
	rm -rf build

# The stages of a test run. Each adds its suites to build/suites, and none stops
# the next: the summary tells what failed.

setup:
	@docker/setup

begin:
	@mkdir -p build && rm -f build/suites build/summary
	@go build -o build/ ./internal/cmd/testsum

# $(call suite,NAME,COMMAND that prints results)
suite = -@echo '$(1)=build/$(1).json' >>build/suites; echo '== $(1)'; build/testsum record build/$(1).json $(2)

native:
	$(call suite,native,go test -json -count=1 -race ./...)

lab: build
	$(call suite,lab,go test -json -count=1 -timeout 20m -tags lab ./docker)

device:
	-@status=0; for k in $(KERNELS); do echo "== device, kernel $$k"; RXE_KERNEL=$$k docker/test-device || status=1; done; exit $$status

# The packages that touch C memory, once more for each way to find wrong uses.
passes: PACKAGES = ./internal/fakedev $$(go list -f '{{$$p := .}}{{range .Deps}}{{if eq . "$(CVERBS)"}}{{$$p.ImportPath}}{{end}}{{end}}' ./...)
passes:
	$(call suite,checkptr,go test -json -count=1 -gcflags=all=-d=checkptr $(PACKAGES))
	$(call suite,cgocheck2,env GOEXPERIMENT=cgocheck2 go test -json -count=1 $(PACKAGES))
	$(call suite,asan,go test -json -count=1 -asan $(PACKAGES))

fuzz:
	$(call suite,fuzz,.ci/fuzz $(FUZZTIME))

summary:
	@build/testsum $$(cat build/suites) | tee build/summary
