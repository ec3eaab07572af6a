#!/bin/sh
# Makes a Soft-RoCE device on this host. Idempotent. As root.
#
#   setup.sh [NETDEV]     rxe0 on NETDEV; without an argument on the netdev of the default route,
#                         or, where there is none, on a veth pair of its own (ibcveth0,
#                         10.254.254.1/30)
#
# Exit codes: 0 the device is usable; 2 wrong use; 3 this kernel has no rdma_rxe; 4 not permitted; 1
# anything else.
set -eu
# shellcheck source=hack/softroce/lib.sh
. "$(dirname -- "$0")/lib.sh"

case ${1:-} in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ $# -le 1 ] || die 2 "usage: setup.sh [NETDEV]"
netdev=${1:-}
need ip iproute2
need rdma iproute2
[ -z "$netdev" ] || [ -e "/sys/class/net/$netdev" ] || die 2 "no netdev $netdev; there are: $(ls /sys/class/net | tr '\n' ' ')"

if dev=$(usable_device "$netdev"); then
	echo "$dev is there already"
	exec "$here/status"
fi

[ "$(id -u)" = 0 ] || die 4 "setup.sh makes a network device: run it as root (CAP_NET_ADMIN)"
load_module

if [ -z "$netdev" ]; then
	netdev=$(ip -o route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
	if [ -n "$netdev" ] && dev=$(usable_device "$netdev"); then
		exec "$here/status"
	fi
fi
if [ -z "$netdev" ]; then
	netdev=ibcveth0
	if [ ! -e /sys/class/net/$netdev ]; then
		ip link add $netdev type veth peer name ibcveth1 || die 1 "no default route to find a netdev by, and no veth pair could be made; name a netdev"
		remember netdev $netdev
		ip addr add 10.254.254.1/30 dev $netdev
		ip addr add 10.254.254.2/30 dev ibcveth1
		ip link set ibcveth1 mtu 4200 up
		ip link set $netdev mtu 4200 up
	fi
fi

name=$(free_name)
if ! err=$(rdma link add "$name" type rxe netdev "$netdev" 2>&1); then
	case $err in
	*"No such file"*) die 1 "rdma link add $name: $err: the kernel's crypto layer lacks crc32; modprobe crc32_generic and retry" ;;
	*"not permitted"*) die 4 "rdma link add $name: $err: CAP_NET_ADMIN of the initial namespace is needed; in a container run this on the host" ;;
	*"not supported"*) die 1 "rdma link add $name on $netdev: $err: rdma_rxe needs an Ethernet netdev of the initial network namespace" ;;
	esac
	die 1 "rdma link add $name on $netdev: $err"
fi
remember device "$name"

# The port becomes active and its GIDs appear a moment after the link.
i=0
until "$here/status" >/dev/null 2>&1 || [ $i -ge 50 ]; do
	sleep 0.1
	i=$((i + 1))
done
exec "$here/status"
