#!/usr/bin/env bash
# timeout: 300
# Tests `make install`, and its modulefiles with the real environment-modules and the real Lmod: the installed files,
# loading, unloading, a second version, a missing prerequisite and a site file. If a module system is missing, its tests
# are skipped.
source test/support/check.sh
build=$(dirname "$lockstep")
version=$(sed -n 's/^VERSION := //p' Makefile)
prefix=$work/opt/lockstep
# The folder and the CUDA option with which the program was built: `make install` must not rebuild it.
build=${build#"$PWD"/}
case $build in
  */sm_*) variables=(BUILD="${build%/*}" OUT="$build" CUDA_ARCH="$(tr _ ' ' <<<"${build##*/sm_}")") ;;
  *) variables=(BUILD="$build") ;;
esac
"$lockstep" --version | grep -q '^  CUDA' || variables+=(CUDA=0)
install() { make --no-print-directory "${variables[@]}" "$@" install; }

# ---- What is installed ------------------------------------------------------------------------------------------------
check "make install" install PREFIX="$prefix"
check "the program runs" bash -c "'$prefix/bin/lockstep' --version | grep -q '^lockstep $version '"
check "make install with DESTDIR" install PREFIX=/opt/lockstep DESTDIR="$work/stage"
check "  the same files" diff <(cd "$prefix" && find . -type f | sort) <(cd "$work/stage/opt/lockstep" && find . -type f | sort)
check "  no file contains DESTDIR" bash -c "! grep -rlF '$work/stage' '$work/stage'"
share=$prefix/share/lockstep
for file in README.md docs/troubleshooting.md docs/pictures/trace.svg scripts/launch data/samples/cifar10_train.h5 $(find jobs -name '*.sh' -o -name '*.yaml'); do
  check "installs $file" test -s "$share/$file"
done
check "scripts are executable" test -x "$share/scripts/launch" -a -x "$share/data/get_model.sh" -a -x "$share/data/get_mnist.sh"
for batch in data_batch_{1,2,3,4,5} test_batch; do
  mkdir -p "$work/cifar-10-batches-bin"
  for _ in 1 2 3 4; do printf '\1'; head -c 3072 /dev/urandom; done >"$work/cifar-10-batches-bin/$batch.bin"
done
tar -czf "$work/cifar.tar.gz" -C "$work" cifar-10-batches-bin
check "the installed program imports CIFAR-10 into LOCKSTEP_DATA" env -u LOCKSTEP LOCKSTEP_DATA="$work/mine" \
  CIFAR10_URL="file://$work/cifar.tar.gz" CIFAR10_SHA256="$(sha256sum "$work/cifar.tar.gz" | cut -d' ' -f1)" \
  "$share/data/get_cifar10.sh"
check "  and the configuration finds it" env LOCKSTEP_DATA="$work/mine" "$prefix/bin/lockstep" plan \
  "$share/jobs/configs/resnet18_cifar10.yaml" device=cpu
check "configurations name their data below LOCKSTEP_DATA" grep -qF 'train: ${LOCKSTEP_DATA}/samples/cifar10_train.h5' \
  "$share/jobs/configs/quickstart.yaml"
check "the completion" cmp "$prefix/share/bash-completion/completions/lockstep" <("$lockstep" completion bash)
check "the completion of zsh" cmp "$prefix/share/zsh/site-functions/_lockstep" <("$lockstep" completion zsh)
check "make uninstall" make --no-print-directory "${variables[@]}" PREFIX=/opt/lockstep DESTDIR="$work/stage" uninstall
check "  leaves no file" test -z "$(find "$work/stage" -type f)"
check "a prefix that no modulefile can name" refused 2 'expected only letters, digits .*found "/opt/my programs"' \
  modules/write-modulefiles.sh "$work/nowhere" "/opt/my programs" "$version"

# ---- Modulefiles --------------------------------------------------------------------------------------------------------
folder=$prefix/modulefiles/lockstep
modules/write-modulefiles.sh "$folder" "$prefix" 9.9.9
MODULE_PREREQS="some-compiler/1.0 some-mpi" modules/write-modulefiles.sh "$folder" "$prefix" 8.8.8
for name in some-compiler/1.0 some-mpi/1.0; do
  mkdir -p "$work/other/${name%/*}"
  printf '#%%Module1.0\n' >"$work/other/$name"
done
cat >"$work/site.sh" <<'SITE'
export SBATCH_PARTITION=gpu
export SLURM_MPI_TYPE=pmix USED_HOME=$LOCKSTEP_HOME LOCKSTEP_HOME=/another
SITE
mkdir -p "$share/modules/site"
cat >"$share/modules/site/our-site.sh" <<'SITE'
export LOCKSTEP_SITE=$(realpath "${BASH_SOURCE[0]}") LOCKSTEP_HOME=${LOCKSTEP_HOME:-/another}
export SBATCH_ACCOUNT=project7 LOCKSTEP_DATA=/scratch/data
SITE

# session COMMANDS: in a fresh shell that has `module`
session() {
  mkdir -p "$work/home"
  env -i HOME="$work/home" USER=user TERM=dumb PATH=/usr/local/bin:/usr/bin:/bin LMOD_PAGER=none MODULES_PAGER= \
    bash -c "source '$init'; export MODULEPATH='$folder/..:$work/other'; $1"
}
# The environment as a user sees it, without the internal variables of the module systems.
seen='env | grep -Ev "^(_|SHLVL|LOADEDMODULES|_LMFILES_|__MODULES_.*|__LMOD_.*|LMOD_.*|_ModuleTable.*|BASH_FUNC.*)=|^[ }]" | sort'
load="module load lockstep/$version"
prints() { session "$2" >"$work/said" 2>&1; grep -Eq -- "$1" <(tr '\n' ' ' <"$work/said") || { cat "$work/said"; return 1; }; }

try_modules() { # NAME INIT
  local name=$1
  init=$2
  check "$name: the program of this version" prints "^lockstep $version " "$load; lockstep --version"
  check "$name: LOCKSTEP_HOME" prints "^$share $" "$load; echo \$LOCKSTEP_HOME"
  check "$name: LOCKSTEP_DATA" prints "^$share/data $" "$load; echo \$LOCKSTEP_DATA"
  check "$name: a configuration finds its data" prints "Memory per rank" "$load; lockstep plan \
    \$LOCKSTEP_HOME/jobs/configs/quickstart.yaml device=cpu"
  check "$name: LOCKSTEP_DATA of the user stays" prints '^/mine /mine $' \
    "export LOCKSTEP_DATA=/mine; $load; echo \$LOCKSTEP_DATA; module unload lockstep; echo \$LOCKSTEP_DATA"
  check "$name: unloading restores everything" session \
    "$seen >$work/before; $load; $seen >$work/loaded; module unload lockstep; $seen >$work/after
     ! cmp -s $work/before $work/loaded && diff $work/before $work/after"
  check "$name: help" prints "lockstep help config: every key" "module help lockstep/$version"
  check "$name: whatis" prints "Trains ResNets and language models data-parallel with MPI" "module whatis lockstep/$version"
  check "$name: avail lists each version once" test \
    "$(session 'module -t avail lockstep' 2>&1 | grep -c '^lockstep/.*[0-9]')" = 3
  check "$name: a prerequisite that is missing is named" prints "some-compiler.* status 1 none" \
    "export MODULEPATH=$folder/..; module load lockstep/8.8.8; echo status \$? \${LOCKSTEP_HOME:-none}"
  check "$name: it loads once the prerequisites are loaded" prints "^$share $" \
    "module load some-compiler/1.0 some-mpi/1.0; module load lockstep/8.8.8; echo \$LOCKSTEP_HOME"
  check "$name: a site file" prints "^gpu pmix $share $share $" "export LOCKSTEP_SITE=$work/site.sh; $load
    echo \$SBATCH_PARTITION \$SLURM_MPI_TYPE \$USED_HOME \$LOCKSTEP_HOME"
  check "$name: unloading removes what it exported" session "export LOCKSTEP_SITE=$work/site.sh; $seen >$work/before; $load
    module unload lockstep; $seen >$work/after; diff $work/before $work/after"
  check "$name: a site by its name" prints "^project7 /scratch/data $share/modules/site/our-site.sh $" \
    "export LOCKSTEP_SITE=our-site; $load; echo \$SBATCH_ACCOUNT \$LOCKSTEP_DATA \$LOCKSTEP_SITE"
  check "$name: unloading removes its variables" prints "^gone $" "export LOCKSTEP_SITE=our-site; $load; module unload lockstep
    env | grep -E '^(LOCKSTEP_(HOME|DATA)|SBATCH_ACCOUNT)=' || echo gone"
  check "$name: but the path of the site file stays" prints "^$share/modules/site/our-site.sh $" \
    "export LOCKSTEP_SITE=our-site; $load; module unload lockstep; echo \$LOCKSTEP_SITE"
  check "$name: a site that does not exist" prints "there is no such *file: give the path of a site file.* status 1 none" \
    "export LOCKSTEP_SITE=nowhere; $load; echo status \$? \${LOCKSTEP_HOME:-none}"
}

n_skipped=0
environment_modules=/usr/share/modules/init/bash
if [[ -e $environment_modules ]]; then
  try_modules environment-modules "$environment_modules"
  check "environment-modules: a second version is rejected" prints "conflict.* status 1 lockstep/$version $" \
    "$load; module load lockstep/9.9.9; echo status \$? \$LOADEDMODULES"
else
  echo "skipped: environment-modules is missing; make deps-test"
  n_skipped=$((n_skipped + 1))
fi

lmod=
for init in "$PWD/.deps/lmod/usr/share/lmod/lmod/init/bash" /usr/share/lmod/lmod/init/bash; do
  if [[ -e $init ]]; then lmod=$init; break; fi
done
if [[ -n $lmod ]]; then
  try_modules Lmod "$lmod"
  check "Lmod: a second version replaces the first" prints "^lockstep/9.9.9 $" "$load; module load lockstep/9.9.9 2>/dev/null
    echo \$LOADEDMODULES"
  check "Lmod: or is rejected" prints "status 1 lockstep/$version $" "export LMOD_DISABLE_SAME_NAME_AUTOSWAP=yes
    $load; module load lockstep/9.9.9; echo status \$? \$LOADEDMODULES"
  rm "$folder"/*.lua
  check "Lmod: reads the modulefile in Tcl too" prints "^$share $" "$load; echo \$LOCKSTEP_HOME"
else
  echo "skipped: Lmod is missing; make deps-test"
  n_skipped=$((n_skipped + 1))
fi
if ((n_skipped)); then printf '[  SKIPPED ] %d tests.\n' "$n_skipped"; fi
finish
