#!/usr/bin/env bash
# Looks at the code without running it. Runs every check, also after one has failed.
#
#   hack/lint.sh [-o FILE] [CHECK...]
#
# -o FILE records the results for hack/testsum. CHECKs are the functions check_* below.
# PKGS chooses the Go packages of the checks that take packages (default: all).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=hack/common.sh
. hack/common.sh

read -ra pkgs <<<"${PKGS:-./...}"

# What is or will be in the repository, committed or not.
files() { git ls-files -co --exclude-standard -- "$@" | while read -r f; do [ -f "$f" ] && printf '%s\n' "$f"; done; }

check_gofmt() {
  local bad
  bad=$(files '*.go' | xargs -r gofmt -l)
  [ -z "$bad" ] || { echo "run gofmt -w on:"; echo "$bad"; return 1; }
}

# A merge that was not finished.
check_merge() { ! files '*' | xargs -r grep -nE '^(<<<<<<<|>>>>>>>) '; }

check_vet() { go vet "${pkgs[@]}" && go vet -tags debug "${pkgs[@]}" && { [ -n "${PKGS-}" ] || go -C deploy/check vet ./...; }; }

# Without cgo everything builds and vets on Linux; elsewhere the libraries build, so that programs
# which import them compile, and say at run time what is missing.
check_nocgo() {
  local arch
  for arch in amd64 arm64; do
    echo "linux/$arch"
    CGO_ENABLED=0 GOOS=linux GOARCH=$arch go vet "${pkgs[@]}" || return 1
    CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build "${pkgs[@]}" || return 1
  done
  echo "darwin/arm64"
  mapfile -t libraries < <(go list "${pkgs[@]}" | grep -vE "/(cmd|hack)/")
  CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go build "${libraries[@]}"
}

# The C of the arm64 build, with the cross compiler.
check_arm64() {
  local cc=aarch64-linux-gnu-gcc
  command -v $cc >/dev/null || { echo "no $cc here (package gcc-aarch64-linux-gnu)"; return 77; }
  CC=$cc CGO_ENABLED=1 GOOS=linux GOARCH=arm64 go build "${pkgs[@]}"
}

check_staticcheck() { go tool staticcheck "${pkgs[@]}" && go tool staticcheck -tags debug "${pkgs[@]}"; }

# The flags that the C of this project is held to; hack/lint.sh and the #cgo lines agree
# (internal/archtest).
cflags=(-std=c11 -D_GNU_SOURCE -O2 -fPIC -Wall -Wextra -Werror)

# C is compiled as in the Go build, and what it exports is prefixed: its symbols share a name space
# with every library of the process. The exceptions are the hooks of memevents, whose names are the
# libc's, and the device of hack/softverbs, a library of its own whose calls are libibverbs's.
check_c() {
  local f o bad rc=0
  mkdir -p build/lint
  for f in $(files '*.c' ':!:*/testdata/*'); do
    o=build/lint/$(echo "$f" | tr / _).o
    gcc "${cflags[@]}" -c -o "$o" "$f" || { rc=1; continue; }
    bad=$(nm -g --defined-only "$o" | awk '{ print $3 }' | grep -v '^ibc_' |
      if [[ $f = hack/softverbs/* ]]; then grep -vE '^(sv$|sv_|_?ibv_)'; else cat; fi |
      if [ "${f%%/*}" = memevents ]; then grep -vxE 'mmap|mmap64|munmap|mremap|madvise|process_madvise|remap_file_pages|brk|sbrk|shmat|shmdt'; else cat; fi)
    [ -z "$bad" ] || { echo "$f exports without the prefix ibc_: $bad"; rc=1; }
  done
  return $rc
}

check_shell() {
  command -v shellcheck >/dev/null || { echo "no shellcheck here"; return 77; }
  files | while read -r f; do
    case $f in
    *.sh) echo "$f" ;;
    *.*) ;;
    *) head -c 64 "$f" | grep -qaE '^#!.*[ /](ba)?sh' && echo "$f" ;;
    esac
  done | xargs -r shellcheck -x -S warning -e SC1007,SC3045
}

# Functions that no program reaches in any build, and those of tests' packages that no test reaches,
# but for hack/deadcode.txt.
check_deadcode() {
  local out list=hack/deadcode.txt dir=$PWD/build/lint/deadcode
  out=$(go -C hack/tools build -o "$PWD/build/bin/deadcode" golang.org/x/tools/cmd/deadcode 2>&1) ||
    { echo "not run: it does not build: $out"; return 77; }
  rm -rf "$dir" && mkdir -p "$dir"
  dead_in default && dead_in debug -tags=debug && CGO_ENABLED=0 dead_in nocgo && dead_in test -test || return 1
  awk -v list=$list '
    FILENAME == list { if (!/^#/ && NF) for (i = split($2, names, ","); i; i--) {
      n = names[i]; gsub(/\./, "\\.", n); gsub(/\*/, ".*", n); allowed[++rules] = "^" $1 " " n "$"; rule[rules] = $1 " " names[i] } next }
    FILENAME ~ /files$/ { builds[$1]++; next }
    FILENAME ~ /test.dead$/ { dead[$2 " " $3] = $1; next }
    { times[$0]++ }
    END {
      for (f in times) {
        split(f, w, " ")
        if (times[f] == builds[w[1]] && w[2] !~ /(test|^internal\/fabric\/sim|^hack\/.*)$/) dead[w[2] " " w[3]] = w[1]
      }
      for (d in dead) {
        known = 0
        for (r = 1; r <= rules; r++) if (d ~ allowed[r]) known = used[r] = 1
        if (!known) { print dead[d] ": nothing calls " d; bad = 1 }
      }
      for (r = 1; r <= rules; r++) if (!used[r]) { print list ": " rule[r] " is called, or is not there"; bad = 1 }
      exit bad
    }' $list "$dir"/*.files "$dir"/*.dead
}

# Writes the files of a build, and the functions in it that nothing reaches: file, package, name.
dead_in() {
  local to=$dir/$1 module=github.com/ibconduit/conduit
  shift
  [ "$to" = "$dir/test" ] || go list "$@" -f '{{range .GoFiles}}{{println (printf "%s/%s" $.Dir .)}}{{end}}{{range .CgoFiles}}{{println (printf "%s/%s" $.Dir .)}}{{end}}' ./... |
    sed "/^$/d; s|^$PWD/||" >"$to.files" || return 1
  build/bin/deadcode "$@" -f '{{$p := .Path}}{{range .Funcs}}{{println .Position.File $p .Name}}{{end}}' ./... |
    sed "/^$/d; s| $module/| |; s| $module | . |" >"$to.dead"
}

# Its database is on the network and says something else every day: not reaching it is no failure.
check_govulncheck() {
  local out rc
  out=$(go -C hack/tools build -o "$PWD/build/bin/govulncheck" golang.org/x/vuln/cmd/govulncheck 2>&1) ||
    { echo "not run: it does not build: $out"; return 77; }
  out=$(timeout 300 build/bin/govulncheck "${pkgs[@]}" 2>&1)
  rc=$?
  case $rc:$out in
  0:*) ;;
  3:*) echo "$out"; return 1 ;;
  *) echo "not run: ${out:0:300}"; return 77 ;;
  esac
}

all() { declare -F | sed -n 's/^declare -f check_//p'; }

results=
if [ "${1-}" = -o ]; then
  results=$2
  shift 2
  mkdir -p "$(dirname "$results")"
  : >"$results"
fi
[ $# -gt 0 ] || set -- gofmt merge c vet nocgo arm64 staticcheck deadcode shell govulncheck
failed=0
for check; do
  declare -F "check_$check" >/dev/null || { echo "lint: no check '$check' (there are: $(all | xargs))"; exit 2; }
  start=$SECONDS
  out=$("check_$check" 2>&1 </dev/null)
  rc=$?
  case $rc in
  0) word=pass out= ;;
  77) word=skip ;;
  *) word=fail failed=1 ;;
  esac
  printf '[lint] %-4s %s (%ds)\n' "$word" "$check" $((SECONDS - start))
  [ -z "$out" ] || printf '%s\n' "$out"
  [ -z "$results" ] || record "$results" lint "$check" $word "$out"
done
exit $failed
