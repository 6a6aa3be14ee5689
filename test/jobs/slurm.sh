# Shared by the tests of job scripts without a cluster: commands with the names of Slurm's that answer as Slurm does on one
# node without GPUs, and a job on it. Sourced after test/support/check.sh.
mkdir -p "$work/slurm" "$work/jobs"
fake() { # NAME: the script is read from standard input
  { echo '#!/bin/bash'; cat; } >"$work/slurm/$1"
  chmod +x "$work/slurm/$1"
}
fake sinfo <<'END_OF_SCRIPT'
case $* in *%R*) echo main ;; *%P*) echo 'main*' ;; *%G*) echo '(null)' ;; esac
END_OF_SCRIPT
fake sbatch <<'END_OF_SCRIPT'
echo 'sbatch: Job 1 to start at once' >&2
END_OF_SCRIPT
# The options end where the command begins; a command that asks a node is executed.
fake srun <<'END_OF_SCRIPT'
if [[ $1 == --mpi=list ]]; then echo pmix; fi
while [[ ${1-} == -* ]]; do shift; done
exec "$@"
END_OF_SCRIPT
fake scontrol <<END_OF_SCRIPT
case \$1 in
  requeue) echo "\$2" >>"$work/requeued" ;;
  *) echo "JobId=7 JobState=RUNNING Requeue=\${REQUEUE_OF_JOB:-0} " ;;
esac
END_OF_SCRIPT
export PATH=$work/slurm:$PATH
for variable in $(compgen -e | grep -E '^(LOCKSTEP_|OVERRIDES$|SBATCH_|SLURM_)'); do unset "$variable"; done
export LOCKSTEP=$lockstep LOCKSTEP_CACHE=none LOCKSTEP_LAUNCHER=mpirun LOCKSTEP_MPIRUN='mpirun --oversubscribe --bind-to none'
export OMPI_MCA_ras=^slurm OMPI_MCA_plm=^slurm

# A small training; a job script with this launch line.
small=(model.width=16 data.train=synthetic data.validation= data.image_size=8 data.synthetic_samples=4000 train.global_batch=6
  train.epochs=100 evaluation.every_epochs=0 checkpoint.every_epochs=0 cpu.threads=1 log.every_steps=1 log.progress=false
  log.tensorboard=false device=cpu)
script() { # NAME LAUNCH-LINE
  printf '%s\n' '#!/bin/bash' '#SBATCH --job-name=from-script' '#SBATCH --nodes=1 --ntasks-per-node=2 --time=10 --signal=B:USR2@120' \
    ". $PWD/jobs/lib/job.sh" "$2" >"$work/jobs/$1.sh"
}
# Starts a job of two ranks as Slurm starts the batch shell, in $work/jobs. Its log is $log.
begin_job() { # SCRIPT NAME [VARIABLE=VALUE]...
  log=$work/$2.log
  rm -f "$work/requeued"
  : >"$log" # Before the job starts: what an earlier job of this name wrote must not pass for what this one writes.
  (cd "$work/jobs" && exec env SLURM_JOB_ID=7 SLURM_JOB_NAME="$2" SLURM_JOB_NUM_NODES=1 SLURM_NTASKS_PER_NODE=2 SLURM_CPUS_ON_NODE=2 \
    SLURM_JOB_NODELIST=node1 "${@:3}" bash "$1") >"$log" 2>&1 </dev/null &
  job=$!
}
in_log() { grep -Eq -- "$1" "$log"; }
wait_for() { # COMMAND...: while the job runs, at most 60 s
  local end=$((SECONDS + 60))
  until "$@"; do
    if ((SECONDS > end)) || ! kill -0 $job 2>/dev/null; then return 1; fi
    sleep 0.05
  done
}
step_is() { [[ $(grep -c '"event":"step"' "$1/metrics.jsonl" 2>/dev/null) -ge $2 ]]; } # RUN STEP
# The job ends with this exit status, and the last line of its log matches.
ends() { # WHAT STATUS PATTERN-OF-THE-LAST-LINE
  local status
  wait $job
  status=$?
  if [[ $status == "$2" ]] && tail -n 1 "$log" | grep -Eq -- "$3"; then good "$1"; else bad "$1 (status $status)"; tail -n 15 "$log"; fi
}
