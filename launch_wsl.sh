#!/usr/bin/env -S bash
# shellcheck disable=SC1017,SC2317 # (a copy saved on Windows has CRLF endings: the next lines, whose end is a comment, repair it)
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@" # started as `sh launch_wsl.sh`
[ -n "${BASH_EXECUTION_STRING-}" ] || ! grep -q $'\r' "$0" || exec bash -c "$(tr -d '\r' <"$0")" "$0" "$@" # CRLF

# Starts Touchstone under WSL2, on any Linux and on macOS; `./launch_wsl.sh --help` says how.
# Finds a Python and hands over to backend/launcher, which does the rest. Kept to what bash 3.2 understands.
set -eu
unset CDPATH

say() { printf 'touchstone: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

# The folder that the script itself lies in, through any chain of links.
own_folder() {
  local file=$1 link
  while [ -L "$file" ]; do
    link=$(readlink "$file")
    case $link in /*) file=$link ;; *) file=$(dirname -- "$file")/$link ;; esac
  done
  cd -P -- "$(dirname -- "$file")" && pwd -P
}

new_enough() { "$1" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
complete() { "$1" -I -c 'import venv, ensurepip' >/dev/null 2>&1; }

# Sets PYTHON to the first usable interpreter, or INCOMPLETE to one that lacks only the venv module.
find_python() {
  local name
  PYTHON='' INCOMPLETE=''
  for name in python3.13 python3.12 python3.11 python3 python python3.14; do
    if ! has "$name" || ! new_enough "$name"; then continue; fi
    if complete "$name"; then PYTHON=$name; return; fi
    INCOMPLETE=${INCOMPLETE:-$name}
  done
  if has uv; then
    name=$(uv python find --no-project '>=3.11,<3.15' 2>/dev/null) || return 0
    if new_enough "$name" && complete "$name"; then PYTHON=$name; fi
  fi
}

# The command that this system needs to get a Python of 3.11 or newer, with its venv module.
remedy() {
  local sudo='' name packages=''
  if [ "$(id -u)" -ne 0 ]; then sudo='sudo '; fi
  if has apt-get; then
    ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || printf '%s && ' "${sudo}apt-get update"
    if [ -n "$INCOMPLETE" ]; then
      packages=python$("$INCOMPLETE" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
      if new_enough python3; then packages=python3-venv; fi
    elif has python3; then # the system's own is too old: many releases carry a newer one beside it
      for name in python3.13 python3.12 python3.11; do
        if apt-cache show "$name" >/dev/null 2>&1; then packages="$name $name-venv"; break; fi
      done
    fi
    printf '%s\n' "${sudo}apt-get install -y ${packages:-python3 python3-venv}"
  elif has dnf; then printf '%s\n' "${sudo}dnf install -y $(if has python3; then echo python3.12; else echo python3; fi)"
  elif has pacman; then printf '%s\n' "${sudo}pacman -S --noconfirm python"
  elif has zypper; then printf '%s\n' "${sudo}zypper install -y python312"
  elif has brew; then printf '%s\n' 'brew install python@3.13'
  elif has uv; then printf '%s\n' 'uv python install 3.13'
  else printf '%s\n' '(no known package manager: install Python 3.13 from python.org)'
  fi
}

ROOT=$(own_folder "$0")
if [ ! -f "$ROOT/backend/launcher/__main__.py" ]; then
  say "$ROOT holds no backend/launcher: run the script inside a complete copy of the repository (a link to it works too)."
  exit 1
fi

find_python
if [ -z "$PYTHON" ]; then
  if [ -n "$INCOMPLETE" ]; then
    say "$("$INCOMPLETE" --version) is here, but its venv module is not (Debian and Ubuntu package it apart). Get it with:"
  elif has python3; then
    say "$(python3 --version 2>&1) is too old or does not run; Python 3.11 or newer is needed. Get it with:"
  else
    say 'Python 3.11 or newer is needed and not found. Get it with:'
  fi
  printf '\n    %s\n\n' "$(remedy)" >&2
  say 'Then start this again.'
  exit 1
fi
exec "$PYTHON" -I "$ROOT/backend/launcher" "$@"
