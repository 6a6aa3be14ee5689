#!/usr/bin/env bash
# Writes the modulefiles of an installation: VERSION in Tcl for environment-modules, and VERSION.lua, which Lmod prefers.
# `make install` calls this script.
#
#   modules/write-modulefiles.sh FOLDER PREFIX VERSION [cuda]
#
# FOLDER   the folder for the modulefiles, PREFIX/modulefiles/lockstep (below DESTDIR while packaging)
# PREFIX   the prefix of the installation
# cuda     given if the program was built with CUDA
# MODULE_PREREQS="gcc openmpi hdf5 cuda" (environment): modules that must be loaded first, with the site's names; default none
set -euo pipefail
usage="usage: write-modulefiles.sh FOLDER PREFIX VERSION [cuda]"
folder=${1:?$usage} prefix=${2:?$usage} version=${3:?$usage} cuda=${4:-}
read -ra prereqs <<<"${MODULE_PREREQS:-}"

# Other characters in a path or in the name of a module may have a meaning in Tcl or Lua.
for word in "$prefix" "$version" "${prereqs[@]}"; do
  if [[ ! $word =~ ^[A-Za-z0-9_./+~:@-]+$ ]]; then
    echo "write-modulefiles.sh: expected only letters, digits and _./+~:@- in PREFIX, VERSION and MODULE_PREREQS, found \"$word\"" >&2
    exit 2
  fi
done

devices="on processors"
if [[ -n $cuda ]]; then devices="on processors and NVIDIA GPUs"; fi
what="Trains ResNets and language models data-parallel with MPI, $devices"
help="Lockstep $version in $prefix
$what.

  lockstep --help                 lists the commands; lockstep help config: every key of a configuration
  \$LOCKSTEP_HOME/jobs             job scripts and their configurations (jobs/configs); see docs/clusters.md
  \$LOCKSTEP_DATA                  the folder with their data; the samples of $prefix unless you set it before
  LOCKSTEP_SITE=NAME or FILE      if set before loading: the module also sets what this site file exports (partition,
                                  account, MPI of Slurm, network); NAME means \$LOCKSTEP_HOME/modules/site/NAME.sh
  source <(lockstep completion bash)   completes commands, options and keys"

mkdir -p "$folder"
{
  cat <<TCL
#%Module1.0
# Lockstep $version. Written by its \`make install\`.
set prefix $prefix
set home \$prefix/share/lockstep
set data \$home/data

proc ModulesHelp {} {
  puts stderr {$help}
}
module-whatis {Lockstep $version: $what}

conflict lockstep
TCL
  for name in "${prereqs[@]}"; do echo "prereq $name"; done
  cat <<'TCL'

# Set before the site file, which may use it, and again after it, so that the site file cannot name another installation.
setenv LOCKSTEP_HOME $home
if {[info exists ::env(LOCKSTEP_SITE)] && $::env(LOCKSTEP_SITE) ne ""} {
  set site $::env(LOCKSTEP_SITE)
  if {[string first / $site] < 0} {
    set site $home/modules/site/$site.sh
    set is_name 1
  }
  if {[file isfile $site]} {
    # Jobs source the site file by its path, so the path stays when the module is unloaded. It is set here because source-sh
    # would treat a path that the file itself exports as a list, and drop a folder that occurs in it twice.
    if {[info exists is_name]} {
      setenv LOCKSTEP_SITE $site
    }
    source-sh bash $site
  } elseif {[module-info mode load]} {
    puts stderr "lockstep: LOCKSTEP_SITE names $site, but there is no such file: give the path of a site file or the name of a file in $home/modules/site, or unset LOCKSTEP_SITE"
    break
  }
}
setenv LOCKSTEP_HOME $home
# A value that the user has set stays, also after unloading.
if {![info exists ::env(LOCKSTEP_DATA)] || $::env(LOCKSTEP_DATA) eq $data} {
  setenv LOCKSTEP_DATA $data
}
prepend-path PATH $prefix/bin
TCL
} >"$folder/$version"

{
  cat <<LUA
-- Lockstep $version. Written by its \`make install\`.
local prefix = "$prefix"
local home = pathJoin(prefix, "share/lockstep")
local data = pathJoin(home, "data")

help([[$help]])
whatis("Name: Lockstep")
whatis("Version: $version")
whatis("Description: $what")

conflict("lockstep")
LUA
  for name in "${prereqs[@]}"; do echo "prereq(\"$name\")"; done
  cat <<'LUA'

-- Set before the site file, which may use it, and again after it, so that the site file cannot name another installation.
setenv("LOCKSTEP_HOME", home)
local site = os.getenv("LOCKSTEP_SITE") or ""
if site ~= "" then
  if not site:find("/", 1, true) then
    site = pathJoin(home, "modules/site", site .. ".sh")
    if isFile(site) then
      setenv("LOCKSTEP_SITE", site) -- jobs source it by its path, which stays when the module is unloaded
    end
  end
  if isFile(site) then
    source_sh("bash", site)
  elseif mode() == "load" then
    LmodError("LOCKSTEP_SITE names " .. site .. ", but there is no such file: give the path of a site file or the name of a file in " ..
      home .. "/modules/site, or unset LOCKSTEP_SITE")
  end
end
setenv("LOCKSTEP_HOME", home)
-- A value that the user has set stays, also after unloading.
if (os.getenv("LOCKSTEP_DATA") or data) == data then
  setenv("LOCKSTEP_DATA", data)
end
prepend_path("PATH", pathJoin(prefix, "bin"))
LUA
} >"$folder/$version.lua"
