# shellcheck shell=sh disable=SC2034 # its users read the variables
# Shared by setup.sh, teardown.sh and status; sourced.

here=$(CDPATH="" cd -- "$(dirname -- "$0")" && pwd -P)
# What setup.sh made, a line each. In /run, because a restart undoes it all.
state=${IBCONDUIT_SOFTROCE_STATE:-/run/ibconduit-softroce}

die() {
	code=$1
	shift
	echo "softroce: $*" >&2
	exit "$code"
}

need() {
	command -v "$1" >/dev/null || PATH=$PATH:/usr/sbin:/sbin
	command -v "$1" >/dev/null || die 1 "$1 is missing: apt-get install $2"
}

remember() { echo "$1 $2" >>"$state"; }

# netdev_of DEVICE PORT
netdev_of() { cat "/sys/class/infiniband/$1/ports/$2/gid_attrs/ndevs/0" 2>/dev/null || echo '?'; }

# usable_device [NETDEV] prints an active device, on that netdev if one is given.
usable_device() {
	for d in /sys/class/infiniband/*; do
		[ -e "$d" ] || continue
		for p in "$d"/ports/*; do
			grep -q ACTIVE "$p/state" || continue
			[ -z "${1:-}" ] || [ "$(netdev_of "${d##*/}" "${p##*/}")" = "$1" ] || continue
			echo "${d##*/}"
			return 0
		done
	done
	return 1
}

free_name() {
	n=0
	while [ -e "/sys/class/infiniband/rxe$n" ]; do n=$((n + 1)); done
	echo "rxe$n"
}

load_module() {
	for m in rdma_rxe ib_uverbs; do
		[ ! -e "/sys/module/$m" ] || continue
		modprobe "$m" 2>/dev/null || die 3 "the running kernel ($(uname -r)) has no module $m. Cloud, WSL and CI kernels often lack it.
  Debian: apt-get install linux-image-amd64 instead of the -cloud- kernel, and restart
  Ubuntu: apt-get install linux-modules-extra-$(uname -r)
  or without touching this host: hack/softroce/vm run -- CMD, which boots a VM with such a kernel"
		[ $m != rdma_rxe ] || remember module rdma_rxe
	done
}
