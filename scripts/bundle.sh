#!/usr/bin/env bash
# Makes a folder that runs on a machine without MPI, HDF5 or network access. That machine needs a C library at least as
# new as the one here, and for CUDA the driver and the CUDA libraries.
#
#   scripts/bundle.sh BUILD FOLDER     writes FOLDER and FOLDER.tar.xz
#
#   FOLDER/run COMMAND...   runs COMMAND with the libraries of the folder: `run lockstep ...`, `run mpirun -n 2 lockstep ...`
#   FOLDER/bin, lib         programs and libraries, stripped       FOLDER/openmpi   plugins and messages of Open MPI
#   FOLDER/tree             tests, golden files, configurations, samples and bench/, with the layout of the source tree
#
# In FOLDER/tree, `python3 bench/gpu/check.py PART` finds ../run, so that other programs keep their own libraries.
# test/cuda/bundle_test.sh tests an archive while the libraries of the system are hidden.
set -euo pipefail
cd "$(dirname "$0")/.."
if (($# != 2)) || [[ -z $1 || -z $2 ]]; then
  echo "usage: scripts/bundle.sh BUILD FOLDER" >&2
  exit 2
fi
build=$1 out=${2%/}
stop() { echo "bundle: $1" >&2; exit 1; }
[[ -x $build/lockstep ]] || stop "$build contains no program; \`make bundle\` builds it"
command -v "${MPIRUN:-mpirun}" >/dev/null || stop "Open MPI is required, but there is no ${MPIRUN:-mpirun}; set MPI_HOME"
# An existing folder is replaced only if it is a bundle.
[[ ! -e $out || -x $out/run && -d $out/openmpi ]] || stop "$out exists and is not a bundle; name another folder, or remove it"
mpirun=$(readlink -f "$(command -v "${MPIRUN:-mpirun}")")
ompi_info=$(dirname "$(command -v "${MPIRUN:-mpirun}")")/ompi_info
[[ -x $ompi_info ]] || stop "Open MPI is required, but there is no $ompi_info; set MPI_HOME"

# Libraries that every machine has, or that belong to its driver and its CUDA installation.
belongs_to_the_machine() {
  case ${1##*/} in
    ld-linux* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | libresolv.so* | libutil.so* | libmvec.so* | \
      libcuda.so* | libcudart.so* | libcudnn*.so* | libcublas*.so* | libnvrtc*.so* | libnccl.so* | libnvidia*.so*) return 0 ;;
  esac
  return 1
}

# add_libraries FILE...: copies the libraries that the files are linked with into lib.
add_libraries() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
    belongs_to_the_machine "$library" || [[ -e $out/lib/${library##*/} ]] ||
      install -m 755 "$(readlink -f "$library")" "$out/lib/${library##*/}"
  done
}

rm -rf "$out" "$out.tar.xz"
mkdir -p "$out"/{bin,lib,openmpi,tree} || stop "$out cannot be created"

install -m 755 "$build/lockstep" "$out/bin/lockstep"
install -m 755 "$mpirun" "$out/bin/mpirun"
add_libraries "$build/lockstep" "$mpirun"

# cudnn-frontend opens the shared library of the CUDA runtime by name. Not every machine with cuDNN has it.
cuda=${CUDA_HOME:-$(nvcc=$(command -v nvcc) && dirname "$(dirname "$nvcc")")} || cuda=
for runtime in "$cuda"/lib64/libcudart.so.[0-9][0-9] "$cuda"/lib/libcudart.so.[0-9][0-9]; do
  [[ ! -e $runtime ]] || install -m 755 "$(readlink -f "$runtime")" "$out/lib/${runtime##*/}"
done
[[ -z $cuda ]] || compgen -G "$out/lib/libcudart.so.*" >/dev/null || stop "the CUDA toolkit in $cuda has no libcudart.so"

# Open MPI finds its plugins and messages below OPAL_PREFIX. Plugins for networks that need further libraries are left out,
# since the ranks of a bundle run on one machine.
place() { "$ompi_info" --parsable --path "$1" | sed 's/^path:[a-z]*://'; }
relative() { OPAL_PREFIX=/prefix place "$1" | sed 's@^/prefix/@@'; }
plugins=$(place pkglibdir) messages=$(place pkgdatadir)
to=$out/openmpi/$(relative pkglibdir)
mkdir -p "$to" "$out/openmpi/$(relative pkgdatadir)"
for plugin in "$plugins"/mca_*.so; do
  ldd "$plugin" | grep -qE 'libfabric|libucp|libpsm|libibverbs|librdmacm|libmca_common_(ofi|ucx|verbs)|libflux' && continue
  install -m 644 "$plugin" "$to/"
  add_libraries "$plugin"
done
[[ -e $to/mca_btl_self.so ]] || stop "Open MPI's plugins are not in $plugins"
cp "$messages"/help-*.txt "$out/openmpi/$(relative pkgdatadir)/"

# Tests run in the root of a source tree.
tree=$out/tree
mkdir -p "$tree/build"
cp -r jobs data bench "$tree/"
rm -rf "$tree/bench/results"
find "$tree" -name __pycache__ -prune -exec rm -r {} +
find test \( -name '*.json' -o -name '*.txt' -o -name '*.py' -o -name '*.sh' \) -exec cp --parents {} "$tree/" \;
mkdir -p "$tree/scripts" && cp scripts/launch "$tree/scripts/"
ln -s ../../bin/lockstep "$tree/build/lockstep"
for program in "$build"/test/{kernels,train,comm}_test "$build"/test/{kernels,comm}/*.so; do
  [[ -x $program ]] || continue
  install -D -m 755 "$program" "$tree/build/${program#"$build/"}"
  add_libraries "$program"
done
cp "$build/test/list" "$tree/build/test/"

find "$out" -type f \( -name '*.so*' -o -perm -100 \) -exec sh -c \
  'if head -c 4 "$1" | grep -q ELF; then strip --strip-unneeded "$1"; fi' sh {} \;

cat > "$out/run" <<'RUN'
#!/bin/sh
# run COMMAND ARGUMENT...: runs COMMAND with the libraries, plugins and programs of this folder.
here=$(cd "$(dirname "$0")" && pwd)
export PATH="$here/bin:$PATH" LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# All ranks run on this machine: use shared memory, no ssh, and no settings of another Open MPI.
export OPAL_PREFIX="$here/openmpi" OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader OMPI_MCA_mca_base_param_files=none
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
exec "$@"
RUN
chmod 755 "$out/run"

# The tests contain the same code many times, so the dictionary is large enough to span all of them.
tar -C "$(dirname "$out")" -cf - "$(basename "$out")" | xz --lzma2=preset=6,dict=256MiB > "$out.tar.xz"
size=$(stat -c %s "$out.tar.xz")
echo "$out.tar.xz: $((size / 1000000)) MB"
[[ $size -lt 60000000 ]] || stop "that is more than 60 MB"
