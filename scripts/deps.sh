#!/usr/bin/env bash
# Installs the dependencies of building and running Lockstep that are missing:
#   - On Debian and Ubuntu, as root: packages, with apt. Elsewhere it prints the commands to run and exits with status 1.
#   - oneDNN 3.2 or newer, unless DNNL=0: DNNL_ROOT, or pkg-config, or the Python wheels of 2023.2 unpacked into
#     .deps/onednn. The wheels are for x86-64; on other processors Lockstep's own kernels are used if there is no oneDNN.
#   - If there is a CUDA toolkit (nvcc on PATH or CUDA_HOME, unless CUDA=0), cudnn-frontend, which consists of headers only:
#     CUDNN_FRONTEND_HOME, or the Python wheel unpacked into .deps/cudnn-frontend.
#   - Arrow 21 or newer, which reads Parquet files, unless ARROW=0: ARROW_HOME, or pkg-config, or the Python wheel of
#     pyarrow, for x86-64, unpacked into .deps/arrow.
# Packages whose location is given by MPI_HOME, HDF5_HOME and so on are not installed. libcurl, for MLflow, and
# libarchive, for data sets in archives, are not needed to build, and are installed only as packages of Debian and Ubuntu.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian package | variable that replaces it | test for its presence
packages=(
  "g++||command -v ${CXX:-g++}"
  "make||command -v make"
  "pkg-config||command -v pkg-config"
  "libopenmpi-dev|MPI_HOME|command -v ${MPICXX:-mpicxx}"
  "openmpi-bin|MPI_HOME|command -v ${MPIRUN:-mpirun}"
  "openssh-client|MPI_HOME|command -v ssh || command -v rsh" # Open MPI 4.1 starts nothing without one of them, even on one machine
  "libhdf5-dev|HDF5_HOME|pkg-config --exists hdf5"
  "libcli11-dev|CLI11_HOME|header CLI/CLI.hpp"
  "libyaml-cpp-dev|YAML_CPP_HOME|pkg-config --exists yaml-cpp"
  "nlohmann-json3-dev|JSON_HOME|header nlohmann/json.hpp"
  "libfmt-dev|FMT_HOME|pkg-config --exists fmt"
  "libspdlog-dev|SPDLOG_HOME|pkg-config --exists spdlog"
  "libjpeg-dev|JPEG_HOME|pkg-config --exists libjpeg"
  "libpng-dev|PNG_HOME|pkg-config --exists libpng"
  "libprotobuf-dev|PROTOBUF_HOME|pkg-config --exists protobuf"
  "protobuf-compiler|PROTOBUF_HOME|command -v protoc"
  "libxxhash-dev|XXHASH_HOME|pkg-config --exists libxxhash"
  "libpcre2-dev|PCRE2_HOME|pkg-config --exists libpcre2-8"
  "libutf8proc-dev|UTF8PROC_HOME|pkg-config --exists libutf8proc"
  "libgtest-dev|GTEST_HOME|pkg-config --exists gtest_main"
  "libbenchmark-dev|BENCHMARK_HOME|pkg-config --exists benchmark"
)
header() { echo "#include <$1>" | ${CXX:-g++} -x c++ -std=c++20 -E - >/dev/null; }

missing=()
for row in "${packages[@]}"; do
  IFS='|' read -r package variable test <<<"$row"
  if [[ -n $variable && -n ${!variable:-} ]]; then continue; fi
  if ! eval "$test" >/dev/null 2>&1; then missing+=("$package"); fi
done

# oneDNN
onednn=.deps/onednn
has_onednn() {
  [[ ${DNNL:-} == 0 || (-z ${DNNL_ROOT:-} && $(uname -m) != x86_64) ]] && return 0
  [[ -n ${DNNL_ROOT:-} ]] && { [[ -e $DNNL_ROOT/include/oneapi/dnnl/dnnl.hpp ]] && return 0
    echo "deps: DNNL_ROOT=$DNNL_ROOT has no include/oneapi/dnnl/dnnl.hpp; give the folder that contains include and lib" >&2
    exit 1; }
  pkg-config --atleast-version=3.2 dnnl 2>/dev/null && return 0
  [[ -e $onednn/include/oneapi/dnnl/dnnl.hpp && -e $onednn/lib/libdnnl.so ]]
}
fetch_onednn=
if ! has_onednn; then
  fetch_onednn=yes
  if ! python3 -m pip --version >/dev/null 2>&1; then missing+=(python3-pip); fi
fi

# cudnn-frontend
cuda_home=${CUDA_HOME:-$(nvcc=$(command -v nvcc) && dirname "$(dirname "$nvcc")" || true)}
frontend=.deps/cudnn-frontend
has_frontend() {
  [[ ${CUDA:-} == 0 || -z $cuda_home ]] && return 0
  [[ -n ${CUDNN_FRONTEND_HOME:-} ]] && { [[ -e $CUDNN_FRONTEND_HOME/include/cudnn_frontend.h ]] && return 0
    echo "deps: CUDNN_FRONTEND_HOME=$CUDNN_FRONTEND_HOME has no include/cudnn_frontend.h; give the folder that contains include" >&2
    exit 1; }
  [[ -e $frontend/include/cudnn_frontend.h ]]
}
fetch_frontend=
if ! has_frontend; then
  fetch_frontend=yes
  if [[ -z $fetch_onednn ]] && ! python3 -m pip --version >/dev/null 2>&1; then missing+=(python3-pip); fi
fi

# Arrow
arrow=.deps/arrow
has_arrow() {
  [[ ${ARROW:-} == 0 || (-z ${ARROW_HOME:-} && $(uname -m) != x86_64) ]] && return 0
  [[ -n ${ARROW_HOME:-} && $ARROW_HOME != "$PWD/$arrow" ]] && { [[ -e $ARROW_HOME/include/parquet/arrow/reader.h ]] && return 0
    echo "deps: ARROW_HOME=$ARROW_HOME has no include/parquet/arrow/reader.h; give the folder that contains include and lib" >&2
    exit 1; }
  pkg-config --atleast-version=21 arrow parquet 2>/dev/null && return 0
  [[ -e $arrow/include/parquet/arrow/reader.h && -e $arrow/lib/libparquet.so ]]
}
fetch_arrow=
if ! has_arrow; then
  fetch_arrow=yes
  if [[ -z $fetch_onednn$fetch_frontend ]] && ! python3 -m pip --version >/dev/null 2>&1; then missing+=(python3-pip); fi
fi

# Loaded when they are used (src/base/loaded_library.h), so they are installed here if missing; elsewhere their absence
# is no error.
has_library() { ldconfig -p 2>/dev/null | grep -qE "$1"; } # PATTERN

is_debian() { [[ -e /etc/debian_version ]] && command -v apt-get >/dev/null; }
if is_debian && [[ $(id -u) == 0 ]]; then
  has_library 'libcurl(-gnutls)?[.]so[.]4' || missing+=(libcurl4)
  has_library 'libarchive[.]so[.]13' || missing+=(libarchive13)
fi
if ((${#missing[@]})); then
  if is_debian && [[ $(id -u) == 0 ]]; then
    echo "deps: installing ${missing[*]}"
    scripts/apt-install.sh "${missing[@]}"
  else
    cat >&2 <<TEXT
deps: missing: ${missing[*]}
On Debian or Ubuntu, as root (then run make again):
  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}
On a cluster, load the modules with these names (the site may name them differently):
  module load gcc openmpi hdf5 cli11 yaml-cpp nlohmann-json fmt spdlog libjpeg-turbo libpng protobuf xxhash pcre2 utf8proc googletest google-benchmark onednn
With Spack:
  spack install openmpi hdf5 cli11 yaml-cpp nlohmann-json fmt spdlog libjpeg-turbo libpng protobuf xxhash pcre2 utf8proc googletest benchmark onednn@3.2:
  spack load openmpi hdf5 cli11 yaml-cpp nlohmann-json fmt spdlog libjpeg-turbo libpng protobuf xxhash pcre2 utf8proc googletest benchmark onednn
If a library is installed elsewhere, give its place: make HDF5_HOME=/opt/hdf5 DNNL_ROOT=/opt/onednn ('make help' lists all variables).
TEXT
    exit 1
  fi
fi

# Debian 12 has oneDNN 2.6, whose interface is older. The wheels contain Intel's build for GCC's OpenMP.
if [[ -n $fetch_onednn ]]; then
  echo "deps: fetching oneDNN 3.2 into $onednn"
  mkdir -p .deps
  work=$(mktemp -d .deps/onednn.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" \
    onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
  (
    cd "$work"
    sha256sum --quiet --check <<'SUMS'
2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb  onednn_cpu_gomp-2023.2.0-py2.py3-none-manylinux1_x86_64.whl
9763c69e8c907e119056bd52ad918ca84ac9ba939d130a99dfa95ccca3e5e284  onednn_devel_cpu_gomp-2023.2.0-py2.py3-none-manylinux1_x86_64.whl
SUMS
    for wheel in *.whl; do python3 -m zipfile -e "$wheel" wheels; done
    mkdir -p whole/lib whole/share
    mv wheels/onednn_devel_cpu_gomp-2023.2.0.data/data/include whole/include
    # A wheel cannot contain links, so it contains three copies of the library.
    mv wheels/onednn_cpu_gomp-2023.2.0.data/data/lib/libdnnl.so.3.2 whole/lib/
    ln -s libdnnl.so.3.2 whole/lib/libdnnl.so.3
    ln -s libdnnl.so.3 whole/lib/libdnnl.so
    mv wheels/onednn_cpu_gomp-2023.2.0.data/data/share/doc/onednn whole/share/doc
    chmod 755 whole/lib/libdnnl.so.3.2
  )
  rm -rf "$onednn"
  mv "$work/whole" "$onednn"
fi

# The wheel is for one version of Python, but its headers do not depend on it.
if [[ -n $fetch_frontend ]]; then
  echo "deps: fetching cudnn-frontend 1.32 into $frontend"
  mkdir -p .deps
  frontend_work=$(mktemp -d .deps/cudnn-frontend.XXXXXX)
  trap 'rm -rf "${work:-}" "$frontend_work"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --dest "$frontend_work" nvidia-cudnn-frontend==1.32.0
  (
    cd "$frontend_work"
    sha256sum --quiet --check <<'SUMS'
c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0  nvidia_cudnn_frontend-1.32.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl
SUMS
    python3 -m zipfile -e ./*.whl wheel
    mkdir whole
    mv wheel/include whole/include
    mv wheel/nvidia_cudnn_frontend-1.32.0.dist-info/licenses whole/licenses
  )
  rm -rf "$frontend"
  mv "$frontend_work/whole" "$frontend"
fi

# The wheel of pyarrow contains the C++ libraries and their headers, which do not depend on the version of Python.
if [[ -n $fetch_arrow ]]; then
  echo "deps: fetching Arrow 25 into $arrow"
  mkdir -p .deps
  arrow_work=$(mktemp -d .deps/arrow.XXXXXX)
  trap 'rm -rf "${work:-}" "${frontend_work:-}" "$arrow_work"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --dest "$arrow_work" pyarrow==25.0.1
  (
    cd "$arrow_work"
    sha256sum --quiet --check <<'SUMS'
25f8720bf6387d5dc2ebd2622112de630760419e4b66134405dd24110d15f37e  pyarrow-25.0.1-cp311-cp311-manylinux_2_28_x86_64.whl
SUMS
    python3 -m zipfile -e ./*.whl wheel
    mkdir -p whole/include whole/lib
    mv wheel/pyarrow/include/{arrow,parquet} whole/include/
    mv wheel/pyarrow-25.0.1.dist-info/licenses whole/licenses
    for name in arrow parquet; do
      mv "wheel/pyarrow/lib$name.so.2500" whole/lib/
      ln -s "lib$name.so.2500" "whole/lib/lib$name.so"
    done
    chmod 755 whole/lib/*.so.2500
  )
  rm -rf "$arrow"
  mv "$arrow_work/whole" "$arrow"
fi

if [[ ${1:-} != --quiet ]]; then echo "deps: everything is installed"; fi
