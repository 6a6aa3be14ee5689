# A study of 1 and 2 nodes, each case twice, is submitted. A job is cancelled while it waits, and a node crashes under
# another one. The same command then repeats only these cases. The nodes are containers on two cores, which other
# programs may use too, so cases with neighbours are accepted.
scaling_study() {
  (cd "$work/jobs" && "$LOCKSTEP" scaling run "$repository/jobs/configs/quickstart.yaml" $short train.global_batch=16 \
    data.synthetic_samples=64 --out study --nodes "${study_nodes:-1,2}" --ranks-per-node 2 --repeat 2 --steps "${steps:-80}" --warmup 5 "$@") >"$work/study.txt" 2>&1
}
says() { grep -Eq -- "$1" "$work/study.txt" || { cat "$work/study.txt"; return 1; }; }
jobs_of_study() { cat "$work"/jobs/study/cases/*/job.txt 2>/dev/null | sort -n; }
are_over() {
  local each
  for each in $(jobs_of_study); do is_over "$each" || return 1; done
}
case_of() { basename "$(dirname "$(grep -lx "$1" "$work"/jobs/study/cases/*/job.txt)")"; } # JOB

scaling_study_on_the_cluster() {
  local all crashed cancelled case_crashed
  unset OVERRIDES
  rm -rf "$work/jobs/study"
  check "scaling: a dry run" scaling_study --dry-run --minutes-per-case 10
  check "scaling:   prints sbatch" says 'OVERRIDES=.* sbatch --parsable .*--nodes=2 --ntasks-per-node=2 --exclusive .*--dependency=afterany:JOB'
  check "scaling:   and the node-hours: 2 x (1 + 2) nodes x 10 minutes" says 'node-hours: 1 for 4 cases'
  study_nodes=1,16 scaling_study --weak
  check "scaling: more nodes than there are, and nothing is submitted" says 'on 16 nodes, so that nothing was submitted: .*not available'
  check "scaling:   not even the case of one node" test -z "$(squeue --noheader)" -a ! -e "$work/jobs/study"
  check "scaling: a study is submitted" scaling_study
  check "scaling:   all cases" says '0 of 4 cases are finished, 0 queued, 4 submitted'
  check "scaling:   squeue shows which case a job is" bash -c "squeue --noheader | grep -q ' r4\.[12]-stu '"
  mapfile -t all < <(jobs_of_study)
  cancelled=${all[3]}
  scancel "$cancelled"
  # The node of the first running case on two nodes crashes.
  for crashed in "${all[@]:0:3}"; do [[ $(field "$crashed" NumNodes) == 2* ]] && break; done
  case_crashed=$(case_of "$crashed")
  until_true 120 has_state "$crashed" RUNNING
  until_true 30 test -e "$work/jobs/study/cases/$case_crashed/run/metrics.jsonl"
  "$cluster" crash node2
  check "scaling: repeated while jobs are queued, it submits none of them again" scaling_study
  check "scaling:   but the cancelled one" says '[01] of 4 cases are finished, [23] queued, 1 submitted'
  check "scaling: all jobs end" until_true 300 are_over
  "$cluster" restore node2
  check "scaling: the study is continued, and ends with the report" scaling_study --wait
  check "scaling:   with the case of the crashed node" says "$case_crashed: job [0-9]+, .* repeated"
  check "scaling:   and no other" says '3 of 4 cases are finished, 0 queued, 1 submitted'
  check "scaling:   the failed attempt is kept" test -d "$work/jobs/study/cases/$case_crashed/attempt-1/run"
  check "scaling:   all cases are finished" says '4 of 4 cases are finished, 0 running, 0 waiting'
  check "scaling:   with both sizes" says '^Multi-node \(4 ranks, 2 nodes\)  [0-2] of 2 '
  check "scaling: a report" "$LOCKSTEP" scaling report "$work/jobs/study" --accept neighbours --accept warm-up \
    --output "$work/study.txt"
  check "scaling:   with both sizes" says '^Multi-node \(4 ranks, 2 nodes\)  2 of 2 '
  if (($(nproc) < 4)); then
    check "scaling:   which says that these nodes share cores" says '^With 4 ranks, 4 of them on 2 nodes shared'
  fi
  check "scaling:   the case of two nodes ran on two" bash -c "[[ \$(grep -c '\"name\": \"node' '$work/jobs/study/cases/$case_crashed/finished.json') == 2 ]]"
  steps=31 scaling_study
  check "scaling: other settings are refused" says 'steps: 80 before, 31 now'
}
eight_nodes
scaling_study_on_the_cluster
