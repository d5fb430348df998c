#!/bin/sh
# Run the tests with each supported Python that is found, each in an environment of its own.
# Called by `make test-all`, which sets MAKE; EXCEPT names versions to leave out, USUAL the one whose
# environment is .venv, which runs `make test`, and with FULL=yes `make test-full`; the others leave out
# what is the same with each of them. GATES=yes runs the other gates as well, with the usual one. make
# itself hands ARGS on to the make that is started here.
set -u

VERSIONS="3.11 3.12 3.13 3.14"

# A name on the path may be a shim that does not run, and a Python may lack venv or pip: only one
# that has been seen to work counts.
works() {
    [ "$("$1" -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]
}

candidates() {
    printf '%s\n' "${PYTHON:-python3}" "python$1"
    (
        IFS=:
        for directory in $PATH; do
            printf '%s\n' "$directory/python$1"
        done
    )
    root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || true)}
    [ -z "$root" ] || printf '%s\n' "$root/versions/$1".*/bin/python
}

find_python() {
    candidates "$1" | while IFS= read -r candidate; do
        if works "$candidate" "$1"; then
            printf '%s\n' "$candidate"
            break
        fi
    done
}

venv_of() {
    if [ "$1" = "${USUAL:-}" ]; then
        echo .venv
    else
        echo ".venv-$1"
    fi
}

# Where there is a usual one, the others need the newest SDKs alone.
make_it() {
    "$MAKE" --no-print-directory PYTHON="$python" VENV="$(venv_of "$version")" "$@"
}

# made NAME TARGET ARGUMENTS: make something with the Python of $version, each line with the name in front.
made() {
    echo "FAILED" >"$outcomes/$1"
    {
        make_it $2 ARGS="$3" 2>&1 && echo "passed" >"$outcomes/$1"
    } | sed "s/^/[$1] /" | tee "$printed/$1"
}

# What failed, again at the very end: many runs print side by side, and a log is often kept only in part.
details() {
    failed=$(grep -l FAILED "$outcomes"/*) || return 0
    printf '%s\n' "$failed" | while IFS= read -r outcome; do
        log=$printed/${outcome##*/}
        echo "--- ${outcome##*/}"
        [ -f "$log" ] || continue
        grep -E '\] (E  |make:|.*error:)' "$log" | tail -n 60
        grep -qE '\] =* ?.* in [0-9.]+s' "$log" || tail -n 60 "$log"
    done
}

names() {
    cat "$printed"/* 2>/dev/null | grep -E '^\[[^]]*\] \[[^]]*\] (FAILED|ERROR) ' | sort -u
}

# The usual one: all there is, one after the other, each with all processors.
in_full() {
    echo "--- $python"
    if [ "${GATES:-}" = yes ]; then
        make_it environment || return
        made gates gates ""
    fi
    made "$version, test" test "${ARGS:-}"
    [ "${FULL:-}" != yes ] || made "$version, test-full" test-full "${ARGS:-}"
    echo "passed" >"$outcomes/$version"
}

work=$(mktemp -d)
outcomes=$work/outcomes printed=$work/printed
mkdir "$outcomes" "$printed"
trap 'rm -rf "$work"' EXIT
ran=0 others=""
case " $VERSIONS " in
*" ${USUAL:-} "*) ;;
*)
    if [ "${GATES:-}" = yes ]; then # of a Python that the tests are not run with
        version=${USUAL:-} python=${PYTHON:-python3}
        made gates gates "" &
    fi
    ;;
esac
for version in $VERSIONS; do
    outcome=$outcomes/$version
    case " ${EXCEPT:-} " in
    *" $version "*)
        echo "left out" >"$outcome"
        continue
        ;;
    esac
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "not found" >"$outcome"
        continue
    fi
    ran=$((ran + 1))
    echo "FAILED" >"$outcome"
    case "$version" in
    "${USUAL:-}") in_full & ;;
    *) others="$others $version" ;;
    esac
done
# Beside it the others, one after the other, each with one processor.
for version in $others; do
    python=$(find_python "$version")
    echo "--- $python"
    if [ -n "${USUAL:-}" ]; then
        # trio and uvloop: with the oldest Python and with the newest. asyncio is a part of each.
        only=""
        [ "$version" != 3.12 ] || only=" -k 'not trio and not uvloop'"
        made "$version" "test-light JOBS=1" "${ARGS:-}$only"
    else
        made "$version" test "${ARGS:-}"
    fi
done
wait

details
echo "make test-all:"
for outcome in "$outcomes"/*; do
    echo "  ${outcome##*/}: $(cat "$outcome")"
done
names
if [ "$ran" -eq 0 ] && [ -z "${EXCEPT:-}" ]; then
    echo "No Python of $VERSIONS was found." >&2
    exit 1
fi
! grep -q FAILED "$outcomes"/*
