#!/usr/bin/env bash
# What calls and reductions of two ranks on processors 0 and 1 take, quiet and beside busy
# processes: median, slowest hundredth and mean in microseconds, the medians of the rounds.
#
#   hack/busy.sh [REVISION...]    default: HEAD. Several are measured in turns.
#
# FABRICS (shm ibv) are the networks: ibv over the user-space device (hack/softverbs). ROUNDS (5).
# BIND ("none core") are the places of ranks: any processor (none), one each (core), or both on one
# (one). BESIDE (0 1 2) are how many busy loops run beside them; "job" is another job of two.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${FABRICS:=shm ibv}" "${ROUNDS:=5}" "${BIND:=none core}" "${BESIDE:=0 1 2}"
[ $# -gt 0 ] || set -- HEAD

dir=$(mktemp -d)
others=()
quiet() {
	[ ${#others[@]} -gt 0 ] || return 0
	kill -- "${others[@]/#/-}"
	wait "${others[@]}" 2>/dev/null || true # says nothing of their end
	others=()
}
trap 'quiet; rm -rf "$dir"' EXIT

for rev; do
	mkdir -p "$dir/$rev/bin"
	git archive "$rev" | tar -x -C "$dir/$rev"
	mkdir -p "$dir/$rev/hack/busy"
	cp hack/busy/main.go "$dir/$rev/hack/busy"
	(cd "$dir/$rev" && go build -buildvcs=false -o bin ./cmd/ibrun ./hack/busy)
done

# job REVISION FABRIC BIND OPERATION: a job of two ranks on processors 0 and 1.
job() {
	local cpus=0,1 bind=$3 run=()
	if [ "$bind" = one ]; then cpus=1 bind=none; fi
	[ "$2" != ibv ] || run=(hack/softverbs/run)
	IBCONDUIT_FABRIC=$2 "${run[@]}" taskset -c "$cpus" "$dir/$1/bin/ibrun" --no-prefix --timeout 60s --bind-to "$bind" -n 2 "$dir/$1/bin/busy" "$4"
}

# beside N: from now on there are so many busy loops, each on a processor, or another job.
beside() {
	local cpu
	set -m # each in a process group of its own
	if [ "$1" = job ]; then
		while :; do job "$2" "$3" "$4" 'all-reduce of 1 KiB'; done >/dev/null 2>&1 &
		others+=($!)
	else
		for ((cpu = 1; cpu > 1 - $1; cpu--)); do
			taskset -c "$cpu" sh -c 'while :; do :; done' &
			others+=($!)
		done
	fi
	set +m
}

ops=('all-reduce of 1 KiB' 'call a rank that serves' 'call a rank in a barrier' 'call a rank that computes'
	'call a rank that collects garbage')
for fabric in $FABRICS; do for bind in $BIND; do for n in $BESIDE; do
	for ((round = 0; round < ROUNDS; round++)); do for rev; do for i in "${!ops[@]}"; do
		beside "$n" "$rev" "$fabric" "$bind"
		job "$rev" "$fabric" "$bind" "${ops[i]}" >>"$dir/$rev-$i"
		quiet
	done; done; done
	for i in "${!ops[@]}"; do
		printf '| %s, ranks bound to %s, beside %s | %s' "$fabric" "$bind" "$n" "${ops[i]}"
		for rev; do
			for column in 1 2 3; do
				[ $column = 1 ] && printf ' | ' || printf '; '
				cut -d' ' -f$column "$dir/$rev-$i" | sort -n | awk '{ v[NR] = $1 } END { printf "%s", v[int((NR + 1) / 2)] }'
			done
			rm "$dir/$rev-$i"
		done
		echo ' |'
	done
done; done; done
