#!/usr/bin/env bash
# The documentation names what exists: every path, every link and its anchor, every make target, and every configuration
# key. README.md has at most 100 lines, prose has at most 120 columns, and every page of docs/ can be reached from README.md.
# Training is started so that it can be stopped without losing work.
set -uo pipefail
failed=0
fail() { echo "$*"; failed=1; }

mapfile -t pages < <(git ls-files --cached --others --exclude-standard '*.md' 2>/dev/null | grep -v '^bench/results/' | sort -u)
((${#pages[@]})) || mapfile -t pages < <(find . -name '*.md' -not -path './build*' -not -path './.*' -not -path './bench/results/*' | sed 's@^\./@@' | sort)
((${#pages[@]} > 10)) || fail "only ${#pages[@]} pages were found"

(($(wc -l <README.md) <= 100)) || fail "README.md has $(wc -l <README.md) lines, which is more than 100"
for page in docs/*.md; do
  grep -qF "($page)" README.md || fail "README.md does not link to $page"
done

# A path is a word in backticks or in a code block that begins with a folder of the project. Stars and braces in it are
# expanded; {h,cpp} names several files. Words in capitals are placeholders for names.
folders='(bench|data|docs|include|jobs|kernels|modules|scripts|src|test)'
paths_of() {
  grep -oE "(^|[^A-Za-z0-9_./~\$}-])$folders/[A-Za-z0-9_./*{},-]*" "$1" |
    grep -oE "$folders/.*" | sed -E 's/[.,:)]+$//' | sort -u
}
is_generated() { # created by a download or a user, or part of the skeleton in test/reference/README.md
  case $1 in data/cifar10* | bench/results/quick/* | modules/site/our-site.sh | */scale.* | */scale_test.cpp) return 0 ;; esac
  [[ $1 =~ [A-Z]{4,} && ! $1 =~ (README|MANIFEST) ]] # NAME, READER, OP_PART: a placeholder
}
for page in "${pages[@]}"; do
  while read -r path; do
    [[ -n $path ]] || continue
    is_generated "$path" && continue
    eval "expanded=($path)" 2>/dev/null || expanded=("$path")
    for file in "${expanded[@]}"; do
      [[ -e $file || -e $(dirname "$page")/$file ]] || fail "$page: there is no $file"
    done
  done < <(paths_of "$page")

  # Links: to files, and to headings of pages.
  while read -r link; do
    [[ -n $link && $link != http* ]] || continue
    file=${link%%#*} anchor=
    if [[ $link == *#* ]]; then anchor=${link#*#}; fi
    target=$page
    if [[ -n $file ]]; then target=$(dirname "$page")/$file; fi
    if [[ ! -e $target ]]; then
      fail "$page: the link $link leads nowhere"
    elif [[ -n $anchor ]]; then
      sed -nE 's/^#+ //p' "$target" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g' | grep -qx -- "$anchor" ||
        fail "$page: $target has no heading #$anchor"
    fi
  done < <(grep -oE '\]\([^)]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//')

  # Prose is wrapped; tables, code and links are not.
  awk -v page="$page" '
    /^```/ {code = !code}
    !code && !/^(    |\||#)/ && !/https?:/ && length > 120 {print page ":" FNR ": " length " columns"; bad = 1}
    END {exit bad}' "$page" || failed=1
done

# A bare mpirun loses work when it is stopped, so the documentation and `make install` show scripts/launch.
bare=$(grep -nE 'mpirun.*lockstep train' "${pages[@]}" Makefile scripts/*.mk | grep -vE 'scripts/launch |xterm -e gdb')
[[ -z $bare ]] || fail "mpirun without scripts/launch, which lets the ranks save:
$bare"

# Targets of make.
targets=$(sed -nE 's/^([a-z0-9-]+( [a-z0-9-]+)*):([^=].*|$)/\1/p' Makefile scripts/*.mk | tr ' ' '\n' | sort -u)
while read -r page target; do
  grep -qx -- "$target" <<<"$targets" || fail "$page: there is no target $target of make"
done < <(grep -oE '(`|^    (\$ )?)make [a-z][a-z0-9-]*' "${pages[@]}" | sed -E 's/:[^:]*make /: /; s/: / /' | sort -u)

# Configuration keys, as the program lists them.
program=${LOCKSTEP:-build/lockstep}
if [[ -x $program ]]; then
  keys=$("$program" help config | grep -oE '^[*! ] [a-z_]+(\.[a-z_0-9]+)?' | cut -c3-)
  keys+=$'\nmodel.width' # for tests; not listed
  groups=$(sed -n 's/\..*//p' <<<"$keys" | sort -u | paste -sd '|')
  while IFS=: read -r page key; do
    grep -qxF -- "$key" <<<"$keys" || fail "$page: there is no configuration key $key"
  done < <(grep -oE "(^|[\` ])($groups)\.[a-z_0-9]+[\`=: ,]" "${pages[@]}" | sed -E 's/[` =,]//g; s/:$//' |
    grep -vE '\.(h|cpp|py|md|h5|mk|sh|yaml|json|jsonl|safetensors|txt)$|:train\.epoch$|:model\.name$' | sort -u) # an example of an error; a key of other programs
fi
exit $failed
