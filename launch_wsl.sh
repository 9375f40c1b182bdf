#!/usr/bin/env -S bash
# shellcheck disable=SC1017,SC2317 # (a copy saved on Windows has CRLF endings: the next lines, whose end is a comment, repair it)
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@"                                                                               # started as `sh launch_wsl.sh`
[ "${BASH_SOURCE[0]-$0}" = "$0" ] || ! echo 'touchstone: run this script (./launch_wsl.sh), do not source it.' >&2 || return 1 # sourced
[ -n "${BASH_EXECUTION_STRING-}" ] || ! grep -q $'\r' "$0" || exec bash -c "$(tr -d '\r' <"$0")" "$0" "$@"                     # CRLF

# Starts Touchstone under WSL2, on any Linux and on macOS; see `./launch_wsl.sh --help`.
# Finds a Python and runs backend/cli/launcher with it. Written for bash 3.2 and newer.
set -eu
unset CDPATH
pwd -P >/dev/null 2>&1 || cd / # the current folder was deleted

say() { printf 'touchstone: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

# Prints the folder of the script itself, through any chain of links.
own_folder() {
  local file=$1 link
  while [ -L "$file" ]; do
    link=$(readlink "$file")
    case $link in /*) file=$link ;; *) file=$(dirname -- "$file")/$link ;; esac
  done
  cd -P -- "$(dirname -- "$file")" && pwd -P
}

# Prints what interpreter.py says of an interpreter; nothing for one that does not run.
judge() {
  local said
  said=$("$1" -I - posix <"$ROOT/backend/cli/launcher/interpreter.py" 2>/dev/null) || true
  said=${said##*$'\n'}
  printf '%s\n' "${said%$'\r'}" # line ends of a Windows Python
}

# Sets PYTHON to the first usable interpreter; else UNFIT to the best unusable one, and LACK to what it lacks. SKIPPED is a
# sentence on an interpreter for which the packages do not exist.
find_python() {
  local name said
  PYTHON='' UNFIT='' LACK='' SKIPPED=''
  for name in python3.13 python3.12 python3.11 python3 python python3.14 uv; do
    if ! has "$name"; then continue; fi
    if [ "$name" = uv ]; then name=$(uv python find --no-project '>=3.11,<3.15' 2>/dev/null) || return 0; fi
    said=$(judge "$name")
    case $said in
      good)
        PYTHON=$name
        return
        ;;
      old | '') ;;
      'Python '*) if [ -z "$SKIPPED" ]; then SKIPPED=$said; fi ;;
      *) if [ -z "$UNFIT" ]; then UNFIT=$name LACK=$said; fi ;;
    esac
  done
}

# Prints the command that installs a supported Python with its venv module on this system.
remedy() {
  local sudo='' name packages=''
  if [ "$(id -u)" -ne 0 ]; then sudo='sudo '; fi
  if has apt-get; then
    ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || printf '%s && ' "${sudo}apt-get update"
    if [ "$LACK" = ensurepip ] || [ "$LACK" = venv ]; then
      packages=python$("$UNFIT" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
      if [ "$(judge python3)" = "$LACK" ]; then packages=python3-venv; fi
    elif has python3; then # the default one is too old or too new: many releases also package another one
      for name in python3.13 python3.12 python3.11 python3.14; do
        if apt-cache show "$name" >/dev/null 2>&1; then
          packages="$name $name-venv"
          break
        fi
      done
    fi
    if [ -z "$packages" ] && [ -n "$SKIPPED" ]; then
      printf '%s\n' "$BY_UV"
    else
      printf '%s\n' "${sudo}apt-get install -y ${packages:-python3 python3-venv}"
    fi
  elif has dnf; then
    printf '%s\n' "${sudo}dnf install -y $(if has python3; then echo python3.12; else echo python3; fi)"
  elif has pacman; then
    if [ -n "$SKIPPED" ]; then
      printf '%s\n' "${sudo}pacman -S --noconfirm uv && uv python install 3.13"
    else
      printf '%s\n' "${sudo}pacman -S --noconfirm python"
    fi
  elif has zypper; then
    printf '%s\n' "${sudo}zypper install -y python312"
  elif has brew; then
    printf '%s\n' 'brew install python@3.13'
  elif has uv; then
    printf '%s\n' 'uv python install 3.13'
  else
    printf '%s\n' "(no known package manager: install Python 3.13 from python.org, or $BY_UV)"
  fi
}

case ${OSTYPE-} in
  msys* | cygwin*)
    say 'this is bash for Windows, not WSL. Start .\launch.cmd in PowerShell instead, or this script inside WSL.'
    exit 1
    ;;
esac

ROOT=$(own_folder "$0")
if [ ! -f "$ROOT/backend/cli/launcher/__main__.py" ]; then
  say "$ROOT has no backend/cli/launcher: run the script in a complete copy of the repository, or through a link to it."
  exit 1
fi

BY_UV='uv (https://docs.astral.sh/uv), then: uv python install 3.13'
find_python
if [ -z "$PYTHON" ]; then
  case $LACK in
    ensurepip | venv)
      say "$("$UNFIT" --version) lacks the module venv, which Debian and Ubuntu package separately. Install it with:"
      ;;
    windows) say "The only Python found is a Windows program ($(command -v "$UNFIT")); WSL requires a Linux one. Install it with:" ;;
    32-bit) say "$("$UNFIT" --version) is a 32-bit program; the packages require 64 bits. Install another one with:" ;;
    '')
      if [ -n "$SKIPPED" ]; then
        say "$SKIPPED Install another one with:"
      elif has python3; then
        say "$(python3 --version 2>&1) is too old or does not run; Python 3.11 to 3.14 is required. Install it with:"
      else
        say 'Python 3.11 to 3.14 is required but was not found. Install it with:'
      fi
      ;;
    *) say "$("$UNFIT" --version) was built without the module $LACK. Install a complete one with:" ;;
  esac
  printf '\n    %s\n\n' "$(remedy)" >&2
  say 'Then repeat this command.'
  exit 1
fi
if [ -n "$SKIPPED" ]; then say "$SKIPPED Using $PYTHON instead."; fi
exec "$PYTHON" -I "$ROOT/backend/cli/launcher" "$@"
