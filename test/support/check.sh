# For script tests that count their checks: the program, a scratch folder, and what a check prints. Sourced from the
# repository's root, where tests run; the test ends with `finish`.
set -uo pipefail
lockstep=${LOCKSTEP:-$PWD/build/lockstep}
work=$(realpath "$(mktemp -d "${TMPDIR:-/tmp}/lockstep-checks.XXXXXX")")
trap 'rm -rf "$work"' EXIT
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
export OMP_WAIT_POLICY=passive LOCKSTEP_AUTO_PRECISION=fp32
passed=0 failed=0
check_output=$work/.check  # a failed check prints the end of this file
good() { printf '[       OK ] %s\n' "$1"; passed=$((passed + 1)); }
bad() { printf '[  FAILED  ] %s\n' "$1"; failed=$((failed + 1)); }
# check WHAT COMMAND...: passes if the command succeeds
check() { if "${@:2}" >"$work/.check" 2>&1; then good "$1"; else bad "$1"; tail -25 "$check_output"; fi; }
# refused STATUS PATTERN COMMAND...: for check; true if the command ends with STATUS and its output matches PATTERN
refused() {
  local status
  "${@:3}" >"$work/.refused" 2>&1
  status=$?
  cat "$work/.refused"
  [[ $status == "$1" ]] && grep -Eq "$2" "$work/.refused"
}
# unprivileged COMMAND...: runs it so that it may read only what permissions allow. Root may ignore them unless it gives
# up that capability.
unprivileged() {
  if [[ $(id -u) == 0 ]]; then setpriv --bounding-set=-dac_override,-dac_read_search "$@"; else "$@"; fi
}
obeys_permissions() { [[ $(id -u) != 0 ]] || command -v setpriv >/dev/null; }
finish() {
  printf '[  PASSED  ] %d tests.\n' "$passed"
  if ((failed)); then printf '[  FAILED  ] %d tests, listed above\n' "$failed"; exit 1; fi
}
