# make help lists the targets. The work is done by the scripts in hack/, which run by themselves too.
.DEFAULT_GOAL := build
SHELL := /bin/bash

# The Go that hack/setup.sh chose (build/go), else the one in PATH or /usr/local/go.
export PATH := $(CURDIR)/build/go/bin:$(PATH):/usr/local/go/bin
# go.mod names an exact version of Go; any from 1.21 on fetches it.
export GOTOOLCHAIN ?= auto

# SETUP=no: install nothing, take the machine as it is.
SETUP ?= yes
install = $(if $(filter yes,$(SETUP)),hack/setup.sh $(1),true)

# Programs carry the commit they were built from; a tree that git cannot read builds without.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)

.PHONY: help setup build bench test lint fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install what this machine lacks (Debian, Ubuntu; root or sudo)
	@$(call install,)

build: ## build the programs and examples into build/bin, and build/libmemevents.so
	@$(call install,build go)
	@mkdir -p build/bin
	@go build -buildvcs=$(VCS) -o build/bin/ ./cmd/... ./examples/...
	@memevents/build.sh -o build/libmemevents.so

bench: ## install, build, and measure in 5 minutes, with a report (VM=yes, BUDGET=75, BENCHFLAGS=...)
	@$(call install,build rdma bench go)
	@$(MAKE) --no-print-directory SETUP=no build
	@hack/bench.sh

test: ## install and run every test, those in the VM too (STAGES="lint race debug plain launchers builds device vm", PKGS=./verbs, TESTFLAGS=-v)
	@$(call install,)
	@hack/test.sh $(STAGES)

lint: ## install and look at the code: gofmt, vet, staticcheck, deadcode, C warnings, other targets, shellcheck, govulncheck
	@$(call install,build lint go)
	@hack/lint.sh

fuzz: ## run each fuzz test for FUZZTIME (10s)
	@$(call install,build go)
	@hack/fuzz.sh $(or $(FUZZTIME),10s)

clean: ## remove what make made (build/)
	@[ ! -e build ] || { chmod -R u+w build && rm -rf build; }
