# The commands of docs/recipes/*.md (lines that begin with "$ "), as they stand there, with an installation. Trainings are
# reduced and run on CPUs. Instead of downloads, small files in the same formats are copied (recipe_files.py). sbatch waits
# for its job. recipe-commands/ has what replaces commands.
recipes=$work/recipes

# Prints each command of the page on one line, and after it, with "> " before them, the lines without figures that the page
# shows of its output.
commands_of() { # PAGE
  awk '/^    [$] / {
    line = substr($0, 7)
    while (line ~ /\\$/ && (getline rest) > 0) { sub(/\\$/, "", line); sub(/^ +/, "", rest); line = line rest }
    print line
    next
  }
  /^    / && line != "" && !/[0-9]/ { $1 = $1; print "> " $0; next }
  /^[^ ]/ { line = "" }' "$1"
}
# Each command succeeds and prints these lines, or says that there is no GPU. Prints the sentence of each with its result.
run_page() ( # PAGE
  mkdir -p "$recipes/$1/runs" "$recipes/$1/data" && cd "$recipes/$1" || exit
  export LOCKSTEP_RUNS=$PWD/runs LOCKSTEP_DATA=$PWD/data HF_HOME=$PWD/hub LOCKSTEP_CACHE=none REPOSITORY=$repository BUILD_OF_TEST=${LOCKSTEP%/lockstep}
  export RECIPE_FILES=$recipes/files LOCKSTEP_INSTALLED=$work/opt/bin/lockstep LOCKSTEP_HOME=$work/opt/share/lockstep
  unset LOCKSTEP
  SBATCH_OF_SLURM=$(command -v sbatch) MAKE_OF_SYSTEM=$(command -v make)
  export SBATCH_OF_SLURM MAKE_OF_SYSTEM PATH=$repository/test/cluster/recipe-commands:$PATH
  local short="device=cpu cpu.threads=1 train.max_steps=2 log.every_steps=1 comm.watchdog_seconds=600"
  export IMAGES_REDUCED="$short data.readers=1 model.depth=18 model.width=16 data.image_size=32 train.batch_per_rank=2 evaluation.max_samples=8 data.end=0"
  export TEXT_REDUCED="$short data.sequence_length=32 train.batch_per_rank=1 train.accumulate=1 schedule.warmup_steps=0 schedule.warmup_epochs=0 evaluation.max_samples=8"
  ln -s "$repository"/{jobs,scripts} .
  mkdir build && ln -s "$repository/test/cluster/recipe-commands/lockstep" build/lockstep
  cp "$RECIPE_FILES"/*.jsonl .
  while read -r -u 9 command; do
    if [[ $command == "> "* ]]; then
      if ! grep -qi 'no GPU\|libcuda' command.log && ! sed -E 's/ +/ /g; s/^ //' command.log | grep -qF -- "${command#> }"; then
        echo "FAILED  $1: the output has the line: ${command#> }"
      fi
      continue
    fi
    if eval "$command" >command.log 2>&1 </dev/null 9<&- || grep -qi 'no GPU\|libcuda' command.log; then
      echo "passed  $1: $command"
    else
      echo "FAILED  $1: $command"
      sed 's/^/    | /' command.log | tail -30
    fi
  done 9< <(commands_of "$repository/docs/recipes/$1.md")
  kill $(jobs -p) 2>/dev/null
)
recipes_once() {
  local page lines python=$repository/.deps/python/bin/python
  if ! "$python" -c 'import PIL' 2>/dev/null; then
    echo "skipped: there is no Python package PIL; make deps-test installs it"
    ((skipped += 1))
    return
  fi
  if [[ ! -x $work/opt/bin/lockstep ]]; then
    check "make install" make --no-print-directory BUILD="$(dirname "${LOCKSTEP#"$repository"/}")" PREFIX="$work/opt" install || return
  fi
  mkdir -p "$recipes/files"
  check "the files of the recipes" "$python" "$repository/test/cluster/recipe_files.py" "$recipes/files" "$repository" || return
  for page in "$repository"/docs/recipes/*.md; do
    lines=$(run_page "$(basename "$page" .md)" 2>&1)
    echo "$lines"
    ((passed += $(grep -c ^passed <<<"$lines"), failed += $(grep -c ^FAILED <<<"$lines")))
  done
}
eight_nodes
recipes_once
