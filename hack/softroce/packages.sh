#!/bin/sh
# System packages that the project needs on Debian and Ubuntu.
#
#   packages.sh            prints the list
#   packages.sh missing    prints those that are not installed; exit code 1 if there are any
#   packages.sh install    installs those, as root or with sudo; does nothing when none is missing
set -eu

# qemu runs the VM; ipxe-qemu and seabios hold its firmware; xz-utils unpacks the kernel once;
# util-linux has flock. gcc builds package verbs; the others are what tests and comparisons run in
# the VM.
packages="qemu-system-x86 seabios ipxe-qemu xz-utils zstd util-linux
gcc libc6-dev libibverbs1 ibverbs-providers ibverbs-utils rdma-core perftest iproute2"

missing() {
	for p in $packages; do
		dpkg-query -W -f '${db:Status-Abbrev}\n' "$p" 2>/dev/null | grep -q '^ii' || printf '%s\n' "$p"
	done
}

# sudo clears the environment, of which apt-get needs the way out where there is a proxy.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
		return
	fi
	command -v sudo >/dev/null || { echo "packages.sh: run as root: $*" >&2; exit 1; }
	for v in http_proxy https_proxy ftp_proxy no_proxy; do
		eval "value=\${$v-}"
		[ -z "$value" ] || set -- "$v=$value" "$@"
	done
	sudo "$@"
}

# Package lists are absent in a fresh container and useless when older than the mirror's state.
stale() { [ -z "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mtime -7 2>/dev/null | head -n 1)" ]; }

case ${1:-list} in
list) printf '%s\n' $packages ;;
missing) m=$(missing); [ -z "$m" ] || { printf '%s\n' "$m"; exit 1; } ;;
install)
	command -v apt-get >/dev/null || { echo "packages.sh: no apt-get here; install the equivalents of:" $packages >&2; exit 1; }
	m=$(missing)
	[ -n "$m" ] || exit 0
	! stale || as_root apt-get update -qq
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $m
	;;
*) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
