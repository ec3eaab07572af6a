#!/usr/bin/env bash
# What fine locks are worth: ibbench is built twice, as it is and with one lock for everything
# (-tags biglock), and both measure posts per second in turn. The table has medians of the rounds: a
# row for each number of message endpoints and goroutines, and the fine locks' rate over the one
# lock's.
#
#   hack/biglock.sh [FLAG...]     flags of ibbench rate am
#
# ROUNDS (5), LANES (1..4) and GOROUTINES (1..8) choose what is measured, DURATION (200ms) for how
# long at each point; VM=yes measures over Soft-RoCE in the VM. Results: build/bench/biglock.csv.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=hack/common.sh
. hack/common.sh

rounds=${ROUNDS:-5} out=build/bench

# once LOCKS ROUND NAMES: one program's CSV with the first two in front, and its line of names if
# NAMES is not 0.
once() {
  "build/bin/ibbench-$1" rate am -q --format csv "${flags[@]}" </dev/null |
    awk -v locks="$1" -v round="$2" -v names="$3" 'NR == 1 && !names { next } { print (NR == 1 ? "locks,round" : locks "," round) "," $0 }'
}

measure() {
  local round
  for ((round = 1; round <= rounds; round++)); do
    if ((round % 2)); then
      once fine $round $((round == 1))
      once biglock $round 0
    else
      once biglock $round 0
      once fine $round 0
    fi
  done
}

if [ "${1-}" = --measure ]; then # what is left to do in the VM
  flags=("${@:2}")
  measure
  exit
fi

mkdir -p "$out" build/bin
go build -o build/bin/ibbench-fine ./cmd/ibbench
go build -tags biglock -o build/bin/ibbench-biglock ./cmd/ibbench
flags=(--lanes "${LANES:-1..4}" --goroutines "${GOROUTINES:-1..8}" --duration "${DURATION:-200ms}" "$@")
if [ "${VM:-no}" = yes ]; then
  hack/softroce/vm run -timeout 30m -- env ROUNDS="$rounds" hack/biglock.sh --measure "${flags[@]}" </dev/null >"$out/biglock.csv.part"
else
  measure >"$out/biglock.csv.part"
fi
mv "$out/biglock.csv.part" "$out/biglock.csv"
# Columns are found by their names: ibbench may add some.
awk -F, '
  NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
  $at["errors"] > 0 { print "biglock: round " $at["round"] " with " $at["locks"] " locks has errors" > "/dev/stderr"; bad = 1 }
  {
    key = $at["lanes"] " " $at["goroutines"]
    if (!(key in seen)) { seen[key] = 1; order[++n] = key }
    k = ++count[key, $at["locks"]]
    rate[key, $at["locks"], k] = $at["mean"]
  }
  function median(key, locks,   k, i, j, v, x) {
    k = count[key, locks]
    for (i = 1; i <= k; i++) {
      x = rate[key, locks, i] + 0
      for (j = i - 1; j > 0 && v[j] > x; j--) v[j + 1] = v[j]
      v[j + 1] = x
    }
    return k % 2 ? v[(k + 1) / 2] : (v[k / 2] + v[k / 2 + 1]) / 2
  }
  END {
    printf "posts, Mop/s, medians of rounds\n%6s %10s %10s %10s %8s\n", "lanes", "goroutines", "fine", "one lock", "ratio"
    for (i = 1; i <= n; i++) {
      split(order[i], at2, " ")
      f = median(order[i], "fine"); b = median(order[i], "biglock")
      printf "%6d %10d %10.3f %10.3f %8.2f\n", at2[1], at2[2], f / 1e6, b / 1e6, b ? f / b : 0
    }
    exit bad
  }' "$out/biglock.csv"
