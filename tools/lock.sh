#!/bin/sh
# Pin what pyproject.toml and requirements/subjects/*.in ask for, for every supported Python on
# Linux and macOS. Called by `make lock`, which sets UV; with arguments (`make lock ARGS=...`), only
# the subjects that they name. Only the standard index is used, whatever this machine is configured
# for, so that the files are the same wherever they are made.
set -eu

# compile OUTPUT ARGUMENTS...: the versions in OUTPUT, if it is there, are kept where they fit.
compile() {
    output=$1
    shift
    env -u UV_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_DEFAULT_INDEX -u UV_FIND_LINKS \
        UV_CUSTOM_COMPILE_COMMAND="make lock" \
        "$UV" pip compile --quiet --no-config --universal --python-version 3.11 \
        --generate-hashes --output-file "$output" "$@"
    # A machine's own index must not get into a file that others install from.
    if grep -nE '^(-i|--index-url|--extra-index-url|--find-links|--trusted-host)|://|file:' "$output"; then
        echo "tools/lock.sh: $output names an index or a file; not kept" >&2
        rm -f "$output"
        exit 1
    fi
}

tell() {
    echo "$1: $(grep -c '^[^ #].*==' "$1") packages"
}

# group NAME ARGUMENTS...: pin one dependency group of pyproject.toml.
group() {
    output=requirements/$1.lock
    # The old pins would otherwise be kept: a fresh file asks for the newest versions.
    rm -f "$output"
    compile "$output" --group "$@" pyproject.toml
    tell "$output"
}

# shared NAME-VERSION: the locks of the subjects that a subject stands on, by the lines
# `# shares: OTHER` in its .in (see tests/integration/subjects.py).
shared() {
    for other in $(sed -n 's/^# shares: //p' "requirements/subjects/$1.in"); do
        printf '%s ' "requirements/subjects/$other.lock"
        shared "$other"
    done
}

# subject NAME-VERSION: pin what a test subject needs on top of the tests' own packages.
subject() {
    output=requirements/subjects/$1.lock
    have="requirements/test.lock $(shared "$1")"
    # Kept where they fit are the versions that are there: then the subject shares those packages ...
    cat $have > "$output"
    # Of a subject that is a program, the packages that it would need are not used.
    alone=$(sed -n 's/^# program$/--no-deps/p' "requirements/subjects/$1.in")
    compile "$output" --emit-build-options $alone "requirements/subjects/$1.in"
    # ... and they need not be installed again: only the lines that the others do not have stay.
    awk -v own="$output" 'FILENAME != own { if (/^[^ #-]/) have[$0]; next }
        /^[^ ]/ { shared = ($0 in have) }
        !shared' $have "$output" > "$output.new"
    mv "$output.new" "$output"
    tell "$output"
}

if [ $# -eq 0 ]; then
    group dev
    # The same versions in all of them.
    group test --constraint requirements/dev.lock
    group run --constraint requirements/dev.lock
    group demo --constraint requirements/dev.lock
    # Those that others stand on come first: by the number of those that each stands on.
    set -- $(cd requirements/subjects && ls ./*.in | sed 's,^\./,,; s,\.in$,,' | while read -r name; do
        echo "$(cd ../.. && shared "$name" | wc -w) $name"
    done | sort -n | cut -d' ' -f2)
fi
for name; do
    subject "$name"
done
