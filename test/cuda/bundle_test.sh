#!/usr/bin/env bash
# long: yes
# timeout: 900
# Tests an archive of `make bundle` in a root folder that contains nothing but the C library, a shell and a few tools, and
# later Python.     bundle_test.sh [ARCHIVE], by default lockstep-bundle.tar.xz. It needs root, for chroot.
source test/support/check.sh
skip() { echo "skipped: $1"; exit 77; }
archive=${1:-lockstep-bundle.tar.xz}
[[ -e $archive ]] || skip "there is no $archive; \`make bundle\` creates it"
[[ $(id -u) == 0 ]] || skip "the test needs root for chroot"
unshare --mount true 2>/dev/null || skip "mount namespaces cannot be created on this machine"

root=$work/root
mkdir -p "$root"/{proc,dev,tmp,etc,bin,usr,moved/elsewhere}
tar -xf "$archive" -C "$root/moved/elsewhere" --strip-components=1

# add PROGRAM...: copies programs with the libraries that they are linked with
add() {
  local file
  for file; do
    file=$(command -v "$file") && cp "$(readlink -f "$file")" "$root/bin/${file##*/}"
    ldd "$file" | grep -oE '/[^ ]+' | while read -r library; do
      mkdir -p "$root$(dirname "$library")" && cp -n "$(readlink -f "$library")" "$root$library"
    done
  done
}
# Other parts of the C library, which are loaded by name.
libraries=$(dirname "$(ldd /bin/bash | awk '$1 == "libc.so.6" {print $3}')")
for part in m pthread dl rt resolv util mvec; do
  file=$(find -L "$libraries" -maxdepth 1 -name "lib$part.so.[0-9]") && [[ -n $file ]] &&
    mkdir -p "$root$libraries" && cp -n "$file" "$root$libraries/"
done
add bash cat dirname env id mkdir rm sleep
ln -s bash "$root/bin/sh"

# inside COMMAND...: runs the command in that root, with /dev and /proc of the machine
inside() {
  env -i PATH=/bin HOME=/tmp TMPDIR=/tmp OMP_WAIT_POLICY=passive LOCKSTEP_CACHE=none unshare --mount bash -c '
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && root=$1 && shift && export PATH &&
    exec chroot "$root" /bin/bash -c "export PATH=/bin; cd /moved/elsewhere/tree && exec \"\$@\"" bash "$@"' bash "$root" "$@"
}
run() { inside ../run "$@"; }
# holds PATTERN COMMAND...: the command succeeds and its output matches
holds() { "${@:2}" >"$work/.held" 2>&1 || { cat "$work/.held"; return 1; }; grep -Eq -- "$1" "$work/.held" || { cat "$work/.held"; return 1; }; }
# Checks that no library of the bundle also exists elsewhere in the root, so that programs really use the bundle's
# libraries.
hidden() {
  local library
  for library in "$root"/moved/elsewhere/lib/*; do
    [[ -z $(find "$root" -path "$root/moved" -prune -o -path "$root/proc" -prune -o -path "$root/dev" -prune -o \
      -name "${library##*/}" -print) ]] || { echo "${library##*/} is there twice"; return 1; }
  done
}

check "the libraries come from the bundle only" hidden
check "the program prints its version" holds 'Open MPI v4' run lockstep --version
check "it reports its GPU, or why there is none" holds 'GPU' bash -c "$(declare -f run inside); root=$root; run lockstep gpu-info || true"
if run lockstep --version 2>/dev/null | grep -q CUDA; then
  check "  it finds the CUDA runtime of the bundle" holds '"CUDA runtime":\{"version":"[0-9]|"CUDA runtime": \{"version": "[0-9]' \
    bash -c "$(declare -f run inside); root=$root; run lockstep gpu-info --json | tr -d '\n' | sed 's/  */ /g; s/{ /{/g' || true"
fi
check "quickstart trains on 2 ranks" holds 'done: 4 steps' run mpirun --oversubscribe --bind-to none -n 2 lockstep train \
  jobs/configs/quickstart.yaml device=cpu cpu.threads=1 train.max_steps=4 log.progress=false run.directory=/tmp/runs
check "  in every format" test -s "$root/tmp/runs/quickstart/model.safetensors"
check "the checkpoint is intact" run lockstep checkpoint verify /tmp/runs/quickstart/checkpoints/step-00000004.h5
check "a test of kernels" holds 'PASSED  \] [1-9]' run build/test/kernels_test --gtest_filter='OrderedSum*'
check "a test of ranks" holds 'PASSED  \] [1-9]' run mpirun --oversubscribe --bind-to none -n 3 build/test/comm_test --gtest_filter='World.*'
if [[ -e $root/moved/elsewhere/tree/build/test/comm/fake_nccl.so ]]; then
  check "NCCL from NCCL_HOME" holds 'PASSED  \] [1-9]' \
    run mpirun --oversubscribe --bind-to none -x LOCKSTEP_RANKS_PER_NODE=2 -n 3 build/test/comm_test --gtest_filter='NcclOnNodes.SumsInBf16'
fi
check "the first step of a golden curve" holds 'PASSED  \] [1-9]' \
  run build/test/train_test --gtest_filter='*resnet18_32_fp32'

# With Python, which gpu-check needs.
python=$(python3 -c 'import sys; print(sys.executable)') || { finish; exit; }
add "$python" lscpu
mv "$root/bin/$(basename "$python")" "$root/bin/python3" 2>/dev/null || true
"$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib")); print(sysconfig.get_path("platstdlib"))' | sort -u |
  while read -r stdlib; do
    mkdir -p "$root$stdlib" && cp -rL "$stdlib/." "$root$stdlib/" 2>/dev/null
    rm -rf "$root$stdlib"/{test,site-packages,dist-packages}
    find "$root$stdlib" -name '*.so' -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
      while read -r library; do mkdir -p "$root$(dirname "$library")" && cp -nL "$library" "$root$library"; done
  done
check "the dry run of gpu-check" holds '^ranks: 2 ranks agree with one rank' \
  inside python3 bench/gpu/check.py ops training ranks speed lm-ops lm-training lm-speed lora generate sanitizer --dry-run
check "  lists the tests of the bundle" holds '^ops: conv2d_test' inside python3 bench/gpu/check.py ops --dry-run
check "  uses the libraries of the bundle" holds '^(GPU: [A-Z]|GPU: this machine has no GPU that Lockstep can use: )' \
  inside python3 bench/gpu/check.py ops --dry-run
check "the dry run of --quick" holds '^ +[0-9.]+ s  2 conv2d_test, part 1 of' inside python3 bench/gpu/check.py --quick --dry-run
if run lockstep gpu-info 2>&1 | grep -q '^No GPU'; then
  check "  without a GPU, one sentence" refused 1 '^check.py: this machine has no GPU that Lockstep can use: ' \
    inside python3 bench/gpu/check.py --quick
fi
finish
