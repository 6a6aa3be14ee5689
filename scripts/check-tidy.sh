#!/usr/bin/env bash
# Runs clang-tidy, with the checks of .clang-tidy, on src and kernels or on the given files.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-tidy >/dev/null; then
  echo "check-tidy: clang-tidy is missing; make deps-test installs it" >&2
  exit 77
fi
if (($#)); then
  files=("$@")
else
  mapfile -t files < <(find src kernels -name '*.cpp' | sort)
fi
# Clang gets GCC's commands, but does not know all of their flags.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" \
  clang-tidy -p . --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unknown-pragmas \
  --extra-arg=-include --extra-arg=scripts/source_location_for_clang.h 2>&1 |
  { grep --line-buffered -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header-filter' || true; }
echo "check-tidy: ${#files[@]} files"
