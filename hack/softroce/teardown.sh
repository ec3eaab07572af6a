#!/bin/sh
# Removes what setup.sh made, and nothing else: a device that was there before stays. Idempotent. As
# root.
set -eu
# shellcheck source=hack/softroce/lib.sh
. "$(dirname -- "$0")/lib.sh"

[ -s "$state" ] || { echo "nothing to remove: setup.sh made nothing since the last boot"; exit 0; }
[ "$(id -u)" = 0 ] || die 4 "teardown.sh removes network devices: run it as root"
rc=0
# Last made, first removed.
tac "$state" >"$state.undo"
while read -r kind name; do
	case $kind in
	device) [ ! -e "/sys/class/infiniband/$name" ] || rdma link delete "$name" || rc=1 ;;
	netdev) [ ! -e "/sys/class/net/$name" ] || ip link delete "$name" || rc=1 ;;
	module) rmmod "$name" 2>/dev/null || echo "module $name is in use and stays" ;;
	esac
done <"$state.undo"
rm -f "$state.undo"
[ $rc = 0 ] || die 1 "not everything could be removed; $state keeps the list"
rm -f "$state"
