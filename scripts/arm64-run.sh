#!/usr/bin/env bash
# Runs a command that may start programs for aarch64 (build-arm64) on this machine, with qemu and the libraries in
# .deps/arm64: scripts/arm64-run.sh build-arm64/lockstep help
#
# Qemu is registered with the kernel in a namespace of the command's own (Linux 6.7), so that nothing changes for
# others. If something is missing, this script says what, and returns 77.
set -euo pipefail
cd "$(dirname "$0")/.."
missing() { echo "skipped: $*"; exit 77; }
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do
  command -v "$tool" >/dev/null || missing "there is no $tool; \`make arm64\` installs it"
done
[[ -e .deps/arm64 ]] || missing "there are no libraries for aarch64; \`make arm64\` unpacks them"

register='mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
  cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register'
run=(unshare --user --map-root-user --mount bash -c "$register && exec \"\$@\"" bash)
"${run[@]}" .deps/arm64/lib/ld-linux-aarch64.so.1 --version >/dev/null 2>&1 ||
  missing "programs for aarch64 cannot be started: qemu needs Linux 6.7 and namespaces"
export QEMU_LD_PREFIX=$PWD/.deps/arm64
export OMPI_MCA_btl_vader_single_copy_mechanism=none  # qemu has no process_vm_readv(2), and Open MPI would not notice
exec "${run[@]}" "$@"
