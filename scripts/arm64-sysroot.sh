#!/usr/bin/env bash
# Prepares cross-compiling for aarch64 on Debian (`make arm64`): installs the cross compiler and qemu (as root), and
# unpacks Debian's arm64 packages of the libraries that scripts/deps.sh installs into .deps/arm64. These packages are
# not installed. With a CUDA toolkit, the static runtime for aarch64 is added from NVIDIA's Python wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=$PWD/.deps/arm64
libraries=$sysroot/usr/lib/aarch64-linux-gnu

missing=()
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
if ((${#missing[@]})); then
  if [[ ! -e /etc/debian_version || $(id -u) != 0 ]]; then
    echo "arm64: missing: ${missing[*]}" >&2
    echo "On Debian, as root: apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "arm64: installing ${missing[*]}"
  scripts/apt-install.sh "${missing[@]}"
fi

mkdir -p .deps
if [[ ! -e $sysroot ]]; then
  echo "arm64: unpacking the libraries for aarch64 into .deps/arm64"
  work=$(mktemp -d "$sysroot.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/{state/lists,cache/archives}/partial "$work/whole"
  # Apt uses its own package lists and sees no installed packages, so it fetches everything that is needed.
  apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
    -o Dir::State="$work/state" -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache")
  "${apt[@]}" update
  # shellcheck disable=SC2046
  "${apt[@]}" install -y --no-install-recommends --download-only \
    $(sed -n 's/^  "\([a-z0-9-]*-dev\)|.*/\1/p' scripts/deps.sh) >/dev/null
  for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$work/whole"; done
  # Absolute links would lead to the libraries of this machine.
  find "$work/whole" -type l -lname '/*' -printf '%l\t%p\n' |
    while IFS=$'\t' read -r target link; do ln -sfr "$work/whole$target" "$link"; done
  # Installing the package would add this link.
  ln -s hdf5-serial.pc "$work/whole/usr/lib/aarch64-linux-gnu/pkgconfig/hdf5.pc"
  rm -rf "$work"/whole/{bin,sbin,usr/bin,usr/sbin,usr/share,var}
  mv "$work/whole" "$sysroot"
fi

has_cuda() { [[ ${CUDA:-} != 0 ]] && { [[ -n ${CUDA_HOME:-} ]] || command -v nvcc >/dev/null; }; }
if has_cuda && [[ ! -e $libraries/libcudart_static.a ]]; then
  echo "arm64: fetching CUDA's static runtime 13.0 for aarch64"
  cuda_work=$(mktemp -d "$sysroot.XXXXXX")
  trap 'rm -rf "${work:-}" "$cuda_work"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --platform manylinux2014_aarch64 --dest "$cuda_work" nvidia-cuda-runtime==13.0.96
  (
    cd "$cuda_work"
    sha256sum --quiet --check <<'SUMS'
ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55  nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl
SUMS
    python3 -m zipfile -e ./*.whl wheel
    mv wheel/nvidia/cu13/lib/libcudart_static.a "$libraries"
  )
fi
