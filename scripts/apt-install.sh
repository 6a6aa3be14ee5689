#!/usr/bin/env bash
# Installs Debian packages as root, without asking questions. The package lists are updated only if the installation fails
# without it, which happens on a fresh machine and after the mirror has changed.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
install() {
  apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" </dev/null
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! install "$@" >"$log" 2>&1; then
  apt-get update -qq -o DPkg::Lock::Timeout=300 </dev/null
  if ! install "$@" >"$log" 2>&1; then
    cat "$log" >&2
    echo "apt-get could not install: $*" >&2
    exit 1
  fi
fi
