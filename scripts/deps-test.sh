#!/usr/bin/env bash
# Installs what only tests and checks need: clang-format and clang-tidy, clang with libFuzzer, Slurm for `make test-cluster`, and into
# .deps/python the Python packages that read our files as others do. A test whose tool is missing is skipped and
# counted, so nothing here is fatal. PyTorch (several GB) is not among it: what was made with it is committed.
set -uo pipefail
cd "$(dirname "$0")/.."

commands=(
  "clang-format|clang-format"
  "clang-tidy|clang-tidy"
  "clang++|clang"
  "slurmctld|slurmctld"
  "slurmd|slurmd"
  "sbatch|slurm-client"
  "munged|munge"
  "ip|iproute2"
  "ps|procps"
  "unshare|util-linux"
)
missing=()
for row in "${commands[@]}"; do
  IFS='|' read -r command package <<<"$row"
  command -v "$command" >/dev/null || [[ -x /usr/sbin/$command ]] || missing+=("$package")
done
compgen -G "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*" >/dev/null || missing+=(libclang-rt-14-dev)
[[ -e /etc/profile.d/modules.sh ]] || missing+=(environment-modules)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)

if ((${#missing[@]})); then
  if [[ -e /etc/debian_version && $(id -u) == 0 ]]; then
    echo "deps-test: installing ${missing[*]}"
    scripts/apt-install.sh "${missing[@]}" || echo "deps-test: some tests will be skipped" >&2
  else
    echo "deps-test: missing, so some tests will be skipped: ${missing[*]}" >&2
    echo "On Debian or Ubuntu, as root: apt-get install -y --no-install-recommends ${missing[*]}" >&2
  fi
fi

python=.deps/python/bin/python
modules='import h5py, numpy, safetensors, tensorboard'
if ! "$python" -c "$modules" 2>/dev/null; then
  echo "deps-test: installing h5py, numpy, safetensors and tensorboard into .deps/python"
  rm -rf .deps/python
  { python3 -m venv .deps/python &&
    "$python" -m pip install --quiet --disable-pip-version-check h5py numpy safetensors tensorboard 'setuptools<81' &&
    "$python" -c "$modules"; } || { rm -rf .deps/python; echo "deps-test: tests in Python will be skipped" >&2; }
fi
echo "deps-test: done"
