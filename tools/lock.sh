#!/bin/sh
# Pin what pyproject.toml asks for, for every supported Python on Linux and macOS.
# Called by `make lock`, which sets UV. Only the standard index is used, whatever this machine is
# configured for, so that the files are the same wherever they are made.
set -eu

compile() {
    output=$1
    shift
    # The old pins would otherwise be kept: a fresh file asks for the newest versions.
    rm -f "$output"
    env -u UV_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_DEFAULT_INDEX -u UV_FIND_LINKS \
        UV_CUSTOM_COMPILE_COMMAND="make lock" \
        "$UV" pip compile --quiet --no-config --universal --python-version 3.11 \
        --generate-hashes --output-file "$output" "$@" pyproject.toml
    # A machine's own index must not get into a file that others install from.
    if grep -nE '^(-i|--index-url|--extra-index-url|--find-links|--trusted-host)|://|file:' "$output"; then
        echo "tools/lock.sh: $output names an index or a file; not kept" >&2
        rm -f "$output"
        exit 1
    fi
    echo "$output: $(grep -c '==' "$output") packages"
}

compile requirements/dev.lock --group dev
# The same versions in all three.
compile requirements/test.lock --group test --constraint requirements/dev.lock
compile requirements/run.lock --group run --constraint requirements/dev.lock
