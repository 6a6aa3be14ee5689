# `lockstep doctor` on 2 nodes x 2 ranks, and each fault that the cluster can have: it must fail the check of its name.
doctor_job() { # NAME OPTION...: the environment FAULT is evaluated before rank 2, the first of node2, starts the program
  cat >"$work/doctor.sh" <<JOB
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --time=10 --output=%x-%j.log
export LOCKSTEP_RUNS=\${LOCKSTEP_RUNS:-$work/jobs/runs} program=$LOCKSTEP
mpirun --bind-to none bash -c 'if [[ \$OMPI_COMM_WORLD_RANK == 2 ]]; then eval "\$FAULT"; fi; exec "\$program" doctor "\$@"' \
  doctor --device cpu --json="$work/doctor.json" ${*:2}
JOB
  rm -f "$work/doctor.json"
  submit --job-name="$1" "$work/doctor.sh" && until_true 180 is_over "$job"
}
# found STATUS CHECK WHERE VALUE: one check of this name has this status, and its text matches
found() {
  python3 - "$work/doctor.json" "$@" <<'END' || { show_log "$job"; return 1; }
import json, re, sys
path, status, check, where, value = sys.argv[1:]
of_name = [c for c in json.load(open(path))["checks"] if c["check"] == check]
sys.exit(not any(c["status"] == status and re.search(where, c["where"]) and re.search(value, c["found"]) for c in of_name))
END
}
fails() { # SENTENCE CHECK WHERE VALUE JOB-AND-OPTIONS...
  doctor_job "${@:5}"
  check "doctor: $1" found fail "$2" "$3" "$4"
  check "doctor: $1: exit status 1, with a remedy" bash -c "[[ '$(field "$job" ExitCode)' == 1:0 ]] && grep -q 'remedy: ' '$(log_of "$job")'"
}

doctor_on_the_cluster() {
  local preload="${LOCKSTEP%/lockstep}/test/doctor/preload.so"
  mkdir -p "$work/full" "$work/read-only"
  mount -t tmpfs -o size=1m doctor "$work/full" && mount -t tmpfs -o ro doctor "$work/read-only" || return
  cluster_up --nodes 2 --gpus 0 --cpus 4

  doctor_job healthy --quick
  check "doctor: all-reduces across and inside nodes" bash -c "grep -Eq 'all-reduce 51 MB +all ranks +algbw' '$(log_of "$job")' &&
    grep -Eq 'all-reduce 51 MB +inside each node +algbw' '$(log_of "$job")'"
  check "doctor: the interface in use" found pass network node1 'Ethernet'
  check "doctor: the clocks agree" found pass 'time of day' node2 within
  check "doctor: locks hold across nodes" found pass 'run: locks across nodes' 'all nodes' hold
  check "doctor: equal versions" found pass versions 'all ranks' equal
  # With one rank per node, srun is reliable here. Other programs on the machine may make a check fail (status 1).
  rm -f "$work/doctor.json"
  with_srun() {
    LOCKSTEP_RUNS=$work/jobs/runs timeout 120 srun --immediate=30 --nodes=2 --ntasks-per-node=1 \
      "$LOCKSTEP" doctor --quick --device cpu --json="$work/doctor.json" >"$work/srun.txt" 2>&1
    [[ $? -le 1 ]] && grep -Eq '^[0-9]+ checks: ' "$work/srun.txt"
  }
  check "doctor: started by srun" with_srun
  check "doctor: started by srun, in the whole allocation" found pass launch 'all ranks' '2 ranks on 2 nodes, srun with PMIx'
  check "doctor: nothing is left in the folder of runs" test -z "$(ls -A "$work/jobs/runs" 2>/dev/null | grep doctor)"

  export FAULT="export LD_PRELOAD=$preload SKEWED_CLOCK_SECONDS=3600"
  fails "a clock that is an hour ahead" 'time of day' node2 'ahead of rank 0' clock --quick
  export FAULT="export LD_PRELOAD=$preload FLIPPED_BIT=1"
  fails "a flipped bit in the product of one rank" 'bits of a product' 'rank 2 on node2' differs bit --quick
  python3 test/doctor/other_build.py "$LOCKSTEP" "$work/other-build" || return
  export FAULT="program=$work/other-build"
  fails "another build on one node" versions 'rank 2 on node2' 'compiler .*X' build --quick
  # Three busy loops, since the nodes share the processors of a machine on which other programs may run.
  export FAULT='for i in 1 2 3; do timeout 40 bash -c "while :; do :; done" >/dev/null 2>&1 </dev/null & done'
  fails "a process that burns time beside one rank" 'other load' node2 'bash .process' load --quick
  export FAULT=
  LOCKSTEP_RUNS=$work/read-only fails "a folder of runs that is read-only" 'run: folder' node1 'Read-only' read-only --quick
  LOCKSTEP_RUNS=$work/full fails "a folder of runs that is full" 'run: folder' node1 'No space left' full --quick
  "$cluster" exec node2 mount -o remount,size=64m /dev/shm
  fails "a small /dev/shm on one node" /dev/shm node2 'GB free' shm --quick

  cluster_up --nodes 2 --gpus 0 --cpus 4 --bandwidth 100mbit
  fails "a link with 100 Mbit/s" 'all-reduce 51 MB' 'all ranks' 'busbw 0.0' link
  check "doctor: the pair of ranks with that link" found fail 'pair between nodes' 'rank 0 on node1 and rank 2 on node2' GB/s
  check "doctor: pairs inside nodes are not slow" bash -c "! grep -q '^fail .*pair in a node' '$(log_of "$job")'"
  "$cluster" down >/dev/null 2>&1
  has_eight=
  umount "$work/full" "$work/read-only"
}
doctor_on_the_cluster
