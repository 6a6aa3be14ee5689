#!/usr/bin/env bash
# Every code of src/errors.def is thrown somewhere, and has its section in TROUBLESHOOTING.md: with its exit status, an
# example, a cause and a remedy. No section is of a code that is gone.
set -uo pipefail
page=TROUBLESHOOTING.md
failed=0
say() { echo "$*"; failed=1; }

table=$(sed -nE 's/^LOCKSTEP_ERROR\(([a-z_]+), ([0-9]+),.*/\1 (\2)/p' src/errors.def | sort)
sections=$(sed -nE 's/^### `([a-z_]+)` \(([0-9]+)\)$/\1 (\2)/p' "$page" | sort)
[[ $(wc -l <<<"$table") -gt 20 ]] || say "src/errors.def could not be read"
difference=$(diff <(echo "$table") <(echo "$sections")) ||
  say "src/errors.def (<) and the sections of $page (>) differ:
$difference"

# A comparison with a code throws nothing.
thrown=$(grep -rhE 'ErrorCode::[a-z_]+' src include kernels --include='*.cpp' --include='*.h' |
  sed -E 's/[=!]= *ErrorCode::[a-z_]+//g' | grep -oE 'ErrorCode::[a-z_]+' | sed 's/.*:://' | sort -u)
while read -r code _; do
  grep -qx "$code" <<<"$thrown" || say "$code: nothing throws it"
  section=$(sed -n "/^### \`$code\`/,/^##/p" "$page" | sed 1d)
  for wanted in '^    lockstep: ' '^Cause: .' '^Remedy: .'; do
    grep -q "$wanted" <<<"$section" || say "$page: the section of $code lacks a line '$wanted'"
  done
done <<<"$table"
exit $failed
