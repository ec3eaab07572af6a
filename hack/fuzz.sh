#!/usr/bin/env bash
# Runs every fuzz test of the project for a time each (hack/fuzz.sh 10s); only their seeds run in
# make test.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=hack/common.sh
. hack/common.sh

mapfile -t tests < <(git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go')
[ ${#tests[@]} -gt 0 ] || { echo "no fuzz tests"; exit 0; }
for t in "${tests[@]}"; do # DIR/FILE:func NAME
  dir=./$(dirname "${t%%:*}") name=${t##* }
  echo "== $dir $name"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "${1:-10s}" "$dir" </dev/null
done
