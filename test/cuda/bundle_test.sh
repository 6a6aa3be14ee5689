#!/usr/bin/env bash
# long: yes
# timeout: 900
# An archive of `make bundle`, unpacked where nothing else is: a root of its own with the C library, a shell and a few tools,
# then with Python besides. bundle_test.sh [ARCHIVE], lockstep-bundle.tar.xz unless given; root, for the chroot.
source test/support/check.sh
skip() { echo "skipped: $1"; exit 77; }
archive=${1:-lockstep-bundle.tar.xz}
[[ -e $archive ]] || skip "there is no $archive; \`make bundle\` makes it"
[[ $(id -u) == 0 ]] || skip "only root may change the root folder"
unshare --mount true 2>/dev/null || skip "this machine allows no mount namespaces"

root=$work/root
mkdir -p "$root"/{proc,dev,tmp,etc,bin,usr,moved/elsewhere}
tar -xf "$archive" -C "$root/moved/elsewhere" --strip-components=1

# add PROGRAM...: with the libraries that it is linked with
add() {
  local file
  for file; do
    file=$(command -v "$file") && cp "$(readlink -f "$file")" "$root/bin/${file##*/}"
    ldd "$file" | grep -oE '/[^ ]+' | while read -r library; do
      mkdir -p "$root$(dirname "$library")" && cp -n "$(readlink -f "$library")" "$root$library"
    done
  done
}
# The C library's other parts, which are loaded by name.
libraries=$(dirname "$(ldd /bin/bash | awk '$1 == "libc.so.6" {print $3}')")
for part in m pthread dl rt resolv util mvec; do
  file=$(find -L "$libraries" -maxdepth 1 -name "lib$part.so.[0-9]") && [[ -n $file ]] &&
    mkdir -p "$root$libraries" && cp -n "$file" "$root$libraries/"
done
add bash cat dirname env id mkdir rm sleep
ln -s bash "$root/bin/sh"

# inside COMMAND...: in that root, with the machine's /dev and /proc
inside() {
  env -i PATH=/bin HOME=/tmp TMPDIR=/tmp OMP_WAIT_POLICY=passive LOCKSTEP_CACHE=none unshare --mount bash -c '
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && root=$1 && shift && export PATH &&
    exec chroot "$root" /bin/bash -c "export PATH=/bin; cd /moved/elsewhere/tree && exec \"\$@\"" bash "$@"' bash "$root" "$@"
}
run() { inside ../run "$@"; }
# holds PATTERN COMMAND...: it succeeds and says so
holds() { "${@:2}" >"$work/.held" 2>&1 || { cat "$work/.held"; return 1; }; grep -Eq -- "$1" "$work/.held" || { cat "$work/.held"; return 1; }; }
# Of the bundle's libraries none is the machine's: what runs below runs on the bundle's.
hidden() {
  local library
  for library in "$root"/moved/elsewhere/lib/*; do
    [[ -z $(find "$root" -path "$root/moved" -prune -o -path "$root/proc" -prune -o -path "$root/dev" -prune -o \
      -name "${library##*/}" -print) ]] || { echo "${library##*/} is there twice"; return 1; }
  done
}

check "no library of the machine's stands for one of the bundle's" hidden
check "the program tells its version" holds 'Open MPI v4' run lockstep --version
check "it tells why it has no GPU, or which" holds 'GPU' bash -c "$(declare -f run inside); root=$root; run lockstep gpu-info || true"
check "quickstart trains on 2 ranks" holds 'done: 4 steps' run mpirun --oversubscribe --bind-to none -n 2 lockstep train \
  jobs/configs/quickstart.yaml device=cpu cpu.threads=1 train.max_steps=4 log.progress=false run.directory=/tmp/runs
check "  in every format" test -s "$root/tmp/runs/quickstart/model.safetensors"
check "the checkpoint is whole" run lockstep checkpoint verify /tmp/runs/quickstart/checkpoints/step-00000004.h5
check "a test of kernels" holds 'PASSED  \] [1-9]' run build/test/kernels_test --gtest_filter='OrderedSum*'
check "a test of ranks" holds 'PASSED  \] [1-9]' run mpirun --oversubscribe --bind-to none -n 3 build/test/comm_test --gtest_filter='World.*'
if [[ -e $root/moved/elsewhere/tree/build/test/comm/fake_nccl.so ]]; then
  check "NCCL from NCCL_HOME" holds 'PASSED  \] [1-9]' \
    run mpirun --oversubscribe --bind-to none -x LOCKSTEP_RANKS_PER_NODE=2 -n 3 build/test/comm_test --gtest_filter='NcclOnNodes.SumsInBf16'
fi
check "the first step of a golden curve" holds 'PASSED  \] [1-9]' \
  run build/test/train_test --gtest_filter='*resnet18_32_fp32'

# With Python, which gpu-check wants.
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
check "the dry run of gpu-check" holds '^ranks: 8 ranks agree with one' \
  inside python3 bench/gpu/check.py ops training ranks speed sanitizer --dry-run
check "  has the bundle's tests" holds '^ops: conv2d_test' inside python3 bench/gpu/check.py ops --dry-run
check "  and takes its libraries for them" holds '^(GPU: [A-Z]|GPU: this machine has no GPU that Lockstep can use: )' \
  inside python3 bench/gpu/check.py ops --dry-run
finish
