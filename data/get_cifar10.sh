#!/usr/bin/env bash
# Downloads CIFAR-10 (binary version, 162 MB), checks it, and makes cifar10_{train,test}.h5.
#
#   data/get_cifar10.sh [FOLDER]       FOLDER defaults to data/cifar10; LOCKSTEP is the program, by default build/lockstep
#
# In an installation, FOLDER defaults to cifar10 in LOCKSTEP_DATA, and the program is the installed one.
# An archive or data set that exists already is checked and kept. CIFAR10_URL may name a mirror, and CIFAR10_SHA256 the
# checksum of another archive with the same layout.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
data=$repository/data program=$repository/build/lockstep
[[ -e $repository/Makefile ]] || data=${LOCKSTEP_DATA:-$data} program=$repository/../../bin/lockstep
folder=${1:-$data/cifar10}
lockstep=${LOCKSTEP:-$program}
url=${CIFAR10_URL:-https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz}
sha256=${CIFAR10_SHA256:-c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd}
archive=$folder/cifar-10-binary.tar.gz

if [[ ! -x $lockstep ]] && ! command -v "$lockstep" >/dev/null; then
  echo "get_cifar10.sh: $lockstep does not exist; build it with make, or set LOCKSTEP" >&2
  exit 1
fi
is_whole() { [[ -e $1 ]] && echo "$sha256  $1" | sha256sum --status --check; }

mkdir -p "$folder"
if ! is_whole "$archive"; then
  echo "get_cifar10.sh: downloading $url"
  if command -v curl >/dev/null; then
    curl --fail --location --retry 3 --continue-at - --output "$archive.part" "$url"
  elif command -v wget >/dev/null; then
    wget --tries=3 --continue --output-document="$archive.part" "$url"
  else
    echo "get_cifar10.sh: neither curl nor wget is installed; download $url to $archive yourself and run this script again" >&2
    exit 1
  fi
  if ! is_whole "$archive.part"; then
    found=$(sha256sum "$archive.part" | cut -d' ' -f1)
    rm -f "$archive.part"
    echo "get_cifar10.sh: $url returned a file with sha256 $found, expected $sha256; it was removed; try again" >&2
    exit 1
  fi
  mv "$archive.part" "$archive"
fi

work=$(mktemp -d "$folder/unpacked.XXXXXX")
trap 'rm -rf "$work"' EXIT
tar -xzf "$archive" -C "$work"
source=$work/cifar-10-batches-bin
if [[ ! -e $folder/cifar10_train.h5 ]]; then
  "$lockstep" data import cifar10 "$source" "$folder/cifar10_train.h5" --split train
fi
if [[ ! -e $folder/cifar10_test.h5 ]]; then
  "$lockstep" data import cifar10 "$source" "$folder/cifar10_test.h5" --split test \
    --statistics-from "$folder/cifar10_train.h5"
fi
"$lockstep" data verify "$folder/cifar10_train.h5"
"$lockstep" data verify "$folder/cifar10_test.h5"
echo "Ready. Train with: lockstep train $repository/jobs/configs/resnet18_cifar10.yaml"
