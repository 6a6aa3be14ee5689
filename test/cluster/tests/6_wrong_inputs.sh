# Each wrong input is reported in one sentence, by jobs/check.sh before a job is submitted and by the job in its first
# seconds. The job then ends with exit status 2 and has not trained.
job_reports() { # REGULAR-EXPRESSION SBATCH-OPTION... SCRIPT
  submit "${@:2}" && until_true 60 is_over "$job" && has_state "$job" FAILED && [[ $(field "$job" ExitCode) == 2:0 ]] &&
    in_log "$job" "^(problem: |lockstep: ).*($1)" && in_log "$job" '^  remedy: .' && ! in_log "$job" 'step 1/' && return
  show_log "$job"
  return 1
}
# A permanent error on one node: the job fails and is not requeued, its last line is the error, and there is no run directory.
job_fails_on_node2() { # LAUNCHER
  LOCKSTEP=$work/no-data LOCKSTEP_LAUNCHER=$1 LOCKSTEP_REQUEUE=1 submit --nodelist=node1,node2 --ntasks-per-node=1 \
    "$repository/jobs/resnet50_2nodes.sh"
  until_true 90 is_over "$job" && has_state "$job" FAILED && [[ $(field "$job" ExitCode) == 1:0 && $(field "$job" Restarts) == 0 ]] &&
    tail -n 1 "$(log_of "$job")" | grep -q '^== rank 1 on node2: .*\[cannot_open\]$' && [[ ! -e $work/jobs/runs/resnet50-2nodes ]] && return
  show_log "$job"
  return 1
}
before_queueing() {
  local ask=$repository/jobs/check.sh script=$repository/jobs/resnet50_4gpu.sh site=$work/site.sh
  cd "$work/jobs" || return
  export OVERRIDES="$short"
  check "check.sh: no problems" reports 0 'no problems found' "$ask" --allocate "$script" "$repository/jobs/resnet50_8nodes.sh"
  check "check.sh: no site file" reports 2 'there is no file .*/nope.sh' "$ask" "$work/nope.sh" "$script"
  { cat "$repository/modules/site/generic-mpirun.sh"; echo 'export LOCKSTEP_LAUNCHR=srun'; } >"$site"
  check "check.sh: a variable that nothing reads" reports 1 'sets LOCKSTEP_LAUNCHR, which nothing reads' "$ask" "$site" "$script"
  { cat "$repository/modules/site/generic-mpirun.sh"; echo 'export LOCKSTEP_RUNS=$NO_SUCH_SCRATCH/runs'; } >"$site"
  check "check.sh: a variable that is not set" reports 1 'site.sh fails: .*NO_SUCH_SCRATCH: unbound' "$ask" "$site" "$script"
  check "check.sh: no such module" reports 1 'the module no-such/1.0 is missing|there is no command .module' \
    env LOCKSTEP_MODULES=no-such/1.0 "$ask" "$script"
  check "check.sh: no such partition" reports 1 'there is no partition nope here' env SBATCH_PARTITION=nope "$ask" "$script"
  sed 's/per-node=4/per-node=16/g' "$script" >"$work/sixteen.sh"
  check "check.sh: fewer GPUs per node than requested" reports 1 'requests 16 GPUs per node, but the nodes of main have 8' "$ask" "$work/sixteen.sh"
  sed 's/--ntasks-per-node=4/--ntasks-per-node=6/' "$script" >"$work/six.sh"
  check "check.sh: fewer GPUs than ranks" reports 1 'needs a GPU for each of its ranks: it has 4 per node, for 6' \
    env OVERRIDES="data.train=synthetic data.validation=synthetic" "$ask" "$work/six.sh"
  check "check.sh: none are needed with device=cpu" reports 0 'no problems found' "$ask" "$work/six.sh"
  sed 's/--nodes=1/--nodes=9/' "$script" >"$work/nine.sh"
  check "check.sh: more nodes than there are" reports 1 'Slurm refuses .*nine.sh: .*not available' "$ask" "$work/nine.sh"
  check "check.sh: Slurm without that PMIx" reports 1 'cannot start MPI by pmix_v9' \
    env LOCKSTEP_LAUNCHER=srun SLURM_MPI_TYPE=pmix_v9 "$ask" "$script"
  check "check.sh: no such launcher" reports 1 'LOCKSTEP_LAUNCHER=ssh is not a launcher' env LOCKSTEP_LAUNCHER=ssh "$ask" "$script"
  check "check.sh: no program" reports 1 'the program is missing' env LOCKSTEP="$work/nowhere" "$ask" "$script"
  printf '#!/bin/sh\necho "libdnnl.so.3: cannot open shared object file" >&2\nexit 127\n' >"$work/broken"
  chmod +x "$work/broken"
  check "check.sh: a program that does not start" reports 1 'does not start on .*libdnnl' env LOCKSTEP="$work/broken" "$ask" "$script"
  check "check.sh: LOCKSTEP_DATA is not set" reports 1 'below ..LOCKSTEP_DATA., which is not set' \
    env -u LOCKSTEP_DATA LOCKSTEP_SITE="$repository/modules/site/generic-mpirun.sh" "$ask" "$script"
  check "check.sh: no data" reports 1 'cannot open .*imagenet/train.h5' env OVERRIDES=device=cpu "$ask" "$script"
  check "check.sh: no validation set" reports 1 'the validation set .*imagenet/val.h5 cannot be read' \
    env OVERRIDES="device=cpu data.train=synthetic" "$ask" "$script"
  check "check.sh: overrides that the parser rejects" reports 1 'no key train.epoch; the nearest is train.epochs' \
    env OVERRIDES="$short train.epoch=3" "$ask" "$script"
  check "check.sh: a list that sbatch --export cut off" reports 1 'OVERRIDES ends inside a list' env OVERRIDES="$short data.augment=[crop" "$ask" "$script"
  echo 'export LOCKSTEP_LAUNCHER=mpirun' >"$site"
  check "check.sh: LOCKSTEP_HOME is not set" reports 1 'LOCKSTEP_HOME is not set, and .* has no jobs/lib/job.sh' \
    env -u LOCKSTEP_HOME "$ask" "$site" "$script"
  check "check.sh: LOCKSTEP_HOME without jobs" reports 1 '^problem: / has no jobs/lib/job.sh' env LOCKSTEP_HOME=/ "$ask" "$site" "$script"
  check "check.sh: a run directory that cannot be created" reports 1 'run directory .* cannot be created' env LOCKSTEP_RUNS=/proc/runs "$ask" "$script"
  check "check.sh: a run directory that nodes do not see" reports 1 'node2 does not see the run directory /dev/shm' \
    env LOCKSTEP_RUNS=/dev/shm "$ask" --allocate "$repository/jobs/resnet50_2nodes.sh"
  check "check.sh: another build on a node" reports 1 'differs: lockstep .* on .*, lockstep 0.0.1 .* on node2' \
    env LOCKSTEP="$work/two-builds" "$ask" --allocate "$repository/jobs/resnet50_2nodes.sh"
  check "a job script outside Slurm names sbatch and mpirun" reports 2 'submit it with: sbatch .*resnet50_4gpu.sh; or' env -u SLURM_JOB_ID bash "$script"
  check "check.sh: wrong usage" reports 2 'no option --allocat;' "$ask" --allocat
}
in_jobs() {
  export OVERRIDES="$short"
  rm -rf "$work/jobs/runs"
  check "job: LOCKSTEP_HOME without jobs" env LOCKSTEP_HOME=/ bash -c '! bash "$1" >"$2" 2>&1 && grep -q "no jobs/lib/job.sh in /: run" "$2"' \
    bash "$repository/jobs/resnet50_1gpu.sh" "$work/output"
  LOCKSTEP_SITE=$work/nope.sh check "job: no site file" job_reports 'the site file .*/nope.sh cannot be read' "$repository/jobs/resnet50_1gpu.sh"
  LOCKSTEP_MODULES=no-such/1.0 check "job: no such module" job_reports 'the module no-such/1.0 is missing|there is no command' "$repository/jobs/resnet50_1gpu.sh"
  OVERRIDES="data.train=synthetic" check "job: fewer GPUs than ranks" job_reports 'needs a GPU for each of its ranks: it has 2 per node, for 4' \
    --gpus-per-node=2 "$repository/jobs/resnet50_4gpu.sh"
  LOCKSTEP_RUNS=/dev/shm/lockstep-test check "job: a run directory that other nodes do not see" \
    job_reports 'node2 does not see the run directory /dev/shm' --nodelist=node1,node2 "$repository/jobs/resnet50_2nodes.sh"
  LOCKSTEP=$work/two-builds check "job: another build on a node" job_reports 'two-builds differs: .* on node1, .* on node2' \
    --nodelist=node1,node2 "$repository/jobs/resnet50_2nodes.sh"
  check "job: a list that sbatch --export cut off" job_reports 'OVERRIDES ends inside a list' --export=ALL,OVERRIDES="data.augment=[crop,flip]" \
    "$repository/jobs/resnet50_1gpu.sh"
  OVERRIDES="$short train.epoch=3" check "job: overrides that the parser rejects" job_reports 'no key train.epoch' "$repository/jobs/resnet50_1gpu.sh"
  check "job: data that only node1 has, with mpirun" job_fails_on_node2 mpirun
  check "job: data that only node1 has, with srun" job_fails_on_node2 srun
  check "nothing was trained" test -z "$(find "$work/jobs/runs" -name '*.h5' 2>/dev/null)"
}
eight_nodes
# Prints another version on node2, as an old copy on the disk of that node would.
printf '#!/bin/bash\n[[ $(hostname) != node2 || $1 != --version ]] || { echo "lockstep 0.0.1 (0123456)"; exit 0; }\nexec %q "$@"\n' \
  "$LOCKSTEP" >"$work/two-builds"
printf '#!/bin/bash\nif [[ $(hostname) == node2 && $1 == train ]]; then set -- "$@" data.train=/nowhere.h5; fi\nexec %q "$@"\n' \
  "$LOCKSTEP" >"$work/no-data"
chmod +x "$work/two-builds" "$work/no-data"
before_queueing
cd "$repository" || finish
in_jobs
