#!/usr/bin/env bash
# Lists all tests, one per line, with tab-separated fields:
#
#   name  program  filter  ranks  timeout  long  sanitizers  cores  environment  source
#
#   scripts/list-tests.sh [SOURCE...]       (all sources below test/ unless some are named)
#
# A test is one source: the suites of a *_test.cpp, which run in the program of its folder (filter, as --gtest_filter),
# or a script. A test that runs on several numbers of ranks has one line per number. A field without a value is "-".
# Comments in the first 12 lines of a source set the fields; test/README.md explains them.
set -euo pipefail
cd "$(dirname "$0")/.."

sources=("$@")
((${#sources[@]})) || mapfile -t sources < <(find test -name '*_test.cpp' -o -name '*_test.sh' -o -name '*_test.py' | LC_ALL=C sort)

awk -v OFS='\t' '
  function set_to_defaults(   key) {
    split("ranks timeout long sanitizers cores environment also program", keys, " ")
    for (key in keys) value[keys[key]] = ""
    filter = ""
    delete seen
  }
  function or_else(text, otherwise) { return text == "" ? otherwise : text }
  function print_test(   name, program, folder, n, i, counts, cores) {
    name = source
    sub(/^test\//, "", name)
    folder = name
    sub(/\/[^\/]*$/, "", folder)
    program = "-"
    if (source ~ /[.]cpp$/) {
      sub(/[.]cpp$/, "", name)
      program = value["program"] == "own" ? name : folder "_test"
      if (value["also"] != "") filter = filter ":" value["also"]
      sub(/^:/, "", filter)
      if (filter == "") { printf "%s: no TEST in it\n", source > "/dev/stderr"; failed = 1 }
    } else {
      filter = "-"
    }
    n = split(or_else(value["ranks"], "-"), counts, " ")
    for (i = 1; i <= n; i++) {
      cores = or_else(value["cores"], counts[i] == "-" ? 1 : counts[i])
      print name (counts[i] == "-" ? "" : "." counts[i] "_ranks"), program, filter, counts[i], or_else(value["timeout"], 120),
        or_else(value["long"], "no"), counts[i] == "-" && source ~ /[.]cpp$/ ? or_else(value["sanitizers"], "yes") : "no",
        cores, or_else(value["environment"], "-"), source
    }
  }
  FNR == 1 {
    if (source != "") print_test()
    source = FILENAME
    set_to_defaults()
  }
  FNR <= 12 && match($0, /^(\/\/|#) *(ranks|timeout|long|sanitizers|cores|environment|also|program): */) {
    key = $0
    sub(/^(\/\/|#) */, "", key)
    sub(/:.*/, "", key)
    value[key] = substr($0, RSTART + RLENGTH)
    if (value[key] == "") { printf "%s: no value after %s:\n", source, key > "/dev/stderr"; failed = 1 }
  }
  source ~ /[.]cpp$/ && /^(TEST|TEST_F|TEST_P)\(/ {
    kind = suite = $0
    sub(/\(.*/, "", kind)
    sub(/^[A-Z_]*\( */, "", suite)
    sub(/[ ,].*/, "", suite)
    if (suite in seen) next
    seen[suite] = 1
    folder = source
    sub(/\/[^\/]*$/, "", folder)
    if ((folder, suite) in owner) {
      printf "%s: the suite %s is also in %s; suites of one folder need names of their own\n", source, suite, owner[folder, suite] > "/dev/stderr"
      failed = 1
    }
    owner[folder, suite] = source
    filter = filter ":" suite ".*" (kind == "TEST_P" ? ":*/" suite ".*" : "") # an instance has a prefix or none
  }
  END {
    if (source != "") print_test()
    exit failed
  }' "${sources[@]}"
