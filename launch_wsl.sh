#!/usr/bin/env -S bash
# shellcheck disable=SC1017,SC2317 # (a copy saved on Windows has CRLF endings: the next lines, whose end is a comment, repair it)
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@"                                                                        # started as `sh launch_wsl.sh`
[ "${BASH_SOURCE[0]-$0}" = "$0" ] || ! echo 'touchstone: start it (./launch_wsl.sh), do not source it.' >&2 || return 1 # sourced
[ -n "${BASH_EXECUTION_STRING-}" ] || ! grep -q $'\r' "$0" || exec bash -c "$(tr -d '\r' <"$0")" "$0" "$@"              # CRLF

# Starts Touchstone under WSL2, on any Linux and on macOS; `./launch_wsl.sh --help` says how.
# Finds a Python and hands over to backend/cli/launcher, which does the rest. Kept to what bash 3.2 understands.
set -eu
unset CDPATH
pwd -P >/dev/null 2>&1 || cd / # the folder that one stands in is gone

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

# Prints "good", or why this interpreter will not do: "old", "windows" (which WSL can start as well), "32-bit", or the
# module that it was built or packaged without. Nothing at all from one that does not run.
judge() {
  "$1" -I -c '
import sys
def lacks():
    for name in ("ensurepip", "venv", "ssl", "sqlite3", "ctypes", "zlib"):
        try:
            __import__(name)
        except ImportError:
            return name
if sys.version_info < (3, 11):
    print("old")
elif sys.platform == "win32":
    print("windows")
else:
    print("32-bit" if sys.maxsize < 2**32 else lacks() or "good")
' 2>/dev/null || true
}

# Sets PYTHON to the first usable interpreter; else UNFIT to the one that comes nearest, and LACK to what it lacks.
find_python() {
  local name said
  PYTHON='' UNFIT='' LACK=''
  for name in python3.13 python3.12 python3.11 python3 python python3.14 uv; do
    if ! has "$name"; then continue; fi
    if [ "$name" = uv ]; then name=$(uv python find --no-project '>=3.11,<3.15' 2>/dev/null) || return 0; fi
    said=$(judge "$name")
    said=${said%$'\r'} # Windows' Python ends its lines so
    case $said in
      good)
        PYTHON=$name
        return
        ;;
      old | '') ;;
      *) if [ -z "$UNFIT" ]; then UNFIT=$name LACK=$said; fi ;;
    esac
  done
}

# The command that this system needs to get a Python of 3.11 or newer, with its venv module.
remedy() {
  local sudo='' name packages=''
  if [ "$(id -u)" -ne 0 ]; then sudo='sudo '; fi
  if has apt-get; then
    ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || printf '%s && ' "${sudo}apt-get update"
    if [ "$LACK" = ensurepip ] || [ "$LACK" = venv ]; then
      packages=python$("$UNFIT" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
      if [ "$(judge python3)" = "$LACK" ]; then packages=python3-venv; fi
    elif has python3; then # the system's own is too old: many releases carry a newer one beside it
      for name in python3.13 python3.12 python3.11; do
        if apt-cache show "$name" >/dev/null 2>&1; then
          packages="$name $name-venv"
          break
        fi
      done
    fi
    printf '%s\n' "${sudo}apt-get install -y ${packages:-python3 python3-venv}"
  elif has dnf; then
    printf '%s\n' "${sudo}dnf install -y $(if has python3; then echo python3.12; else echo python3; fi)"
  elif has pacman; then
    printf '%s\n' "${sudo}pacman -S --noconfirm python"
  elif has zypper; then
    printf '%s\n' "${sudo}zypper install -y python312"
  elif has brew; then
    printf '%s\n' 'brew install python@3.13'
  elif has uv; then
    printf '%s\n' 'uv python install 3.13'
  else
    printf '%s\n' '(no known package manager: install Python 3.13 from python.org)'
  fi
}

case ${OSTYPE-} in
  msys* | cygwin*)
    say 'this is a bash of Windows, not WSL. Start .\launch.cmd in PowerShell instead, or this script inside WSL.'
    exit 1
    ;;
esac

ROOT=$(own_folder "$0")
if [ ! -f "$ROOT/backend/cli/launcher/__main__.py" ]; then
  say "$ROOT holds no backend/cli/launcher: run the script inside a complete copy of the repository (a link to it works too)."
  exit 1
fi

find_python
if [ -z "$PYTHON" ]; then
  case $LACK in
    ensurepip | venv)
      say "$("$UNFIT" --version) is here, but its venv module is not (Debian and Ubuntu package it apart). Get it with:"
      ;;
    windows) say "The only Python here is Windows' own ($(command -v "$UNFIT")); WSL needs one of Linux. Get it with:" ;;
    32-bit) say "$("$UNFIT" --version) is a 32-bit program, and the packages exist for 64 bits alone. Get another with:" ;;
    '')
      if has python3; then
        say "$(python3 --version 2>&1) is too old or does not run; Python 3.11 or newer is needed. Get it with:"
      else
        say 'Python 3.11 or newer is needed and not found. Get it with:'
      fi
      ;;
    *) say "$("$UNFIT" --version) was built without its module $LACK. Get a complete one with:" ;;
  esac
  printf '\n    %s\n\n' "$(remedy)" >&2
  say 'Then start this again.'
  exit 1
fi
exec "$PYTHON" -I "$ROOT/backend/cli/launcher" "$@"
