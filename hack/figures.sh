#!/usr/bin/env bash
# The table of docs/performance.md, from docs/performance/figures.txt.
#
#   hack/figures.sh            write the table
#   hack/figures.sh FOLDER     take what `make bench` measured (build/bench) into the file first
set -euo pipefail
cd "$(dirname "$0")/.."
file=docs/performance/figures.txt page=docs/performance.md
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# measured FOLDER: KEY|RATIO (LOW to HIGH)|VERDICT|COMMIT, DATE of each comparison that has a goal,
# one JSON record a line.
measured() {
  local f
  for f in "$1"/*.json; do
    sed -nE 's/^\{.*"op":"([a-z]+)","size":([0-9]+).*"time":"([0-9-]+)T.*"commit":"([0-9a-f]{8}).*"goal":\{"ratio":[0-9.]+,"verdict":"([a-z ]+)"\}.*[,{]"ratio":\{"best":([0-9.]+)(,"interval":\[([0-9.]+),([0-9.]+)\])?.*/'"$(basename "$f" .json)"' \1 \2|\6 (\8 to \9)|\5|\4, \3/p' "$f"
  done | sed 's/ ( to )//'
}

if [ $# -gt 0 ]; then
  measured "$1" | awk -F'|' '
    NR == FNR { got[$1] = $2 " | " $3 " | " $4; next }
    /^#/ { print; next }
    { split($0, col, / \| /); key = col[1]; sub(/.*, /, "", key)
      print (key in got ? col[1] " | " col[2] " | " col[3] " | " got[key] : $0) }' - "$file" >"$new"
  cat "$new" >"$file"
fi

awk -F' [|] ' '
  NR == FNR { if (/^#/) next
    group = $1; sub(/, [^,]*$/, "", group)
    table = table "| " group ": " $2 " | " $3 " | " $4 " | " $5 " |\n"; next }
  /^<!-- figures/ { print; print "| figure | goal | measured | verdict |\n|---|---|---|---|"; printf "%s", table; skip = 1 }
  /^<!-- end/ { skip = 0 }
  !skip { print }' "$file" "$page" >"$new"
cat "$new" >"$page"
