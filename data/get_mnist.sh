#!/usr/bin/env bash
# Downloads MNIST (12 MB), checks it, and makes mnist_{train,test}.h5.
#
#   data/get_mnist.sh [FOLDER]       FOLDER defaults to data/mnist; LOCKSTEP is the program, by default build/lockstep
#
# In an installation, FOLDER defaults to mnist in LOCKSTEP_DATA, and the program is the installed one.
# Files and data sets that exist already are checked and kept. MNIST_URL may name a mirror.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
data=$repository/data program=$repository/build/lockstep
[[ -e $repository/Makefile ]] || data=${LOCKSTEP_DATA:-$data} program=$repository/../../bin/lockstep
folder=${1:-$data/mnist}
lockstep=${LOCKSTEP:-$program}
urls=("${MNIST_URL:-https://storage.googleapis.com/cvdf-datasets/mnist}")
[[ -n ${MNIST_URL:-} ]] || urls+=(https://ossci-datasets.s3.amazonaws.com/mnist)

if [[ ! -x $lockstep ]] && ! command -v "$lockstep" >/dev/null; then
  echo "get_mnist.sh: $lockstep does not exist; build it with make, or set LOCKSTEP" >&2
  exit 1
fi
download() { # URL TARGET
  if command -v curl >/dev/null; then
    curl --fail --location --retry 3 --silent --show-error --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --tries=3 --output-document="$2" "$1"
  else
    echo "get_mnist.sh: neither curl nor wget is installed; download $1 to $folder yourself and run this script again" >&2
    exit 1
  fi
}
fetch() { # NAME SHA256
  local file=$folder/$1 url
  is_whole() { echo "$2  $1" | sha256sum --status --check 2>/dev/null; } # FILE SHA256
  if [[ -e $file ]] && is_whole "$file" "$2"; then return; fi
  for url in "${urls[@]}"; do
    echo "get_mnist.sh: downloading $url/$1"
    if ! download "$url/$1" "$file.part"; then continue; fi
    if is_whole "$file.part" "$2"; then
      mv "$file.part" "$file"
      return
    fi
    echo "get_mnist.sh: $url/$1 has sha256 $(sha256sum "$file.part" | cut -d' ' -f1), expected $2" >&2
  done
  rm -f "$file.part"
  echo "get_mnist.sh: $1 could not be downloaded; try again, or name a mirror in MNIST_URL" >&2
  exit 1
}

mkdir -p "$folder"
fetch train-images-idx3-ubyte.gz 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
fetch train-labels-idx1-ubyte.gz 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
fetch t10k-images-idx3-ubyte.gz 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
fetch t10k-labels-idx1-ubyte.gz f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
if [[ ! -e $folder/mnist_train.h5 ]]; then
  "$lockstep" data import mnist "$folder" "$folder/mnist_train.h5" --split train
fi
if [[ ! -e $folder/mnist_test.h5 ]]; then
  "$lockstep" data import mnist "$folder" "$folder/mnist_test.h5" --split test \
    --statistics-from "$folder/mnist_train.h5"
fi
"$lockstep" data verify "$folder/mnist_train.h5"
"$lockstep" data verify "$folder/mnist_test.h5"
echo "Ready. Train with: lockstep train $repository/jobs/configs/mnist.yaml"
