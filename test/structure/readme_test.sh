#!/usr/bin/env bash
# timeout: 600
# cores: all
# Every line of code in README.md runs as printed, in order, in a copy of the repository without data sets and runs. The
# copy is an overlay mount over the repository (in its own mount namespace), so that nothing is built again and nothing
# is written to the repository. It needs root. Four things make it quick, none of which changes the lines: OVERRIDES and
# ONLY are set in the environment, CIFAR-10 is a small archive of the committed samples, and `sbatch` runs check.sh
# instead. The lines that begin with `srun` and `lockstep` need Slurm nodes or a model; test/cluster and test/commands
# test what they do.
set -uo pipefail
if [[ ${1:-} != --in-namespace ]]; then
  [[ $(id -u) == 0 ]] && unshare --mount true 2>/dev/null || { echo "skipped: mounting an overlay needs root"; exit 77; }
  exec unshare --mount bash "$0" --in-namespace
fi
source test/support/check.sh
repository=$PWD
trap 'cd /; umount -l "$repository" "$work/layers" /opt 2>/dev/null; rm -rf "$work"' EXIT
mkdir "$work/layers"
mount -t tmpfs none "$work/layers" && mkdir "$work"/layers/{upper,work} &&
  mount -t overlay overlay -o "lowerdir=$repository,upperdir=$work/layers/upper,workdir=$work/layers/work" "$repository" &&
  mount -t tmpfs none /opt || { echo "skipped: this system does not allow overlay mounts"; exit 77; }
cd "$repository" || exit 1
rm -rf runs data/cifar10

# The program with which the tests are run may have been linked for one type of GPU only.
case ${lockstep#"$repository"/} in
  */sm_*/lockstep)
    export OUT=${lockstep%/lockstep}
    OUT=${OUT#"$repository"/}
    CUDA_ARCH=$(tr _ ' ' <<<"${OUT##*/sm_}")
    export CUDA_ARCH
    ln -sf "${OUT#*/}/lockstep" "${OUT%%/*}/lockstep" ;;
  *) export TEST_CUDA_ARCH=all ;;
esac
"$lockstep" --version | grep -q '^  CUDA' || export CUDA=0
unset LOCKSTEP TIMINGS MAKEFLAGS MAKELEVEL MFLAGS LOCKSTEP_HOME LOCKSTEP_DATA LOCKSTEP_SITE
export LOCKSTEP_CACHE=$work/cache

# A CIFAR-10 of 130 images in the layout of the real one.
python3 - "$work" <<'PYTHON'
import pathlib, sys
folder = pathlib.Path(sys.argv[1]) / "cifar-10-batches-bin"
folder.mkdir()
names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
(folder / "batches.meta.txt").write_text("\n".join(names) + "\n")
for file in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
    (folder / file).write_bytes(b"".join(bytes([i % 10]) + bytes((i * 37 + j) % 256 for j in range(3072)) for i in range(26)))
PYTHON
tar -czf "$work/cifar.tar.gz" -C "$work" cifar-10-batches-bin
CIFAR10_URL=file://$work/cifar.tar.gz
CIFAR10_SHA256=$(sha256sum "$work/cifar.tar.gz" | cut -d' ' -f1)
export CIFAR10_URL CIFAR10_SHA256

mkdir "$work/bin"
printf '#!/bin/bash\nset -e\ntest -x "$1"\nbash -n "$1"\necho "Submitted batch job 1"\n' >"$work/bin/sbatch"
chmod +x "$work/bin/sbatch"
export PATH=$work/bin:$PATH
for init in /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do if [[ -r $init ]]; then break; fi; done
if [[ -r $init ]]; then set +u; source "$init"; fi

# The lines of code blocks, without the output shown there.
mapfile -t lines < <(sed -nE 's/^    (\$ )?((make|build\/lockstep|data\/|module|sbatch|scripts\/) ?.*)$/\2/p' README.md)
check "README.md has lines to run" test "${#lines[@]}" -ge 8
export ONLY=structure/arrows
for line in "${lines[@]}"; do
  case $line in
    module* | sbatch*)
      if [[ ! -r $init ]]; then echo "not run, because there is no command \`module\`: $line"; continue; fi ;;
  esac
  export OVERRIDES="model.width=16 train.epochs=2 evaluation.max_samples=100"
  if [[ $line == 'make test' && ${OUT:-} ]]; then
    (unset OUT CUDA_ARCH; eval "$line") >"$work/.check" 2>&1
  else
    eval "$line" >"$work/.check" 2>&1  # in this shell, because of `module`
  fi
  status=$?
  if ((status == 0)); then good "$line"; else bad "$line (exit status $status)"; tail -25 "$work/.check"; fi
done
check "the quickstart trained" grep -qx done runs/quickstart/status
check "the weights were exported" test -s resnet18.safetensors
check "the training on CIFAR-10 was another run" grep -qx done runs/resnet18-cifar10/status
finish
