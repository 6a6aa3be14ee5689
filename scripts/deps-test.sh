#!/usr/bin/env bash
# Installs what only tests and checks need: ctest, clang-format, clang-tidy, clang with libFuzzer, Slurm for `make test-cluster`,
# zsh, and, in .deps/python, the Python packages with which tests read the files of Lockstep. A test whose tool is missing is skipped
# and counted, so a failure here is not fatal. PyTorch (several GB) is not installed: the files made with it are committed.
#
#   scripts/deps-test.sh [--long]      --long: also what only `make test-long` needs
set -uo pipefail
cd "$(dirname "$0")/.."

commands=(
  "ctest|cmake"
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
  "zsh|zsh"
)
missing=()
for row in "${commands[@]}"; do
  IFS='|' read -r command package <<<"$row"
  command -v "$command" >/dev/null || [[ -x /usr/sbin/$command ]] || missing+=("$package")
done
compgen -G "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*" >/dev/null || missing+=(libclang-rt-14-dev)
# Debian's environment-modules would remove its package of Lmod.
[[ -e /etc/profile.d/modules.sh || -e /etc/profile.d/lmod.sh ]] || missing+=(environment-modules)
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

# Lmod is unpacked next to environment-modules, since each of the two packages removes the other. The paths in its
# scripts are changed to this folder.
lmod=$(realpath -m .deps/lmod)
lmod_is_there() { grep -qs "$lmod/usr/bin/lua" "$lmod/usr/share/lmod/lmod/libexec/lmod"; }
unpack_lmod() {
  local work package packages
  work=$(mktemp -d "$lmod.XXXXXX") || return
  packages=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances lmod 2>/dev/null | grep -E '^(lmod|lua)')
  (
    set -e
    cd "$work"
    chmod 777 . # apt downloads as a different user
    apt-get download -qq $packages
    mkdir whole
    for package in *.deb; do dpkg -x "$package" whole; done
    grep -rlIE '/usr/(share/lmod|share/lua|bin/lua|lib/[a-z0-9_-]+/lua)' whole/usr/share/lmod |
      xargs sed -i -E "s#/usr/(share/lmod|share/lua|bin/lua|lib/[a-z0-9_-]+/lua)#$lmod/usr/\1#g"
  ) >&2 && rm -rf "$lmod" && mv "$work/whole" "$lmod"
  rm -rf "$work"
  lmod_is_there
}
if [[ -e /etc/debian_version ]] && ! lmod_is_there; then
  echo "deps-test: unpacking Lmod into .deps/lmod"
  mkdir -p .deps
  if ! apt-cache show lmod >/dev/null 2>&1 && [[ $(id -u) == 0 ]]; then apt-get update -qq -o DPkg::Lock::Timeout=300; fi
  unpack_lmod || echo "deps-test: Lmod could not be unpacked; its test will be skipped" >&2
fi

python=.deps/python/bin/python
modules='import h5py, numpy, safetensors, tensorboard'
if ! "$python" -c "$modules" 2>/dev/null; then
  echo "deps-test: installing h5py, numpy, safetensors and tensorboard into .deps/python"
  rm -rf .deps/python
  { python3 -m venv .deps/python &&
    "$python" -m pip install --quiet --disable-pip-version-check h5py numpy safetensors tensorboard 'setuptools<81' &&
    "$python" -c "$modules"; } || { rm -rf .deps/python; echo "deps-test: tests in Python will be skipped" >&2; }
  # Some installations of the toolkit lack cuobjdump, or nvdisasm, which it starts.
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm ||
    echo "deps-test: a test of CUDA kernels will be skipped if there is no cuobjdump" >&2
fi
if [[ ${1:-} == --long ]]; then
  if "$python" -c 'import numpy' 2>/dev/null && ! "$python" -c 'import onnx, onnxruntime' 2>/dev/null; then
    echo "deps-test: installing onnx and onnxruntime into .deps/python"
    "$python" -m pip install --quiet --disable-pip-version-check onnx onnxruntime ||
      echo "deps-test: the test of exported .onnx files will be skipped" >&2
  fi
  # The many packages of MLflow have a folder of their own, since they require particular versions of other packages.
  if ! .deps/mlflow/bin/python -c 'import mlflow' 2>/dev/null; then
    echo "deps-test: installing mlflow into .deps/mlflow"
    rm -rf .deps/mlflow
    { python3 -m venv .deps/mlflow && .deps/mlflow/bin/python -m pip install --quiet --disable-pip-version-check mlflow; } ||
      { rm -rf .deps/mlflow; echo "deps-test: the test with an MLflow server will be skipped" >&2; }
  fi
fi
echo "deps-test: done"
