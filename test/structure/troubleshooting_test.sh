#!/usr/bin/env bash
# Every code of src/errors.def is thrown somewhere and has a section in docs/troubleshooting.md, with its exit status, an
# example and an explanation. There is no section for a code that does not exist.
set -uo pipefail
page=docs/troubleshooting.md
failed=0
fail() { echo "$*"; failed=1; }

table=$(sed -nE 's/^LOCKSTEP_ERROR\(([a-z_]+), ([0-9]+),.*/\1 (\2)/p' src/errors.def | sort)
sections=$(sed -nE 's/^### `([a-z_]+)` \(([0-9]+)\)$/\1 (\2)/p' "$page" | sort)
[[ $(wc -l <<<"$table") -gt 20 ]] || fail "src/errors.def could not be read"
difference=$(diff <(echo "$table") <(echo "$sections")) ||
  fail "src/errors.def (<) and the sections of $page (>) differ:
$difference"

# A comparison with a code does not count as throwing it.
thrown=$(grep -rhE 'ErrorCode::[a-z_]+' src include kernels --include='*.cpp' --include='*.h' |
  sed -E 's/[=!]= *ErrorCode::[a-z_]+//g' | grep -oE 'ErrorCode::[a-z_]+' | sed 's/.*:://' | sort -u)
while read -r code _; do
  grep -qx "$code" <<<"$thrown" || fail "$code: nothing throws it"
  section=$(sed -n "/^### \`$code\`/,/^##/p" "$page" | sed '1d; $d')
  for required in '^    lockstep: ' '^[A-Z`]'; do
    grep -q "$required" <<<"$section" || fail "$page: the section of $code lacks a line '$required'"
  done
done <<<"$table"
exit $failed
