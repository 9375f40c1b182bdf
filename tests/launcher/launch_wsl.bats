#!/usr/bin/env bats
# launch_wsl.sh itself: which Python it finds, what it says when there is none, and from where it can be started.
# shellcheck disable=SC2016,SC2154 # the bodies of stand-in programs are literal; bats sets `output` and `status`
# The folder under test holds the true script and a stand-in for backend/cli/launcher that shows how it was called.

bats_require_minimum_version 1.5.0

setup() {
  T=$(mktemp -d)
  ROOT="$T/a földer with blanks"
  REAL=$(python3 -c 'import sys; print(sys.executable)') # not a version manager's stub, which needs more of PATH
  mkdir -p "$ROOT/backend/cli/launcher" "$T/bin" "$T/elsewhere"
  cp "$BATS_TEST_DIRNAME/../../launch_wsl.sh" "$ROOT/"
  cp "$BATS_TEST_DIRNAME/../../backend/cli/launcher/interpreter.py" "$ROOT/backend/cli/launcher/"
  cat >"$ROOT/backend/cli/launcher/__main__.py" <<'PY'
import os, sys
print("launcher in", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
print("isolated", sys.flags.isolated, "arguments", sys.argv[1:])
print("asked as", os.environ.get("ASKED_AS"))
print("stdin", sys.stdin.read().strip())
sys.exit(7 if "seven" in sys.argv else 0)
PY
  # Nothing of the machine is seen but these tools: no Python, no package manager.
  for tool in bash env dirname readlink grep tr id cat mktemp sed chmod sh; do
    ln -s "$(type -P "$tool")" "$T/bin/$tool"
  done
  program ls 'exit 0' # the package lists are there
  program id 'echo 1000'
  ONLY="$T/bin"
}

teardown() { rm -rf "$T"; }

# Puts a shell program of that name first (and alone) in PATH.
program() {
  rm -f "$T/bin/$1"
  printf '#!/bin/sh\n%s\n' "$2" >"$T/bin/$1"
  chmod +x "$T/bin/$1"
}
good_python() { program "$1" "ASKED_AS=$1; export ASKED_AS; exec '$REAL' \"\$@\""; }
TOO_NEW='Python 3.15 is not supported: the packages exist for 3.11 to 3.14.'
new_python() { program "$1" "while read -r _; do :; done; echo '$TOO_NEW'; exit 2"; }
old_python() { program "$1" 'if [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi'; }
# A Python of Debian without its venv package, or one with another lack.
incomplete_python() {
  program "$1" "case \"\$*\" in *posix*) echo ${2:-ensurepip} ;; *'%d.%d'*) echo 3.12 ;; *) exec '$REAL' \"\$@\" ;; esac"
}
launch() { run env PATH="$ONLY" "$ROOT/launch_wsl.sh"; }

@test "hands arguments, stdin and the exit code over, isolated" {
  good_python python3
  run env PATH="$ONLY" "$ROOT/launch_wsl.sh" seven "a b" '' '*' <<<"typed words"
  [ "$status" -eq 7 ]
  [[ "$output" == *"launcher in $ROOT"* ]]
  [[ "$output" == *"isolated 1 arguments ['seven', 'a b', '', '*']"* ]]
  [[ "$output" == *"stdin typed words"* ]]
}

@test "prefers a named Python that is new enough over an old python3" {
  old_python python3
  good_python python3.12
  launch
  [ "$status" -eq 0 ]
  [[ "$output" == *"asked as python3.12"* ]]
}

@test "passes over a Python without venv if another is complete" {
  incomplete_python python3.13
  good_python python3
  launch
  [[ "$output" == *"asked as python3"* ]]
}

@test "passes over a Python that is too new, and names it" {
  new_python python3
  good_python python3.14
  launch
  [ "$status" -eq 0 ]
  [[ "$output" == *"touchstone: $TOO_NEW Using python3.14 instead."* ]]
  [[ "$output" == *"asked as python3.14"* ]]
}

@test "too new alone: another package, or uv" {
  new_python python3
  program apt-get 'exit 0'
  program apt-cache '[ "$2" = python3.13 ]'
  launch
  [ "$status" -eq 1 ]
  [[ "$output" == *"touchstone: $TOO_NEW Install another one with:"* ]]
  [[ "$output" == *"    sudo apt-get install -y python3.13 python3.13-venv"* ]]
  program apt-cache 'exit 1'
  launch
  [[ "$output" == *"    uv (https://docs.astral.sh/uv), then: uv python install 3.13"* ]]
}

@test "asks uv last" {
  good_python hidden
  program uv "[ \"\$1 \$2\" = 'python find' ] && echo '$T/bin/hidden'"
  launch
  [ "$status" -eq 0 ]
  [[ "$output" == *"asked as hidden"* ]]
}

@test "the package lists were never fetched: the one command fetches them" {
  program apt-get 'exit 0'
  program ls 'exit 2'
  launch
  [[ "$output" == *"    sudo apt-get update && sudo apt-get install -y python3 python3-venv"* ]]
}

@test "venv missing beside an old python3: the package of that very version" {
  program apt-get 'exit 0'
  old_python python3
  incomplete_python python3.12
  launch
  [[ "$output" == *"    sudo apt-get install -y python3.12-venv"* ]]
}

@test "too old on Debian: the newest that the release carries beside it" {
  program apt-get 'exit 0'
  program apt-cache '[ "$2" = python3.11 ]'
  old_python python3
  launch
  [[ "$output" == *"Python 3.9.2 is too old"* ]]
  [[ "$output" == *"    sudo apt-get install -y python3.11 python3.11-venv"* ]]
}

@test "a Python without a module that is needed, of 32 bits, or of Windows: passed over, or named with what it lacks" {
  for lack in ssl 32-bit $'windows\r'; do
    incomplete_python python3.13 "'$lack'"
    good_python python3
    launch
    [[ "$output" == *"asked as python3"* ]]
    rm "$T/bin/python3"
    launch
    [ "$status" -eq 1 ]
    case $lack in
      ssl) [[ "$output" == *"was built without the module ssl. Install a complete one with:"* ]] ;;
      32-bit) [[ "$output" == *"is a 32-bit program"* ]] ;;
      *) [[ "$output" == *"is a Windows program ($T/bin/python3.13); WSL requires a Linux one"* ]] ;;
    esac
  done
}

@test "from another folder, by a chain of links, absolute and relative" {
  good_python python3
  ln -s "$ROOT/launch_wsl.sh" "$T/elsewhere/absolute"
  ln -s absolute "$T/elsewhere/relative"
  cd "$T/elsewhere"
  run env PATH="$ONLY" ./relative
  [ "$status" -eq 0 ]
  [[ "$output" == *"launcher in $ROOT"* ]]
  CDPATH="$T" run env PATH="$ONLY" bash "../a földer with blanks/launch_wsl.sh"
  [ "$status" -eq 0 ]
  [[ "$output" == *"launcher in $ROOT"* ]]
}

@test "a copy with CRLF endings works however it is started" {
  good_python python3
  sed 's/$/\r/' "$BATS_TEST_DIRNAME/../../launch_wsl.sh" >"$ROOT/launch_wsl.sh"
  grep -q $'\r' "$ROOT/launch_wsl.sh"
  for starter in env bash sh; do
    run env PATH="$ONLY" "$starter" "$ROOT/launch_wsl.sh" seven "a b" <<<"typed words"
    [ "$status" -eq 7 ]
    [[ "$output" == *"launcher in $ROOT"* ]]
    [[ "$output" == *"arguments ['seven', 'a b']"* ]]
    [[ "$output" == *"stdin typed words"* ]]
  done
}
