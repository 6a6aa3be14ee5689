#!/usr/bin/env bash
# Checks which folder may include which, and which files may include a vendor's header. Prints each line that breaks a
# rule.
#
#   main -> commands -> train -> inference -> run -> tasks -> models -> layers -> graph -> include
#                                                                          left may include any right
#   commands -> doctor -> run, comm, config, base; commands -> scaling -> run, config, base
#   comm, data, text, checkpoint, hdf5, config, base -> include            commands, train, inference and run include these too,
#   commands -> page -> base; commands, train -> mlflow -> run, config, base
#   commands, train, inference, tasks -> generate -> models
#   data, checkpoint -> hdf5 -> base; data -> text -> base                 tasks include data, text and base, models base
#   kernels/* -> include, their own folder, nothing else; kernels/*/base -> include and itself
#   each op of a backend has its twin: kernels/X/OP.* and kernels/X/OP_PART.* only where all backends have an OP.*
#   arrow, a program of its own, includes nothing; only src/backend_factory.cpp includes kernels/; include/ has no vendor's header
#
# scripts/check-arrows.sh [ROOT]
set -uo pipefail
cd "${1:-$(dirname "$0")/..}"

has_twin() { # NAME: a file NAME.*, or OP.* where NAME is OP_PART, is in every backend
  local op=$1 backend missing
  while :; do
    missing=
    for backend in kernels/*/; do compgen -G "$backend$op.*" >/dev/null || missing=1; done
    [[ $missing ]] || return 0
    [[ $op == *_* ]] || return 1
    op=${op%_*}
  done
}
status=0
for file in kernels/*/*.*; do
  name=${file##*/}
  has_twin "${name%%.*}" && continue
  echo "$file: not every backend has this op; move a helper of ops to ${file%/*}/base"
  status=1
done

find include kernels src -name '*.h' -o -name '*.cpp' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' | sort |
  xargs grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' /dev/null |
  awk -F: '
  BEGIN {
    # For each folder of src, the other folders of src that it may include.
    may["main"] = " commands train inference run tasks models layers graph comm data text checkpoint hdf5 config base "
    may["backend_factory"] = " base "
    may["commands"] = " page mlflow doctor scaling train inference run tasks generate models layers graph comm data text checkpoint hdf5 config base "
    may["doctor"] = " run comm config base "
    may["scaling"] = " run config base "
    may["mlflow"] = " run config base "
    may["train"] = " mlflow inference run tasks generate models layers graph comm data text checkpoint hdf5 config base "
    may["inference"] = " run tasks generate models layers graph comm data text checkpoint config base "
    may["run"] = " tasks models comm data text checkpoint hdf5 config base "
    may["tasks"] = " generate models layers graph data text base "
    may["generate"] = " models layers graph base "
    may["models"] = " layers graph base "
    may["layers"] = " graph "
    may["graph"] = " "
    may["comm"] = may["config"] = may["hdf5"] = may["text"] = may["page"] = " base "
    may["data"] = " text hdf5 base "
    may["checkpoint"] = " hdf5 base "
    may["base"] = " "
    may["arrow"] = " "
    # For each vendor, how the name of the header begins, and the files (regular expressions) that may include it.
    owner["mpi.h"] = "^src/comm/"
    owner["hdf5.h"] = owner["H5"] = "^src/hdf5/"
    owner["dnnl"] = "^kernels/cpu/.*onednn[.](h|cpp)$"
    owner["oneapi/dnnl"] = "^kernels/cpu/.*onednn[.](h|cpp)$"
    owner["yaml-cpp/"] = "^src/config/"
    owner["CLI/"] = "^src/(commands/|main[.]cpp$)"
    owner["jpeglib"] = "^src/data/jpeg[.]cpp$"
    owner["png"] = "^src/data/png[.]cpp$"
    owner["pcre2"] = "^src/text/pattern[.]cpp$"
    owner["utf8proc"] = "^src/text/(normalizer|jinja_values)[.]cpp$"
    owner["spdlog/"] = "^src/base/"
    owner["google/protobuf/"] = "^src/run/"
    owner["immintrin"] = "^kernels/cpu/|^src/comm/sum"
    owner["cuda"] = "^kernels/cuda/|^src/comm/nccl"
    owner["cudnn"] = owner["cublas"] = owner["nvtx3/"] = "^kernels/cuda/"
    owner["nccl.h"] = "^src/comm/nccl"
    owner["arrow/"] = owner["parquet/"] = "^src/arrow/"
    owner["omp.h"] = "^kernels/cpu/"
  }
  function broken(rule) { printf "%s:%s: %s\n    %s\n", file, line, rule, text; count++ }
  {
    file = $1; line = $2; text = $0; sub(/^[^:]*:[^:]*:/, "", text)
    header = text; sub(/^[^"<]*["<]/, "", header); sub(/[">].*$/, "", header)

    # versions.cpp includes headers of all libraries, to list their versions.
    for (v in owner)
      if (file != "src/run/versions.cpp" && index(header, v) == 1 && file !~ owner[v]) broken("<" header "> belongs to the files " owner[v])

    # The folder of the file, and the folder of the header that it includes.
    n = split(file, at, "/")
    from = at[2]; sub(/[.].*$/, "", from)
    if (at[1] == "include") {
      if (text ~ /"/ && header !~ /^lockstep\// && header != "errors.def") broken("include/ includes only include/")
    } else if (at[1] == "kernels") {
      if (text ~ /"/ && header !~ /^lockstep\// && index(header, "kernels/" at[2] "/") != 1)
        broken("kernels/" at[2] " includes only include/ and itself")
      else if (text ~ /"/ && at[3] == "base" && header ~ /^kernels/ && index(header, "kernels/" at[2] "/base/") != 1)
        broken("kernels/" at[2] "/base must not include ops")
    } else if (at[1] == "src" && text ~ /"/) {
      if (header ~ /^kernels\//) {
        if (file != "src/backend_factory.cpp") broken("only src/backend_factory.cpp names a backend")
      } else if (header ~ /^(test|bench)\//) {
        broken("src/ must not include " header)
      } else if (header !~ /^lockstep\// && header != "errors.def") {
        to = header; sub(/\/.*$/, "", to)
        if (header !~ /\//) broken("include it with its folder: \"" from "/" header "\"")
        else if (!(from in may)) broken("scripts/check-arrows.sh does not know the folder src/" from)
        else if (to != from && index(may[from], " " to " ") == 0) broken(from " -> " to " is not an allowed include")
      }
    }
  }
  END {
    if (count) { printf "check-arrows: %d includes break the rules at the top of scripts/check-arrows.sh\n", count; exit 1 }
    printf "check-arrows: %d includes follow the rules\n", NR
  }' || status=1
exit $status
