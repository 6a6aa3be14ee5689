#!/usr/bin/env bash
# The targets and variables of make that users of other trainers type. Make does not build anything here: the program is
# the one under test, and instead of mpirun a script prints the number of ranks and the resulting configuration.
source test/support/check.sh
unset RANKS NUM_GPUS OVERRIDES CONFIG MAKEFLAGS MAKELEVEL DEEPSPEED_CONFIG
mkdir -p "$work/build" "$work/bin" "$work/runs"
ln -s "$(realpath "$lockstep")" "$work/build/lockstep"
cat >"$work/bin/mpirun" <<'SH'
#!/usr/bin/env bash
while [[ $1 != -n ]]; do shift; done
echo "ranks: $2"
exec "${@:3}" --print-config
SH
cat >"$work/bin/tensorboard" <<SH
#!/usr/bin/env bash
echo "\$*" >"$work/tensorboard"
SH
chmod +x "$work"/bin/*
printf 'run: {directory: %s, name: a}\ntrain: {accumulate: 2}\n' "$work/runs" >"$work/a.yaml"
printf '{"gradient_clipping": 1.5, // a comment\n "bf16": {"enabled": true}}\n' >"$work/ds.json"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
run() {
  PATH=$work/bin:$PATH make --no-print-directory -s CUDA=0 TOGETHER=0 BUILD="$work/build" -o "$work/build/lockstep" \
    MPIRUN="$work/bin/mpirun" CONFIG="$work/a.yaml" "$@" 2>&1
}
prints() { # prints PATTERNS -- ARGUMENTS: each pattern is a whole line
  local patterns=()
  while [[ $1 != -- ]]; do patterns+=("$1"); shift; done
  run "${@:2}" >"$work/out"
  cat "$work/out"
  for pattern in "${patterns[@]}"; do grep -Exq -- "$pattern" "$work/out" || { echo "expected $pattern"; return 1; }; done
}
gpus=$("$lockstep" gpu-info | sed -n 's/^Number of GPUs: //p')
export TRAIN_FOO=1 # what is in the environment does not count
check "make train" prints 'ranks: 2' '  accumulate: 2' -- train
check "variables of the command line" prints 'ranks: 3' '  batch_per_rank: 1' '  accumulate: 32' '  learning_rate: 0.0001' \
  '  readers: 8' -- train NUM_GPUS=3 TRAIN_BATCH_SIZE=1 TRAIN_GRAD_ACCUM=32 TRAIN_LEARNING_RATE=1e-4 \
  TRAIN_DATALOADER_NUM_WORKERS=8 TRAIN_DATALOADER_PIN_MEMORY=true
check "an unknown variable is refused" refused 2 'TRAIN_FOO: there is no key train.foo' run train TRAIN_FOO=2
check "train-distributed uses all GPUs" prints "ranks: $((gpus > 0 ? gpus : 2))" '  shard: none' -- train-distributed
check "train-deepspeed shards the optimizer" prints '  shard: optimizer' '  clip_norm: 0' -- train-deepspeed
check "  or does what the file says" prints '  shard: none' '  clip_norm: 1.5' 'precision: bf16' '  accumulate: 4' -- \
  train-deepspeed DEEPSPEED_CONFIG="$work/ds.json" OVERRIDES=train.accumulate=4
check "a variable that is nearly NUM_GPUS is refused" prints '.*NUM_GPU has no meaning: NUM_GPUS=1 .*' -- train NUM_GPU=1
check "train-distributed-tb" prints "TensorBoard: http://localhost:$port .*" 'ranks: 4' -- train-distributed-tb NUM_GPUS=4 \
  TENSORBOARD_PORT="$port"
for ((i = 0; i < 50; ++i)); do if [[ -s $work/tensorboard ]]; then break; fi; sleep 0.1; done
check "  shows the directory of the runs" grep -qx -- "--logdir $work/runs --port $port" "$work/tensorboard"
rm "$work/tensorboard"
check "make tensorboard" run tensorboard TENSORBOARD_PORT="$port"
check "  also shows it" grep -q -- "--logdir $work/runs" "$work/tensorboard"
mkdir "$work/empty"
check "without TensorBoard, training goes on" refused 0 'pip install tensorboard' \
  env PATH="$work/empty" /bin/bash scripts/tensorboard.sh --background "$work/runs"
check "  and make tensorboard fails" refused 1 'pip install tensorboard' \
  env PATH="$work/empty" /bin/bash scripts/tensorboard.sh "$work/runs"
check "memory-check" prints "Number of GPUs: $gpus" '.*predicts what a training takes.*' -- memory-check
check "setup-accelerate" prints 'Nothing has to be set up:' " *GPUs  *$gpus here.*" ' *precision  *auto in .*' -- setup-accelerate
check "make install names make deps" refused 2 'make deps' run install MPICXX=absent
finish
