#!/usr/bin/env bash
# Runs the tests, in stages; without arguments all of them. The last line counts.
#
#   hack/test.sh [STAGE...]      stages: lint race debug plain launchers builds device vm
#
# A stage that fails does not keep the others from running; the exit status shows it.
# PKGS chooses the packages (default: all of each stage), TESTFLAGS is added to go test.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=hack/common.sh
. hack/common.sh

out=build/test
module=github.com/ibconduit/conduit
read -ra extra <<<"${TESTFLAGS-}"
rm -rf $out
mkdir -p $out build/bin
go build -o build/bin/ ./hack/testsum ./hack/rdmatests || exit 1

# A test run must not depend on how the tree was obtained. Nobody debugs its programs, and without
# DWARF they are linked in half the time.
export GOFLAGS="${GOFLAGS-} -buildvcs=false -ldflags=-w"
# hydra's mpiexec, Open MPI, jemalloc and libibverbs-dev are there (hack/setup.sh): the tests with
# them may not skip.
export IBCONDUIT_REQUIRE_HYDRA=1 IBCONDUIT_REQUIRE_JEMALLOC=1 IBCONDUIT_REQUIRE_IBVERBS_DEV=1
export IBCONDUIT_REQUIRE_OPENMPI=1 IBCONDUIT_REQUIRE_PROMETHEUS=1
# Only root may have a Slurm of its own, not in every container; and an sshd of root's needs what
# other users' do without.
if [ "$(id -u)" != 0 ]; then export IBCONDUIT_REQUIRE_SSH=1
elif unshare -u -m true 2>/dev/null; then export IBCONDUIT_REQUIRE_SLURM=1 IBCONDUIT_REQUIRE_SSH=1; fi
if [ "$(. /etc/os-release && echo "$ID")" = debian ]; then export IBCONDUIT_REQUIRE_CHROMIUM=1; fi
# A program with the race detector waits a second for other goroutines before it ends. The tests
# start programs by the hundred, whose ranks have met before.
export GORACE="atexit_sleep_ms=50 ${GORACE-}"
# A tenth of the planted faults, another one with each commit. IBCONDUIT_FAULTS=0/1: all.
: "${IBCONDUIT_FAULTS:=$(($(git rev-list --count HEAD 2>/dev/null || echo 0) % 10))/10}"
export IBCONDUIT_FAULTS
# Where a command may have mount namespaces, and lock what memory tests register, the device in user
# space is there.
if lock_memory 2>$out/softverbs && hack/softverbs/run true 2>>$out/softverbs; then export IBCONDUIT_REQUIRE_SOFTVERBS=1; fi
# Where root may limit memory (cgroup v1) and add swap space, so may the tests that need both.
if limited_memory; then export IBCONDUIT_REQUIRE_MEMGROUP=1; fi
# Where no seccomp filter and no Yama keeps a process from stepping its child, tests may not skip.
if [ "$(uname -m)" = x86_64 ] && grep -qE '^Seccomp:[[:space:]]+0$' /proc/self/status &&
  [ "$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0)" -le 1 ]; then export IBCONDUIT_REQUIRE_PTRACE=1; fi
# On a machine with a device its tests run natively, and may not skip either.
if host_device; then export IBCONDUIT_REQUIRE_RDMA=1; fi

# packages [-rdma]: those to test; with -rdma the ones whose tests ask for a device, which is
# by importing internal/rdmatest (internal/archtest holds that there is no other way).
# shellcheck disable=SC2086 # PKGS is a list
packages() {
  local format='{{.ImportPath}}'
  [ "${1-}" = -rdma ] && format='{{range .TestImports}}{{if eq . "'$module'/internal/rdmatest"}}{{$.ImportPath}}{{"\n"}}{{end}}{{end}}{{range .XTestImports}}{{if eq . "'$module'/internal/rdmatest"}}{{$.ImportPath}}{{"\n"}}{{end}}{{end}}'
  local list
  list=$(go list -f "$format" ${PKGS:-./...}) || return 1
  sort -u <<<"$list" | sed '/^$/d'
}

# run STAGE GO-TEST-ARGUMENTS...: each package is bounded by -timeout, the stage by timeout. They
# end what hangs: a machine several times slower than one that runs a package in 6 minutes, and a
# stage in 13, must not meet them.
run() {
  local stage=$1
  shift
  timeout -k 30 90m go test -json -count=1 -timeout 30m ${select[@]+"${select[@]}"} ${extra[@]+"${extra[@]}"} "$@" </dev/null |
    build/bin/testsum -stage "$stage" -o "$out/$stage.json" -may-skip "${may_skip-}"
}

stage_lint() { hack/lint.sh -o $out/lint.json; }

# The tests of hack/ boot VMs, which wait for one another and take a core each: they come after the
# others, one package at a time. They have no debug build and no benchmarks: once is enough. So
# it is for archtest, which reads sources, and for ibbench, whose ranks are processes of few
# goroutines: its parts (cmd/ibbench/internal) are here, the command is not. Ranks of twohosts run
# in two VMs at once, where the race detector would take half as long again: stage device has it.
stage_race() {
  packages >$out/packages || return 1
  local pkgs hosts two failed=0
  mapfile -t pkgs < <(grep -vE '/hack/|/launchertest$|/archtest$|/cmd/ibbench$' $out/packages)
  mapfile -t hosts < <(grep /hack/ $out/packages | grep -v '/twohosts$')
  mapfile -t two < <(grep '/hack/twohosts$' $out/packages)
  [ ${#pkgs[@]} = 0 ] || run race -vet=off -race "${pkgs[@]}" || failed=1
  [ ${#hosts[@]} = 0 ] || run hosts -vet=off -race -p 1 "${hosts[@]}" || failed=1
  [ ${#two[@]} = 0 ] || run twohosts -vet=off "${two[@]}" || failed=1
  return $failed
}

# Packages that the tag does not change, nor what they import, are those of the other stages. The
# commands add nothing that the library's own tests in this build do not reach.
stage_debug() {
  packages >$out/packages || return 1
  local tagged pkgs
  tagged=$(git ls-files -co --exclude-standard '*.go' ':!*_test.go' | xargs grep -lE '^//go:build .*\bdebug\b' | xargs dirname | sort -u)
  mapfile -t pkgs < <(grep -vE '/hack/|/launchertest$|/cmd/ib(bench|run)$' $out/packages | xargs -r go list -test -f '{{.ImportPath}} {{join .Deps " "}}' |
    awk -v module=$module -v tagged="$tagged" 'BEGIN { n = split(tagged, dirs) }
      { for (i = 1; i <= n; i++) if ($1 ~ /\.test$/ && index($0 " ", " " module "/" dirs[i] " ")) { sub(/\.test$/, "", $1); print $1; next } }')
  [ ${#pkgs[@]} = 0 ] || run debug -vet=off -tags debug "${pkgs[@]}"
}

# As users build it: allocation is counted here, and each benchmark runs once so that none rots. The
# tests of jobs, with their collective operations, heaps and messages, run once more with a cache in
# each worker, and with one of one page. ibrun has nothing to count, and runs in the stage race.
stage_plain() {
  packages >$out/packages || return 1
  local pkgs cached rc=0
  mapfile -t pkgs < <(grep -vE '/hack/|/launchertest$|/cmd/ibrun$' $out/packages)
  [ ${#pkgs[@]} = 0 ] || run plain -vet=off -bench . -benchtime 1x "${pkgs[@]}" || rc=1
  if grep -qx "$module" $out/packages; then
    run cached -vet=off -short "$module" -args -cache mapped &
    cached=$!
    run cached-page -vet=off -short "$module" -args -cache mapped,pages=1 || rc=1
    wait $cached || rc=1
  fi
  return $rc
}

# What Open MPI and Slurm do is the same in every build of ours: once is enough. The same holds for
# deploy, whose tests are a module of their own. The shortest time limit of Slurm is a minute, and
# most of this stage is waiting for it: the next stages run meanwhile.
stage_launchers() {
  packages >$out/launchers.packages || return 1
  local pkgs rc=0
  mapfile -t pkgs < <(grep '/launchertest$' $out/launchers.packages)
  [ ${#pkgs[@]} = 0 ] || run launchers -vet=off "${pkgs[@]}" || rc=1
  [ -n "${PKGS-}" ] || (cd deploy/check && go test -json -count=1 -vet=off -timeout 10m ./...) </dev/null |
    build/bin/testsum -stage deploy -o $out/deploy.json || rc=1
  return $rc
}

# The builds for tests: with one lock in the place of many. And the builds of users who lack
# something: libibverbs-dev, or a C compiler.
stage_builds() {
  local want rc=0
  packages >$out/packages || return 1
  mapfile -t want < <(grep -xE "$module/(am|flow|internal/credit|internal/lockrank|internal/fabric/shm)" $out/packages)
  [ ${#want[@]} = 0 ] || run biglock -tags biglock -short "${want[@]}" || rc=1
  # Without cgo there is no verbs and no memory events.
  mapfile -t want < <(grep -xE "$module(|/verbs|/memevents|/regcache|/internal/fabric/(shm|sim)|/bootstrap|/cmd/ibbench|/examples/(hello|heat|wordcount))" $out/packages)
  [ ${#want[@]} = 0 ] || CGO_ENABLED=0 run nocgo -short "${want[@]}" || rc=1
  checked without-libibverbs-dev || rc=1
  checked without-cgo || rc=1
  return $rc
}

# checked CHECK: runs the function check_CHECK and records its result.
checked() {
  local text word=pass start=$SECONDS
  text=$("check_${1//-/_}" 2>&1 </dev/null) || word=fail
  printf '[builds] %-4s %s (%ds)\n' $word "$1" $((SECONDS - start))
  [ $word = pass ] || printf '%s\n' "$text"
  record "$out/builds.json" builds "$1" $word "$text"
  [ $word = pass ]
}

# Headers and a library of the same names, found first, stand for their absence. That they are in
# the way is tried before.
check_without_libibverbs_dev() {
  local h dir=$PWD/$out/nodev
  mkdir -p "$dir/infiniband" "$dir/bin"
  for h in verbs.h $(ls /usr/include/infiniband 2>/dev/null); do
    echo "#error <infiniband/$h> is not installed" >"$dir/infiniband/$h"
  done
  echo "not a library" >"$dir/libibverbs.so"
  local -x CGO_CFLAGS="-g -O2 -I$dir" CGO_LDFLAGS="-L$dir"
  if echo '#include <infiniband/verbs.h>' | gcc "-I$dir" -fsyntax-only -x c - 2>/dev/null; then
    echo "<infiniband/verbs.h> can be included: this proves nothing"
    return 1
  fi
  if echo 'int main(void) { return 0; }' | gcc -x c - "-L$dir" -libverbs -o "$dir/linked" 2>/dev/null; then
    echo "a program can be linked with -libverbs: this proves nothing"
    return 1
  fi
  # Flags of cgo compile even the standard library again: what has no C in it need not be.
  local cgo
  mapfile -t cgo < <(go list -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./...)
  [ ${#cgo[@]} -gt 0 ] && go build "${cgo[@]}" && go build -o "$dir/bin/" ./cmd/ibbench
}

# Static programs, whose ranks meet over shared memory.
check_without_cgo() {
  local dir=$PWD/$out/nocgo said
  local -x CGO_ENABLED=0
  mkdir -p "$dir"
  go build ./... && go build -o "$dir/" ./cmd/ibrun ./examples/hello || return 1
  if readelf -lW "$dir/ibrun" "$dir/hello" | grep -E 'INTERP|DYNAMIC'; then
    echo "they are not static"
    return 1
  fi
  said=$(IBCONDUIT_FABRIC=shm "$dir/ibrun" -n 2 "$dir/hello" | sort) || return 1
  echo "$said"
  [ "$(grep -c 'of 2: my left neighbour is [01]; 2 were here' <<<"$said")" = 2 ]
}

# Subtests over shared memory, for go test -skip: where only a device is of interest.
over_shm='./^shm(#[0-9]+)?$|././^shm(#[0-9]+)?$'

# The tests that ask for a device, natively over the one in user space (hack/softverbs), and with
# the race detector and in the debug build where these look at what a device is given; one package
# at a time, as each spins for both ends of a connection. What cannot pass there
# (hack/softverbs/exceptions.txt) is left to the stage vm.
stage_device() {
  local want checked dirs asking skip select rc=0
  packages -rdma >$out/packages && mapfile -t want < <(grep -vE '/hack/|/rdmatest$' $out/packages) || return 1
  [ ${#want[@]} -gt 0 ] || { echo "[device] no package here asks for a device"; return 0; }
  [ -n "${IBCONDUIT_REQUIRE_SOFTVERBS-}" ] || { echo "[device] left out: $(cat $out/softverbs)"; return 0; }
  mapfile -t dirs < <(go list -f '{{.Dir}}' "${want[@]}")
  asking=$(build/bin/rdmatests "${dirs[@]}") || return 1
  skip=$(awk '!/^#/ && NF { print $2 }' hack/softverbs/exceptions.txt | paste -sd '|')
  select=(-run "$asking" -skip "^($skip)\$|$over_shm")
  local may_skip=hack/softverbs/exceptions.txt,hack/softverbs/skips.txt
  local device="'$PWD/hack/softverbs/run'" # go splits it at blanks, outside of quotes
  run device -p 1 -vet=off -bench "$asking" -benchtime 1x -exec "$device" "${want[@]}" || rc=1
  mapfile -t checked < <(printf '%s\n' "${want[@]}" | grep -xE "$module(|/verbs|/internal/fabric/ibv|/internal/amtest|/regcache)")
  [ ${#checked[@]} = 0 ] || run device-race -p 1 -vet=off -short -race -exec "$device" "${checked[@]}" || rc=1
  mapfile -t checked < <(printf '%s\n' "${want[@]}" | grep -xE "$module/(verbs|internal/fabric/ibv|internal/amtest)")
  [ ${#checked[@]} = 0 ] || run device-debug -p 1 -vet=off -short -tags debug -exec "$device" "${checked[@]}" || rc=1
  ! printf '%s\n' "${want[@]}" | grep -qx "$module" || run device-owners -vet=off -tags debug -exec "$device" "$module" -run TwoGoroutines || rc=1
  return $rc
}

# One VM after the other (-p 1): two on two cores would only disturb each other. It runs the tests
# to which a kernel's device matters (hack/softroce/tests.txt), after a stage device that runs all
# that ask for one; else it runs those itself, without their parts that are over shared memory: the
# other stages have shown the rest. The debug build looks at what is given to the device, too.
stage_vm() {
  if host_device && [ -z "${IBCONDUIT_TEST_VM-}" ]; then
    echo "[vm] left out: this machine has an RDMA device; IBCONDUIT_TEST_VM=1 runs the VM all the same"
    return 0
  fi
  packages -rdma >$out/packages || return 1
  local table=hack/softroce/tests.txt debug='verbs|internal/fabric/ibv' pkgs names dirs asking checked select rc=0
  mapfile -t pkgs <$out/packages
  names=$(awk '!/^#/ && NF && $2 != "*" { print $2 }' $table | paste -sd '|')
  if [ -n "${IBCONDUIT_REQUIRE_SOFTVERBS-}" ] && [ -z "${PKGS-}" ] && [[ " ${stages[*]} " == *" device "* ]]; then
    mapfile -t pkgs < <(awk '!/^#/ && NF { print "./" $1 }' $table | sort -u | xargs go list)
    mapfile -t dirs < <(awk '!/^#/ && $2 == "*" { print $1 }' $table)
    debug=verbs
  else
    mapfile -t dirs < <(go list -f '{{.Dir}}' "${pkgs[@]}")
  fi
  [ ${#pkgs[@]} -gt 0 ] || { echo "[vm] no package here asks for a device"; return 0; }
  echo "[vm] ${pkgs[*]}"
  hack/softroce/vm prepare >&2 || return 1
  asking="$(build/bin/rdmatests "${dirs[@]}")|^($names)\$" || return 1
  local -x IBCONDUIT_REQUIRE_RDMA=1
  local vm="'$PWD/hack/softroce/vm' -mem 4096 -swap 512M" # go splits it at blanks, outside of quotes
  select=(-run "$asking" -skip "$over_shm")
  run vm -p 1 -vet=off -bench "$asking" -benchtime 1x -exec "$vm" "${pkgs[@]}" || rc=1
  mapfile -t checked < <(printf '%s\n' "${pkgs[@]}" | grep -xE "$module/($debug)")
  [ ${#checked[@]} = 0 ] || run vmdebug -p 1 -vet=off -tags debug -exec "$vm" "${checked[@]}" || rc=1
  return $rc
}

[ $# -gt 0 ] || set -- lint race debug plain launchers builds device vm
stages=("$@") failed=() launchers=
timed() {
  local start=$SECONDS rc=0
  echo "== $1"
  "stage_$1" || rc=1
  echo "== $1: $((SECONDS - start)) s"
  return $rc
}
for stage; do
  declare -F "stage_$stage" >/dev/null || { echo "test: no stage '$stage' (there are: lint race debug plain launchers builds device vm)" >&2; exit 2; }
  if [ "$stage" = launchers ]; then timed launchers & launchers=$!
  else timed "$stage" || failed+=("$stage"); fi
done
[ -z "$launchers" ] || wait "$launchers" || failed+=(launchers)

[ ${#failed[@]} = 0 ] || echo "failing stages: ${failed[*]}"
compgen -G "$out/*.json" >/dev/null || { echo "test: these stages run nothing of ${PKGS:-this tree}" >&2; exit 1; }
build/bin/testsum -total $out/*.json || exit 1
[ ${#failed[@]} = 0 ]
