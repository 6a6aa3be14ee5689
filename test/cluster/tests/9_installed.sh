# What a user of an installation does: make install, module load, check.sh, sbatch, and the memory report.
# It comes last, since it replaces the environment of the program with that of the module.
installed() {
  local init build=${LOCKSTEP%/*}
  local variables=(BUILD="${build#"$repository"/}")
  "$LOCKSTEP" --version | grep -q '^  CUDA' || variables+=(CUDA=0) # it must not be rebuilt
  check "make install" make --no-print-directory "${variables[@]}" PREFIX="$work/opt" install
  for init in /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do if [[ -r $init ]]; then break; fi; done
  if [[ ! -r $init ]]; then
    echo "skipped: there is no command \`module\`; make deps-test installs it"
    ((skipped += 1))
    return
  fi
  cd "$work/jobs" || return
  rm -rf runs
  unset LOCKSTEP LOCKSTEP_HOME LOCKSTEP_DATA LOCKSTEP_LAUNCHER SBATCH_PARTITION
  export LOCKSTEP_SITE=mini-slurm
  set +u # the start-up files of modules use unset variables
  source "$init"
  module use "$work/opt/modulefiles"
  check "module load lockstep" module load lockstep
  set -u
  check "it sets LOCKSTEP_HOME" test "$LOCKSTEP_HOME" = "$work/opt/share/lockstep"
  check "it sets what the site file exports" test "$SBATCH_PARTITION $LOCKSTEP_LAUNCHER" = "main mpirun"
  check "lockstep is on PATH" test "$(command -v lockstep)" = "$work/opt/bin/lockstep"
  # A module that the jobs load, as they would load a site's MPI.
  mkdir -p "$work/modules"
  printf '#%%Module1.0\nsetenv LOCKSTEP_TEST_MODULE loaded\n' >"$work/modules/site-mpi"
  module use "$work/modules"
  export LOCKSTEP_MODULES=site-mpi
  export OVERRIDES="$short $steps_4 log.usage_seconds=1 run.name=\${LOCKSTEP_TEST_MODULE}"
  check "check.sh of the installation" reports 0 'no problems found' "$LOCKSTEP_HOME/jobs/check.sh" --allocate "$LOCKSTEP_HOME/jobs/resnet18_2gpu.sh"
  check "resnet18_2gpu.sh of the installation: completed" run_to_end "$LOCKSTEP_HOME/jobs/resnet18_2gpu.sh"
  check "it had loaded the module of the site, whose variable names the run" test "$(status_of loaded)" = done
  check "it ran the installed program" in_log "$job" " $work/opt/bin/lockstep train .* $LOCKSTEP_HOME/jobs/configs/"
  check "lockstep report memory" reports 0 '^\[process_log - .*\] Peak = [1-9][0-9]* MiB, Avg = [0-9.]+ MiB' \
    bash -c 'lockstep report memory runs/loaded/usage/*.csv'
  cd "$repository" || return
}
eight_nodes
installed
