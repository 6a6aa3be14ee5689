#!/usr/bin/env bash
# cores: 0
# Ranks that run different builds, under mpirun without the job library: each command reports nodes_differ and ends with 2.
source test/support/check.sh

commit=$("$lockstep" --version | sed -nE '1s/.*\((.{,8}).*\)$/\1/p') # the compiler may keep longer texts in parts
LC_ALL=C sed "s/$commit/$(tr 0-9a-z 1-9a-z0 <<<"$commit")/g" "$lockstep" >"$work/other" # of the same length
chmod +x "$work/other"
check "another build" bash -c '[[ $("$0" --version) != $("$1" --version) ]]' "$lockstep" "$work/other"
if ((failed)); then finish; fi
mixed() { # PROGRAM PROGRAM ARGUMENT...: one rank of each
  timeout 30 mpirun --oversubscribe --bind-to none -n 1 "$1" "${@:3}" : -n 1 "$2" "${@:3}"
}
train=(train jobs/configs/quickstart.yaml data.train=synthetic data.validation= run.directory="$work" run.name=mixed)
for i in 1 2 3; do
  check "train ($i)" refused 2 '\[nodes_differ\]' mixed "$lockstep" "$work/other" "${train[@]}"
done
check "  names both" grep -q "rank 1 on .* runs lockstep .* but rank 0 on .* runs lockstep .*$commit" "$work/.refused"
check "  writes nothing" test ! -e "$work/mixed"
check "rank 0 has the other build" refused 2 '\[nodes_differ\]' mixed "$work/other" "$lockstep" "${train[@]}"
check "generate" refused 2 '\[nodes_differ\]' mixed "$lockstep" "$work/other" generate x --prompt y
finish
