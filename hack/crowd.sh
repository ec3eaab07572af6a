#!/usr/bin/env bash
# What operations take with more ranks than processors: microseconds, and in parentheses the ratio
# to N/2 times that of two ranks that share one processor.
#
#   hack/crowd.sh [FABRIC...]     default: shm, and ibv over the user-space device (hack/softverbs)
#
# RANKS (2 3 4 8 16) are the sizes of the job. It runs on processors 0 and 1.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$(mktemp -d)
trap 'rm -r "$bin"' EXIT
go build -o "$bin" ./cmd/ibrun ./hack/crowd

# times FABRIC CPUS N
times() {
	local run=()
	[ "$1" != ibv ] || run=(hack/softverbs/run)
	IBCONDUIT_FABRIC=$1 "${run[@]}" taskset -c "$2" "$bin/ibrun" --timeout 300s -n "$3" "$bin/crowd" | sed 's/^\[ *0\] //'
}

[ $# -gt 0 ] || set -- shm ibv
read -ra ranks <<<"${RANKS:-2 3 4 8 16}"
for fabric; do
	echo
	printf '| %s | 2 on one' "$fabric"
	printf ' | %s' "${ranks[@]}"
	printf ' |\n|---|---'
	printf '|---%.0s' "${ranks[@]}"
	printf '|\n'
	files=("$bin/base")
	times "$fabric" 1 2 >"$bin/base"
	for n in "${ranks[@]}"; do
		times "$fabric" 0,1 "$n" >"$bin/$n"
		files+=("$bin/$n")
	done
	paste -d'|' "${files[@]}" | awk -F'|' -v ranks="${ranks[*]}" '{
		split(ranks, n, " ")
		printf "| %s | %s", $1, $2
		for (i = 4; i <= NF; i += 2) printf " | %s (%.1f)", $i, $i / $2 / (n[i / 2 - 1] / 2)
		print " |"
	}'
done
