#!/usr/bin/env bash
# timeout: 120
# make has rules for everything that the commands of README.md need, in a build folder that does not exist yet.
source test/support/check.sh

plan() { make --no-print-directory --dry-run "$@" BUILD="$work/build"; }
check "make" plan
check "make quickstart" plan quickstart
check "make tests" plan tests
check "make benches" plan benches
# A second Make builds the tests. If both ran at once, they would write the same objects.
is_after() { plan --print-data-base "$1" "$2" 2>/dev/null | grep -E "^$2: .*\|.* ?$1( |$)" >/dev/null; }
check "the tests are built after all other goals" is_after all tests
check "  and run after them" is_after benches test
# Programs that replace the compiler and ar, write empty files, and print what they write.
mkdir -p "$work/bin"
cat >"$work/bin/g++" <<'SH'
#!/usr/bin/env bash
for ((i = 1; i <= $#; i++)); do [[ ${!i} == -o ]] && j=$((i + 1)) && : >"${!j}" && exit; done
exec "$REAL" "$@"
SH
cat >"$work/bin/ar" <<'SH'
#!/usr/bin/env bash
echo "  archive  $2" && : >"$2"
SH
chmod 755 "$work"/bin/*
build() {
  REAL=$(command -v g++) make --no-print-directory CXX="$work/bin/g++" AR="$work/bin/ar" BUILD="$work/built" CUDA=0 \
    "${1:-$work/built/lockstep}"
}
check "a build" build
build >"$work/again" 2>&1
check "  compiles nothing twice" bash -c "! grep -E 'compile|archive' '$work/again'"
rm "$work"/built/units/src/base/*.o # as if the sources had been added while the library was being made
build >"$work/added" 2>&1
check "new sources that are older than the library are compiled" grep 'compile  .* sources of src/base/' "$work/added"
check "  and the library is made again" grep 'archive  .*liblockstep.a' "$work/added"
# The sanitizers' build links the tests of the release build.
check "the objects of tests" build test-objects
find "$work/built/units/test" -name '*.cpp' -exec touch {} +
plan MODE=asan-ubsan RELEASE="$work/built" UNIT_TESTS_ONLY=1 CUDA=0 tests-here >"$work/sanitized" 2>&1
check "the sanitizers' build links them" grep -q -- "-fsanitize=.* $work/built/units/test/.*\.o" "$work/sanitized"
check "  and compiles none of them" bash -c "! grep -E -- '-o $work/built/' '$work/sanitized'"
check "make install" plan install PREFIX="$work/prefix"
finish
