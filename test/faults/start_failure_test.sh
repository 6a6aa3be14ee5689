#!/usr/bin/env bash
# timeout: 300
# cores: 0
# A start that fails on one rank only, such as data that are missing on one node: all ranks report the same error, the exit
# status is that of the error, and the run directory stays as it was. No rank takes the end of the job for a request to
# stop: mpirun sends SIGTERM to the ranks that have not failed.
source test/faults/common.sh

# Adds words to the command line of rank 1, which is on a node of its own.
export LOCKSTEP_RANKS_PER_NODE=1 LOCKSTEP_CACHE=none
cat >"$work/rank1" <<END_OF_SCRIPT
#!/bin/bash
if [[ \$OMPI_COMM_WORLD_RANK == 1 ]]; then eval "\$RANK1"; fi
exec "$lockstep" "\$@"
END_OF_SCRIPT
chmod +x "$work/rank1"
command_of=("$work/rank1" "${command_of[@]:1}")
cp data/samples/cifar10_train.h5 "$work/train.h5"

state_of() { find "$1" -mindepth 1 -exec stat -c '%n %i %s %.9Y' {} + 2>/dev/null | LC_ALL=C sort; }
fails_on_rank_1() { # WHAT STATUS CODE WORDS-OF-RANK-1 [KEY=VALUE]...
  local before code
  for name in new used; do
    before=$(state_of "$work/$name")
    RANK1="set -- \"\$@\" $4" start "$name" 2 train.max_steps=3 "${@:5}"
    ends "$1" "$2" 60
    code=$(grep -oE '^  \[[a-z_]+\]$' "$out" | sort -u)
    check "$name:   its code is $3, and there is no other" test "$code" = "  [$3]"
    check "$name:   it is reported once, for rank 1" test "$(grep -cE '^lockstep: rank 1 ' "$out")" = 1
    check "$name:   no rank has stopped" bash -c "! grep -q 'stopped by a signal' '$out'"
    check "$name:   the run directory is as before" test "$(state_of "$work/$name")" = "$before"
  done
}

check "a run" launch 2 run.name=used train.max_steps=2
fails_on_rank_1 "data that are missing on one node" 1 cannot_open "data.train='$work/nowhere.h5'" --fresh
fails_on_rank_1 "a validation set that is missing on one node" 1 cannot_open "data.validation='$work/nowhere.h5'"
fails_on_rank_1 "data with other samples on one node" 1 data_source data.synthetic_samples=5000 --fresh
fails_on_rank_1 "a model that is missing on one node" 1 cannot_open "model.initialize_from='$work/nowhere.h5'" --fresh
fails_on_rank_1 "a configuration that is missing on one node" 2 config_unreadable "'$work/nowhere.yaml'"
fails_on_rank_1 "an override that one rank rejects" 2 config_invalid cpu.threads=0

finish
