#!/bin/sh
# Run the tests with each supported Python that is found, each in an environment of its own.
# Called by `make test-all`, which sets MAKE; EXCEPT names versions to leave out, USUAL the one whose
# environment is .venv. GATES=yes runs the other gates beside the tests, in that environment. make itself hands
# ARGS on to the make that is started here.
set -u

VERSIONS="3.11 3.12 3.13"
ADAPTERS=tests/integration/test_adapters.py

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

# The programs of the documentation and the examples, the benchmarks' own tests, the type checker's, what the
# core and the guard make of old SDKs, and what is asked of the source and of settings are the same with every
# interpreter, and take long: where there is a usual one, it alone runs them, and the tests that are marked so.
left_out() {
    if [ -n "${USUAL:-}" ] && [ "$1" != "$USUAL" ]; then
        for path in test_readme.py test_tidy.py typing integration/test_demo.py \
            integration/test_mesh_demo.py integration/test_examples.py integration/test_pytest_plugin_settings.py \
            integration/test_guard_packages.py integration/test_claude_stream.py; do
            printf '%s ' "--ignore=tests/$path"
        done
        # trio and uvloop: with the oldest Python and with the newest. asyncio is a part of each.
        [ "$1" != 3.12 ] || printf '%s ' "-k 'not trio and not uvloop'"
        echo "--ignore-glob=tests/test_benchmarks* -m 'not usual and not every_version'"
    fi
}

# Where there is a usual one, the others need the newest SDKs alone.
make_it() {
    if [ -n "${USUAL:-}" ] && [ "$version" != "$USUAL" ]; then
        set -- TESTED='$(NEWEST)' "$@"
    fi
    "$MAKE" --no-print-directory PYTHON="$python" VENV="$(venv_of "$version")" "$@"
}

# made NAME TARGET ARGUMENTS: make something with the Python of $version, each line with the name in front.
made() {
    echo "FAILED" >"$outcomes/$1"
    {
        make_it "$2" ARGS="$3" 2>&1 && echo "passed" >"$outcomes/$1"
    } | sed "s/^/[$1] /" | tee "$printed/$1"
}

# What failed, again at the very end: many runs print side by side, and a log is often kept only in part.
failures() {
    failed=$(grep -l FAILED "$outcomes"/*) || return 0
    printf '%s\n' "$failed" | while IFS= read -r outcome; do
        log=$printed/${outcome##*/}
        echo "--- ${outcome##*/}"
        [ -f "$log" ] || continue
        grep -E '\] (E  |FAILED|ERROR|make:|.*error:)' "$log" | tail -n 60
        grep -qE '\] =+ .* in [0-9.]+s' "$log" || tail -n 60 "$log"
    done
}

# Tests of adapters and of programs wait a lot, for SDKs that hang and for processes: beside the others they cost
# little. Where all of them are run, each part is one of its own.
in_parts() {
    echo "--- $python"
    if [ "$version" = "${USUAL:-}" ] && [ "${GATES:-}" = yes ]; then
        make_it environment || return
        made gates gates "" &
    else
        make_it subjects || return
    fi
    less=$(left_out "$version")
    others="--ignore=$ADAPTERS $less"
    if [ -n "$less" ]; then
        made "$version, programs" test "tests/integration $less" &
        others="--ignore=tests/integration $less"
    else
        made "$version, adapters" test "$ADAPTERS -k 'not test_cases'" &
        made "$version, cases" test "$ADAPTERS -k test_cases" &
        made "$version, programs" test "tests/integration tests/typing tests/test_*.py $others" &
        others="$others --ignore=tests/integration --ignore=tests/typing --ignore-glob=tests/test_*.py"
    fi
    made "$version" test "$others"
    wait
}

# They run side by side: a test uses one processor.
work=$(mktemp -d)
outcomes=$work/outcomes printed=$work/printed
mkdir "$outcomes" "$printed"
trap 'rm -rf "$work"' EXIT
ran=0
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
    if [ -n "${ARGS:-}" ]; then
        made "$version" test "$ARGS $(left_out "$version")" &
    else
        in_parts &
    fi
done
wait

failures
echo "make test-all:"
for outcome in "$outcomes"/*; do
    echo "  ${outcome##*/}: $(cat "$outcome")"
done
if [ "$ran" -eq 0 ] && [ -z "${EXCEPT:-}" ]; then
    echo "No Python of $VERSIONS was found." >&2
    exit 1
fi
! grep -q FAILED "$outcomes"/*
