#!/usr/bin/env bash
# Installs what building, testing and measuring need and the machine lacks.
#
#   hack/setup.sh [GROUP...]         install what is missing of the groups (all without arguments)
#   hack/setup.sh -list [GROUP...]   print the packages, one a line
#   hack/setup.sh -missing [GROUP..] print those that are not installed
#
# Groups: build rdma bench test slurm prometheus ssh lint go. Debian and Ubuntu; root or sudo.
# Where nothing is missing nothing is run, so neither root nor a network is needed.
# The packages of the VM are listed in hack/softroce/packages.sh, all others here.
set -euo pipefail
cd "$(dirname "$0")/.."

all_groups=(build rdma bench test slurm prometheus ssh lint go)

packages() { # GROUP
  local arch
  arch=$(dpkg --print-architecture)
  case $1 in
  # cgo needs a C compiler.
  build) echo ca-certificates gcc libc6-dev make git ;;
  # What the Soft-RoCE VM and the tools in it need is said where the VM is made.
  rdma) hack/softroce/packages.sh list | tr '\n' ' ' ;;
  # What make bench measures beside us, with perftest; softverbs is built against the header.
  bench) echo ucx-utils libibverbs-dev ;;
  # A test compiles the header of memory events as C++; libjemalloc2 is preloaded beside our hooks;
  # mpich brings hydra's mpiexec, the launcher that the PMI-1 tests run under; with the header of
  # libibverbs-dev a test compares what package verbs declares, which nothing else needs. Open MPI's
  # mpirun is a launcher, under a name of its own: mpirun may be either's. Chromium opens the pages
  # of ibbench report; Ubuntu has no package of it that works without snapd.
  test)
    echo g++ mpich openmpi-bin libjemalloc2 libibverbs-dev
    [ "$(. /etc/os-release && echo "$ID")" = debian ] && echo chromium fonts-dejavu-core
    ;;
  # The cross compiler checks the C of the arm64 build.
  lint)
    echo shellcheck
    [ "$arch" = amd64 ] && echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    ;;
  slurm) ;; # see ensure_slurm
  prometheus) ;; # see ensure_prometheus
  ssh) ;;   # see ensure_ssh
  go) ;;    # see ensure_go
  *) die "unknown group '$1' (there are: ${all_groups[*]})" ;;
  esac
  return 0
}

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 3; }

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

list() { local g; for g in "$@"; do packages "$g"; done | tr ' ' '\n' | grep . | sort -u; }

missing() { local p; for p in $(list "$@"); do is_installed "$p" || echo "$p"; done; }

# sudo clears the environment, of which apt-get needs the way out where there is a proxy.
as_root() {
  local v keep=(DEBIAN_FRONTEND=noninteractive)
  if [ "$(id -u)" = 0 ]; then "$@"; return; fi
  for v in http_proxy https_proxy ftp_proxy no_proxy; do
    [ -z "${!v-}" ] || keep+=("$v=${!v}")
  done
  sudo "${keep[@]}" "$@"
}

updated=no
# Third-party sources of the machine may be unreachable; what counts is whether the
# packages are found afterwards, so a failure here only warns.
apt_update() {
  [ $updated = yes ] && return 1
  updated=yes
  say "apt-get update"
  as_root apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 update ||
    say "warning: apt-get update failed for some sources"
}

have_lists() { compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; }

# dpkg is talkative: only what went wrong is worth the reader's screen.
apt_try() {
  local log rc=0
  log=$(mktemp)
  as_root apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null || rc=$?
  [ $rc = 0 ] || tail -n 40 "$log" >&2
  rm -f "$log"
  return $rc
}

apt_install() { # PACKAGE...
  [ $# -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    die "needs root and there is no sudo. As root, run: apt-get update && apt-get install --no-install-recommends $*"
  say "installing: $*"
  have_lists || apt_update || true
  apt_try "$@" && return
  # Lists that are older than the archive name files that it no longer has.
  apt_update || return 1
  apt_try "$@"
}

# ---- Slurm ---------------------------------------------------------------
# The tests start daemons of their own. Installed, the packages would start some too, and run at
# every boot: they are unpacked below build/slurm instead, with those that they depend on and the
# machine lacks. Of a machine that has Slurm its own is used. Only root can run the tests.
ensure_slurm() {
  local want=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2) dir=build/slurm
  [ "$(id -u)" = 0 ] || return 0
  if [ -e $dir/root/usr/sbin/munged ] || { command -v slurmctld && command -v munged; } >/dev/null; then return 0; fi
  command -v apt-get >/dev/null || { say "warning: no apt-get, and no Slurm: its tests are skipped"; return 0; }
  unpack_all $dir "${want[@]}" || say "warning: no packages of Slurm: its tests fail"
}

# unpack_all DIR PACKAGE...: below DIR/root, with those that they depend on and the machine lacks.
unpack_all() {
  local dir=$1 deb
  shift
  say "unpacking below $dir: $*"
  rm -rf "$dir"
  mkdir -p "$dir/debs/partial"
  have_lists || apt_update || true
  fetch_all "$dir" "$@" || { apt_update && fetch_all "$dir" "$@"; } || return 1
  for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/unpacked" || return 1; done
  mv "$dir/unpacked" "$dir/root" || return 1
  rm -r "$dir/debs"
}

fetch_all() { # DIR PACKAGE...
  local debs=$PWD/$1/debs
  shift
  # What is not installed comes with the first; the second has those that are.
  apt-get install -y -qq --no-install-recommends --download-only -o Dir::Cache::Archives="$debs" \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >/dev/null 2>&1 </dev/null || true
  (cd "$debs" && apt-get download -qq -o Acquire::Retries=3 "$@" >/dev/null 2>&1 </dev/null)
}

# ---- OpenSSH -------------------------------------------------------------
# Installed, its package would start a daemon, and at every boot.
ensure_ssh() {
  local dir=build/ssh
  if [ -x $dir/root/usr/sbin/sshd ] || { [ -x /usr/sbin/sshd ] && command -v ssh; } >/dev/null; then return 0; fi
  command -v apt-get >/dev/null || { say "warning: no apt-get, and no sshd: the tests with it are skipped"; return 0; }
  unpack_all $dir openssh-server openssh-client libwrap0 || say "warning: no packages of OpenSSH: the tests with it fail"
}

# ---- Prometheus ----------------------------------------------------------
# Its package starts a daemon too, and brings a user. The two programs need nothing but themselves.
ensure_prometheus() {
  local dir=build/prometheus deb
  if [ -x $dir/usr/bin/promtool ] || { command -v prometheus && command -v promtool; } >/dev/null; then return 0; fi
  command -v apt-get >/dev/null || { say "warning: no apt-get, and no Prometheus: its tests are skipped"; return 0; }
  say "unpacking below $dir: prometheus"
  rm -rf $dir
  mkdir -p $dir/debs
  have_lists || apt_update || true
  fetch_prometheus || { apt_update && fetch_prometheus; } || { say "warning: no package of Prometheus: its tests fail"; return 0; }
  for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" $dir || return 1; done
  rm -r $dir/debs
}

fetch_prometheus() { (cd build/prometheus/debs && apt-get download -qq -o Acquire::Retries=3 prometheus >/dev/null 2>&1 </dev/null); }

# ---- Go ------------------------------------------------------------------
# go.mod names an exact version. Any Go from 1.21 on fetches that one by itself
# (GOTOOLCHAIN), so an older patch level of the machine is no obstacle. In order:
#   1. `go` in PATH, then /usr/local/go, then the distribution's versioned ones;
#   2. the newest golang-1.N of the distribution and its configured backports;
#   3. where the distribution has none that new (Debian 12 has 1.19), its old go
#      fetches the toolchain as the module it is published as, checksum and all.
# Whatever is chosen but not first in PATH is linked as build/go, which the Makefile
# puts in front of PATH.
oldest=1.21

go_version() { (cd / && GOTOOLCHAIN=local GOFLAGS='' "$1" env GOVERSION 2>/dev/null) | sed 's/^go//; s/[ -].*//'; }

at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }

good_go() { # PATH-OF-GO: can it build this module, fetching the toolchain if it must?
  local v
  v=$(go_version "$1") && [ -n "$v" ] && at_least "$v" $oldest &&
    GOTOOLCHAIN=${GOTOOLCHAIN:-auto} "$1" version >/dev/null 2>&1
}

use_go() { # PATH-OF-GO
  local root
  root=$(cd / && GOTOOLCHAIN=local "$1" env GOROOT)
  mkdir -p build
  rm -f build/go
  [ "$(command -v go)" = "$1" ] || ln -s "$root" build/go
}

# The archive's Go is built from a toolchain module whose files are not executable and
# whose go.mod files are renamed; the go command mends both when it switches, so do we.
fetch_toolchain() { # OLD-GO
  local want version dir to=build/toolchain
  want=$(awk '$1 == "go" { print $2 }' go.mod)
  version=v0.0.1-go$want.linux-$(dpkg --print-architecture)
  say "fetching Go $want (golang.org/toolchain@$version) with $1"
  dir=$(cd / && GO111MODULE=on GOFLAGS=-mod=mod "$1" mod download -json "golang.org/toolchain@$version" |
    sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  [ -n "$dir" ] || return 1
  [ -e $to ] && chmod -R u+w $to && rm -rf $to
  mkdir -p build && cp -r "$dir" $to && chmod -R u+w $to && chmod +x $to/bin/* $to/pkg/tool/*/*
  local m
  for m in "$to/src" "$to/src/cmd"; do [ -e "$m/go.mod" ] || cp "$m/_go.mod" "$m/go.mod"; done
}

ensure_go() {
  local g
  PATH=${PATH//"$PWD/build/go/bin:"/} # our own link is the answer, not a candidate
  hash -r
  for g in "$(command -v go || true)" "$PWD/build/toolchain/bin/go" /usr/local/go/bin/go $(compgen -G '/usr/lib/go-*/bin/go' | sort -rV); do
    if [ -x "$g" ] && good_go "$g"; then use_go "$g"; return; fi
  done
  command -v apt-get >/dev/null || die "$(go_remedy)"
  have_lists || apt_update || true
  local p
  p=$(apt-cache pkgnames golang-1. | grep -E '^golang-1\.[0-9]+-go$' | sort -rV | head -n1) || true # there may be none
  if [ -n "$p" ] && at_least "$(echo "$p" | sed 's/^golang-//; s/-go$//')" $oldest; then
    apt_install "$p" || true
    g=/usr/lib/${p%-go}/bin/go
    g=${g/golang/go}
    if [ -x "$g" ] && good_go "$g"; then use_go "$g"; return; fi
  fi
  command -v go >/dev/null || apt_install golang-go || true
  hash -r
  g=$(command -v go || true)
  if [ -n "$g" ] && good_go "$g"; then use_go "$g"; return; fi
  if [ -n "$g" ] && fetch_toolchain "$g" && good_go "$PWD/build/toolchain/bin/go"; then
    use_go "$PWD/build/toolchain/bin/go"; return
  fi
  die "$(go_remedy)"
}

go_remedy() {
  echo "no usable Go: this module needs $(awk '$1 == "go" { print $2 }' go.mod)," \
    "or any Go from $oldest on that may fetch it (GOTOOLCHAIN not 'local', a reachable module proxy)." \
    "Install one from https://go.dev/dl into /usr/local/go and run this again."
}

# --------------------------------------------------------------------------

main() {
  local action=install
  case ${1-} in
  -list | -missing) action=${1#-}; shift ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '/^set /d'; exit ;;
  -*) die "unknown option $1 (see $0 -h)" ;;
  esac
  local groups=("$@")
  [ $# -gt 0 ] || groups=("${all_groups[@]}")

  command -v dpkg-query >/dev/null ||
    die "knows Debian and Ubuntu only. Install what they call: build-essential rdma-core libibverbs-dev" \
      "perftest ucx iproute2 kmod mpich openmpi qemu-system-x86 busybox-static cpio zstd xz-utils, and Go; then run make with SETUP=no."
  local g
  for g in "${groups[@]}"; do packages "$g" >/dev/null; done # an unknown one ends here
  case $action in list | missing) "$action" "${groups[@]}"; exit ;; esac

  export DEBIAN_FRONTEND=noninteractive
  local need
  mapfile -t need < <(missing "${groups[@]}")
  apt_install "${need[@]}" || die "could not install: ${need[*]}. See apt-get's message above."
  case " ${groups[*]} " in *" slurm "*) ensure_slurm ;; esac
  case " ${groups[*]} " in *" prometheus "*) ensure_prometheus ;; esac
  case " ${groups[*]} " in *" ssh "*) ensure_ssh ;; esac
  case " ${groups[*]} " in *" go "*) ensure_go ;; esac
}

main "$@"
