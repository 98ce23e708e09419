# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by tests/run.sh and examples/run.sh: installs what is missing, and makes build folders.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# CUDA's installers leave nvcc off PATH.
if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  PATH=$PATH:/usr/local/cuda/bin
fi
export CXX=${CXX:-g++}

is_there() {  # PROBE, as in packages.txt
  # shellcheck disable=SC2086 # CXX may hold arguments
  case $1 in
    '<'*) printf '#if !__has_include(%s)\n#error\n#endif\n' "$1" | $CXX -E -x c++ - >/dev/null 2>&1 ;;
    pc:*) pkg-config --exists "${1#pc:}" 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing() {  # NEED...: the packages of packages.txt, with one of these needs, that are not there
  local package probe need
  while read -r package probe need; do
    if [[ -n $package && $package != '#'* && " $* " == *" $need "* ]] && ! is_there "$probe"; then
      printf '%s ' "$package"
    fi
  done <"$root/scripts/packages.txt"
}

# Installs what is missing with apt-get. Does nothing, and needs no network, where nothing is, or where LOCKSTEP_NO_INSTALL is
# set.
install_missing() {  # NEED...: beside needed and optional packages
  local packages as_root=() apt
  read -r -a packages <<<"$(missing needed optional "$@")"
  if [[ ${#packages[@]} -gt 0 && -z ${LOCKSTEP_NO_INSTALL:-} ]] && command -v apt-get >/dev/null; then
    if [[ $(id -u) -ne 0 ]]; then
      as_root=(sudo)
    fi
    if [[ $(id -u) -eq 0 ]] || command -v sudo >/dev/null; then
      apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
      echo "Installing with ${as_root[*]:+sudo }apt-get: ${packages[*]}"
      "${apt[@]}" update -qq || echo "apt-get update failed; going on with the lists that are there"
      "${apt[@]}" install -y -qq --no-install-recommends "${packages[@]}" || echo "apt-get install failed"
    fi
  fi
  read -r -a packages <<<"$(missing needed "$@")"
  if [[ ${#packages[@]} -gt 0 ]]; then
    echo "Missing, and could not be installed from here; in Debian's names: ${packages[*]}"
    return 1
  fi
  read -r -a packages <<<"$(missing optional)"
  if [[ ${#packages[@]} -gt 0 ]]; then
    echo "Going on without: ${packages[*]} (what needs them is left out)"
  fi
}

# Makes a build folder, or keeps it if it was made in the same way. One that somebody set up by hand is kept as it is.
configure() {  # FOLDER MESON_OPTION...
  local folder=$1 made
  shift
  made=$(printf '%s\n' "$root" "$@" "$(meson --version)" "$($CXX --version | head -n 1)" "$(command -v nvcc)" \
    "$(missing optional)")
  if [[ -f $folder/made_by && $(<"$folder/made_by") != "$made" ]]; then
    rm -rf "$folder"
  fi
  if [[ ! -f $folder/build.ninja ]]; then
    meson setup "$@" "$folder" "$root" || return 1
    printf '%s\n' "$made" >"$folder/made_by"
  fi
}
