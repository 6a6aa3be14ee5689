#!/usr/bin/env bash
# Makes a folder that runs where there is a C library, and for CUDA its libraries and driver, but no MPI, HDF5 or network:
#
#   scripts/bundle.sh BUILD FOLDER     also packed as FOLDER.tar.xz
#
#   FOLDER/run COMMAND...   with the libraries of the folder: `run lockstep ...`, `run mpirun -n 2 lockstep ...`
#   FOLDER/bin, lib         programs and libraries, stripped       FOLDER/openmpi, pmix   their plugins
#   FOLDER/tree             tests, golden files, configurations, samples and bench/, as they lie in the source tree
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 out=$2
mpirun=$(readlink -f "$(command -v "${MPIRUN:-mpirun}")")

# What every machine has, or what belongs to its driver and its CUDA.
belongs_to_the_machine() {
  case ${1##*/} in
    ld-linux* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | libresolv.so* | libutil.so* | \
      libcuda.so* | libcudart.so* | libcudnn*.so* | libcublas*.so* | libnvrtc*.so* | libnccl.so* | libnvidia*.so*) return 0 ;;
  esac
  return 1
}

# add_libraries FILE...: what they are linked with, into lib.
add_libraries() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
    belongs_to_the_machine "$library" || [[ -e $out/lib/${library##*/} ]] ||
      install -m 755 "$(readlink -f "$library")" "$out/lib/${library##*/}"
  done
}

rm -rf "$out" "$out.tar.xz"
mkdir -p "$out"/{bin,lib,openmpi,pmix,tree}

install -m 755 "$build/lockstep" "$out/bin/lockstep"
install -m 755 "$mpirun" "$out/bin/mpirun"
add_libraries "$build/lockstep" "$mpirun"

# Open MPI finds its plugins and messages below OPAL_PREFIX. Those of networks that need libraries of their own stay out:
# the ranks of a bundle run on one machine.
libraries=$(dirname "$(ldd "$build/lockstep" | awk '$1 ~ /^libmpi[.]so/ {print $3}')")
real=$(dirname "$(readlink -f "$libraries/libmpi.so")")
for plugins in "$real"/openmpi "$real"/openmpi3 "$real"/openmpi/lib/openmpi3 "$real"/openmpi/lib/openmpi; do
  [[ -e $plugins/mca_btl_self.so ]] && break
done
[[ -e $plugins/mca_btl_self.so ]] || { echo "bundle: Open MPI's plugins are not beside $real/libmpi.so" >&2; exit 1; }
mkdir -p "$out/openmpi/lib/${plugins##*/}" "$out/openmpi/share/openmpi"
for plugin in "$plugins"/*.so; do
  ldd "$plugin" | grep -qE 'libfabric|libucp|libpsm|libibverbs|librdmacm|libmca_common_(ofi|ucx|verbs)|libflux' && continue
  install -m 644 "$plugin" "$out/openmpi/lib/${plugins##*/}/"
  add_libraries "$plugin"
done
for help in /usr/share/openmpi "$(dirname "$(dirname "$mpirun")")/share/openmpi"; do
  [[ -d $help ]] && cp -n "$help"/help-*.txt "$out/openmpi/share/openmpi/"
done
pmix=$(find "$real" "$libraries" -maxdepth 4 -name 'mca_bfrops_v20.so' -path '*pmix*' 2>/dev/null | head -1)
if [[ -n $pmix ]]; then
  mkdir -p "$out/pmix/lib/pmix"
  for plugin in "$(dirname "$pmix")"/*.so; do
    install -m 644 "$plugin" "$out/pmix/lib/pmix/"
    add_libraries "$plugin"
  done
fi

# Tests run in the root of a source tree.
tree=$out/tree
mkdir -p "$tree/build"
cp -r jobs data bench "$tree/"
rm -rf "$tree/bench/results"
(cd test && find . -name '*.json' -o -name '*.txt' -o -name '*.py' -o -name '*.sh' | cpio --quiet -pdm "$OLDPWD/$tree/test")
mkdir -p "$tree/scripts" && cp scripts/launch scripts/run-tests.sh "$tree/scripts/"
ln -s ../../bin/lockstep "$tree/build/lockstep"
for test in kernels/ train/golden train/replica train/ranks comm/; do
  for program in "$build/test/$test"*_test; do
    [[ -x $program ]] || continue
    install -D -m 755 "$program" "$tree/build/${program#"$build/"}"
    add_libraries "$program"
  done
done

find "$out" -type f \( -name '*.so*' -o -perm -100 \) -exec sh -c \
  'head -c 4 "$1" | grep -q ELF && strip --strip-unneeded "$1"' sh {} \;

cat > "$out/run" <<'RUN'
#!/bin/sh
# run COMMAND ARGUMENT...: with the libraries, plugins and programs of this folder.
here=$(cd "$(dirname "$0")" && pwd)
export PATH="$here/bin:$PATH" LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export OPAL_PREFIX="$here/openmpi" PMIX_INSTALL_PREFIX="$here/pmix" OMPI_MCA_plm=isolated OMPI_MCA_plm_rsh_agent=:
[ "$(id -u)" = 0 ] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec "$@"
RUN
chmod 755 "$out/run"

tar -C "$(dirname "$out")" -cf - "$(basename "$out")" | xz -T0 -9 > "$out.tar.xz"
size=$(stat -c %s "$out.tar.xz")
echo "$out.tar.xz: $((size / 1000000)) MB"
