# Shared by the tests in this folder: a tiny training on 2 or 3 ranks, and commands that watch and disturb it. Sourced.
source test/support/check.sh
job=
# A failed test must not leave processes behind. SIGTERM does not end stopped ranks.
trap 'if [[ -n $job ]]; then kill -KILL $(ranks_of $job) $job 2>/dev/null; fi; rm -rf "$work"' EXIT

tiny=(jobs/configs/quickstart.yaml model.width=16 comm.bucket_mb=2 data.train=synthetic data.validation= data.image_size=8 data.synthetic_samples=4000
  train.global_batch=6 train.epochs=100 evaluation.every_epochs=0 checkpoint.every_epochs=0 cpu.threads=1
  log.every_steps=1 log.progress=false log.tensorboard=false log.slow_rank_percent=0 run.directory="$work")
launcher=()                                       # the command in front of mpirun
command_of=("$lockstep" train "${tiny[@]}")       # the command of the ranks
launch() { "${launcher[@]}" mpirun --oversubscribe --bind-to none -n "$1" "${command_of[@]}" "${@:2}"; }
# start NAME RANKS KEY=VALUE...: starts the training in the background; its output goes to $work/NAME.out
start() {
  name=$1 out=$work/$1.out
  : >"$out"
  # With exec the job is mpirun (or the launcher) itself, so that signals do not go to a shell.
  (exec "${launcher[@]}" mpirun --oversubscribe --bind-to none -n "$2" "${command_of[@]}" run.name="$1" "${@:3}") \
    >"$out" 2>&1 &
  job=$!
}
tree() { local child; for child in $(pgrep -P "$1"); do echo "$child"; tree "$child"; done; }
ranks_of() { # prints the processes of the ranks below mpirun
  local process
  for process in $(tree "$1"); do
    if [[ $(readlink "/proc/$process/exe") == "$(readlink -f "$lockstep")" ]]; then echo "$process"; fi
  done
}
rank() { # rank NUMBER: prints its process
  local process
  for process in $(ranks_of $job); do
    if grep -qxz "OMPI_COMM_WORLD_RANK=$1" "/proc/$process/environ" 2>/dev/null; then echo "$process"; fi
  done
}
step_is() { [[ $(grep -c '"event":"step"' "$work/$name/metrics.jsonl" 2>/dev/null) -ge $1 ]]; }
wait_for() { # wait_for SECONDS COMMAND...
  local end=$((SECONDS + $1))
  until "${@:2}"; do
    if ((SECONDS > end)) || ! kill -0 $job 2>/dev/null; then return 1; fi
    sleep 0.02
  done
}
begun() { check "$name: starts" wait_for 60 step_is "${1:-2}"; }
ends() { # ends WHAT STATUS SECONDS: the job ends within the time and with that exit status
  local end=$((SECONDS + $3)) status
  while kill -0 $job 2>/dev/null && ((SECONDS <= end)); do sleep 0.1; done
  if kill -0 $job 2>/dev/null; then bad "$name: $1 (still running after $3 s)"; kill -KILL $(ranks_of $job) $job; wait $job; return; fi
  wait $job
  status=$?
  if [[ $status == "$2" ]]; then good "$name: $1"; else bad "$name: $1 (status $status)"; tail -20 "$out"; fi
}
prints() { # prints WHAT PATTERN: the output matches
  if grep -Eq -- "$2" "$out"; then good "$name: $1"; else bad "$name: $1 (no line matches '$2')"; tail -20 "$out"; fi
}
status_is() { check "$name: RUN/status is $1" grep -qx "$1" "$work/$name/status"; }
last_step() { sed -n 's/.*"step":\([0-9]*\).*/\1/p' "$work/$name/metrics.jsonl" | tail -1; }
# resumes STEPS RANKS: the same command resumes the run and trains STEPS more steps
resumes() {
  check "$name: the same command resumes" launch "$2" run.name="$name" train.max_steps=$(($(last_step) + $1)) "${@:3}"
  status_is done
}
# In a build without oneDNN (DNNL=0), forward and backward make no calls that the wrapper could intercept.
has_onednn() { ! "$lockstep" --version | grep -q 'oneDNN *none'; }
