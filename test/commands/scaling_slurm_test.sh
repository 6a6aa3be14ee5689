#!/usr/bin/env bash
# timeout: 240
# cores: 2
# lockstep scaling run with Slurm, whose commands are played by two scripts: sizes that cannot start are refused before
# anything is submitted; cases run one after the other or side by side; --wait ends with the report, after a failure, and
# with Ctrl-C. test/cluster/tests/8_scaling.sh runs a study with the real Slurm.
source test/support/check.sh

export LOCKSTEP_CACHE=none TMPDIR=$work
export LOCKSTEP_MPIRUN="${MPIRUN:-mpirun} --oversubscribe --bind-to none"
export QUEUE=$work/queue FINISHED=$work/local/cases
tiny=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=48 cpu.threads=1 device=cpu train.global_batch=12)
shape=(--ranks 1,2 --repeat 2 --steps 16 --warmup 4)

# A job copies the run of the same case, which a local study has trained. The partition has 2 nodes.
mkdir -p "$work/bin" "$QUEUE"
cat >"$work/bin/sbatch" <<'END'
#!/bin/bash
for word in "$@"; do
  case $word in
    --test-only) is_test=1 ;;
    --nodes=*) nodes=${word#*=} ;;
    --dependency=afterany:*) after=${word#*:} ;;
  esac
done
if ((nodes > ${NODES:-2})); then echo "allocation failure: Requested node configuration is not available" >&2; exit 1; fi
if [[ ${is_test:-} ]]; then exit 0; fi
id=$(($(find "$QUEUE" -name '*.job' | wc -l) + 1))
echo "$LOCKSTEP_CASE $*" >"$QUEUE/$id.job"
echo PENDING >"$QUEUE/$id.state"
{
  for job in ${after//:/ }; do while [[ -e $QUEUE/$job.state ]]; do sleep 0.05; done; done
  echo RUNNING >"$QUEUE/$id.state"
  echo "begin $id" >>"$QUEUE/log"
  sleep "${SECONDS_OF_JOB:-1}"
  mkdir -p "$LOCKSTEP_CASE/run"
  if [[ ${FAILS:-} && $LOCKSTEP_CASE == *$FAILS ]]; then
    echo failed >"$LOCKSTEP_CASE/run/status"
    echo "the node has no memory left" >"$LOCKSTEP_CASE/output.txt"
  else
    cp -r "$FINISHED/$(basename "$LOCKSTEP_CASE")/run" "$LOCKSTEP_CASE"
  fi
  echo "end $id" >>"$QUEUE/log"
  rm "$QUEUE/$id.state"
} >/dev/null 2>&1 &
echo "$id"
END
cat >"$work/bin/squeue" <<'END'
#!/bin/bash
for word in "$@"; do case $word in --jobs=*) jobs=${word#*=} ;; esac; done
for job in ${jobs//,/ }; do if [[ -e $QUEUE/$job.state ]]; then echo "$job $(<"$QUEUE/$job.state")"; fi; done
END
chmod +x "$work/bin/sbatch" "$work/bin/squeue"

study=$work/study
run() { PATH=$work/bin:$PATH "$lockstep" scaling run "${tiny[@]}" --out "$study" "$@" >"$work/text" 2>&1; }
shows() { grep -Eq -- "$1" "$work/text" || { cat "$work/text"; return 1; }; }
ends_with() { local status; "${@:2}"; status=$?; cat "$work/text"; [[ $status == "$1" ]]; } # STATUS COMMAND...
submitted() { grep -l "^$study/" "$QUEUE"/*.job 2>/dev/null | wc -l; }
none_is_queued() { ! compgen -G "$QUEUE/*.state"; }
# The greatest number of jobs that ran at the same time since the last call.
most_at_once() {
  awk '/begin/ {n++} /end/ {n--} n > most {most = n} END {print most}' "$QUEUE/log"
  rm "$QUEUE/log"
}
until_true() { for _ in {1..600}; do "$@" && return; sleep 0.05; done; return 1; }

check "a local study, whose runs the jobs copy" "$lockstep" scaling run "${tiny[@]}" --out "$work/local" "${shape[@]}"

# ---- Sizes that Slurm cannot start ----
check "more nodes than the partition has" ends_with 2 run --nodes 1,2,4 --ranks-per-node 2
check "  are refused with Slurm's answer" shows '4 nodes.*nothing was submitted: allocation failure: Requested node configuration is not available'
check "  before anything is submitted" test "$(submitted)" = 0
check "  or written, so that other sizes can be given" test ! -e "$study"

# ---- One after the other, and the report ----
check "--wait" run --submit "${shape[@]}" --wait
check "  shows progress" shows '^[1-3] of 4 cases are finished, [01] running, [0-3] waiting\.$'
check "  ends with the report" shows '^Multi-rank \(2 ranks, 1 node\)  [0-2] of 2 '
check "  submits each case once" test "$(submitted)" = 4
check "  and runs them one after the other" test "$(most_at_once)" = 1
check "  with names that begin with ranks and repeat, and end with the study" bash -c \
  "cat '$QUEUE'/*.job | grep -o -- '--job-name=[^ ]*' | sort | xargs | grep -x -- '--job-name=r1.1-study --job-name=r1.2-study --job-name=r2.1-study --job-name=r2.2-study'"
check "  on nodes of their own" bash -c "! grep -L -- --exclusive '$QUEUE'/*.job | grep ."

# ---- Side by side ----
study=$work/parallel
check "--parallel 2" run --submit "${shape[@]}" --parallel 2 --wait
check "  runs two cases at the same time" test "$(most_at_once)" = 2
check "  still on nodes of their own" bash -c "! grep -L -- --exclusive '$QUEUE'/*.job | grep ."
study=$work/five
run --submit --ranks 1,2,3,4,5 --repeat 1 --steps 16 --warmup 4 --dry-run --parallel 3 --share-nodes
check "  a dry run: the fourth case waits for the first" bash -c "(( \$(grep -c 'afterany:JOB' '$work/text') == 2 ))"
check "    and says which job that is" shows '^JOB is the job ID that the sbatch 3 lines before it prints\.$'
check "  --share-nodes leaves the nodes to other jobs, too" bash -c "! grep -e --exclusive '$work/text'"
check "  a local study runs one case at a time" ends_with 2 run --ranks 1,2 --parallel 2

# ---- Ctrl-C, and the next command with another number of cases at the same time ----
study=$work/stopped
export SECONDS_OF_JOB=2
PATH=$work/bin:$PATH "$lockstep" scaling run "${tiny[@]}" --out "$study" --submit "${shape[@]}" --parallel 3 --wait >"$work/text" 2>&1 &
waiting=$!
check "while it waits" until_true shows '4 submitted'
kill -INT $waiting
wait $waiting
check "  Ctrl-C ends it with 75" test $? = 75
check "  and says how to continue" shows '^Stopped waiting \(SIGINT\)\. 0 of 4 cases .* repeat the command .* `scancel [0-9 ]+`\.$'
check "  but not the jobs" bash -c "compgen -G '$QUEUE/*.state'"
check "the next command waits for them" run --submit "${shape[@]}" --wait
check "  and submits none again" test "$(submitted)" = 4
check "  to the end" shows '^4 of 4 cases are finished, 0 running, 0 waiting\.$'
rm "$QUEUE/log"

# ---- A case that fails, and a size whose nodes are gone ----
study=$work/failing
export SECONDS_OF_JOB=0.2
FAILS=ranks-0002-repeat-1 check "a case that fails" ends_with 1 run --submit "${shape[@]}" --wait
check "  is named" shows '^ranks-0002-repeat-1 was not finished by job [0-9]+;'
check "  with what it printed" shows '^the node has no memory left$'
check "  after all others" shows '^3 of 4 cases are finished, 0 running, 0 waiting\.$'
check "  and what to do" shows '^1 case not finished: repeat the command'
NODES=0 check "nodes that are gone when the study is continued" run --submit "${shape[@]}"
check "  leave out the cases that need them" shows '^ranks-0002-repeat-1 is skipped, since Slurm cannot start it: '
check "the command repeats the case" run --submit "${shape[@]}" --wait
check "  and it alone" test "$(submitted)" = 5
check "no job is left" until_true none_is_queued
finish
