#!/usr/bin/env bash
# Builds the image and runs it: a token is made, strangers are refused, a text is generated, the end is clean.
# By hand, as root on Linux, with buildah, podman and runc installed; docs/testing.md says more.
#   RUNTIME      base (the CPU, the default), cuda, rocm …    CHIP       the chip that rocm is made for
#   BASE_IMAGE   the base (default: the Dockerfile's)       MODEL      a GGUF file to generate with; else it is fetched
#   PIP_CONF     a pip.conf for the build, if one is needed CA_FILE    issuers for the build, if a proxy signs anew
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

image=localhost/touchstone:by-hand name=touchstone-by-hand port=${PORT:-18800}
data=$(mktemp -d)
run_podman() { podman --cgroup-manager cgroupfs --runtime runc "$@"; }
finish() {
  run_podman rm --force --time 1 "$name" >/dev/null 2>&1 || true
  rm -rf -- "$data"
}
trap finish EXIT
said() { awk -v now="$EPOCHREALTIME" -v began="$began" -v what="$1" 'BEGIN { printf "%6.1f s  %s\n", now - began, what }'; }
began=$EPOCHREALTIME

build=(buildah bud --isolation chroot --format docker --layers --tag "$image")
[ -z "${BASE_IMAGE:-}" ] || build+=(--pull-never --build-arg "BASE_IMAGE=$BASE_IMAGE")
[ -z "${RUNTIME:-}" ] || build+=(--build-arg "RUNTIME=$RUNTIME" --build-arg "CHIP=${CHIP:-}")
[ -z "${PIP_CONF:-}" ] || build+=(--volume "$(realpath "$PIP_CONF"):/etc/pip.conf:ro")
[ -z "${CA_FILE:-}" ] || build+=(--volume "$(realpath "$CA_FILE"):/etc/ssl/certs/ca-certificates.crt:ro")
"${build[@]}" . >"$data/build.log" 2>&1 || {
  tail -20 "$data/build.log"
  exit 1
}
size=$(podman image inspect --format '{{.Size}}' "$image")
said "built, $((size / 1000000)) MB"
[ -n "${RUNTIME:-}" ] || [ "$size" -le 600000000 ] || {
  echo "the image of the CPU is larger than 600 MB"
  exit 1
}
inspected=$(buildah inspect --type image --format \
  '{{.Docker.Config.User}} {{.Docker.Config.StopSignal}} {{.Docker.Config.Healthcheck.Test}}' "$image")
[[ $inspected == "10001:10001 SIGTERM [CMD python -c "* ]] || {
  echo "unexpected: $inspected"
  exit 1
}

mkdir -p "$data/volume/models"
[ -z "${MODEL:-}" ] || cp -- "$MODEL" "$data/volume/models/SmolLM2-135M-Instruct.Q4_1.gguf"
chown -R 10001:10001 "$data/volume"
# --no-healthcheck: podman's timer needs systemd; the check itself is run below.
run_podman run --detach --name "$name" --pull never --no-healthcheck --network host --read-only --tmpfs /tmp \
  --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --cap-drop ALL --env "TOUCHSTONE_PORT=$port" \
  --volume "$data/volume:/data" "$image" >/dev/null
until podman logs "$name" 2>/dev/null | grep --quiet '#token='; do sleep 0.1; done
said "$(podman logs "$name" 2>/dev/null | sed -n 's/#token=.*/#token=…/; s/^Open/listens; open/p')"

[ "$(stat --format %a "$data/volume/token")" = 600 ] || {
  echo "the token's file is open to others"
  exit 1
}
token=$(cat "$data/volume/token") url=http://127.0.0.1:$port
ask() { curl --silent --show-error --noproxy '*' "$@"; }
[ "$(ask --output "$data/refused" --write-out '%{http_code}' "$url/api/models")" = 401 ] || {
  echo "a stranger got in"
  exit 1
}
[ "$(run_podman exec "$name" id -u)" = 10001 ] || {
  echo "runs as somebody else"
  exit 1
}
mapfile -t check < <(buildah inspect --type image --format '{{range .Docker.Config.Healthcheck.Test}}{{println .}}{{end}}' "$image" | sed '/^$/d')
run_podman exec "$name" "${check[@]:1}" || {
  echo "the health check fails"
  exit 1
}
said "a stranger is refused, the health check passes"

[ -n "${MODEL:-}" ] || run_podman exec "$name" python -m backend models fetch-default
ask --fail-with-body --header "Authorization: Bearer $token" --json '{"prompt": "Write a greeting.", "options": {"max_tokens": 16}}' \
  "$url/api/generate" >"$data/job.json" || {
  cat "$data/job.json"
  exit 1
}
grep --quiet '"used": *"cpu"' "$data/job.json" || {
  cat "$data/job.json"
  exit 1
}
said "a text was generated on the CPU"

run_podman stop --time 10 "$name" >/dev/null
[ "$(podman inspect --format '{{.State.ExitCode}}' "$name")" = 0 ] || {
  echo "the end was not clean"
  exit 1
}
said "stopped with exit code 0"
