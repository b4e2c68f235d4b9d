# Sourced by the scripts of this folder: a virtual environment with what pyproject.toml names, from PyPI.
# POSIX sh. The environment is .venv in the checkout, or $HALGPU_VENV; it is made once and kept up to date.

set -eu
ROOT=$(cd "$(dirname "$0")/.." && pwd)
VENV=${HALGPU_VENV:-$ROOT/.venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

say() { printf '\n== %s\n' "$*"; }

# Runs a command with its output in a log; prints its latest line now and then, and the log if it fails.
with_progress() {
    log=$VENV/install.log
    started=$(date +%s)
    "$@" >"$log" 2>&1 &
    job=$!
    shown=
    while kill -0 "$job" 2>/dev/null; do
        sleep 1
        line=$(grep -E '^ *(Collecting|Downloading|Using cached|Building|Installing|Get:|Setting up)' "$log" \
            2>/dev/null | tail -n 1 | cut -c 1-90 || true)
        if [ -n "$line" ] && [ "$line" != "$shown" ]; then
            shown=$line
            printf '   %3ds  %s\n' $(($(date +%s) - started)) "$line"
        fi
    done
    wait "$job" || {
        cat "$log" >&2
        die "failed: $*"
    }
    printf '   %3ds  done\n' $(($(date +%s) - started))
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer is needed and was not found; set PYTHON to its path"
}

# Debian and Ubuntu ship venv's pip in a package of its own.
make_venv() {
    python=$(find_python)
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
            die "$python cannot make virtual environments; install $package (apt-get install $package) and retry"
        mkdir -p "$VENV"
        say "Installing $package"
        with_progress sh -c "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y $package"
    fi
    "$python" -m venv --clear "$VENV"
}

# install EXTRAS: halgpu from this checkout with the named extras. The checkout is installed anew each time; its
# dependencies only when pyproject.toml or the extras changed.
install() {
    wanted="$1 $(cksum <"$ROOT/pyproject.toml")"
    if [ ! -x "$VENV/bin/python" ] || ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        say "Creating the virtual environment $VENV"
        make_venv
    fi
    # setuptools packs whatever an earlier build left there.
    rm -rf "$ROOT/build" "$ROOT/halgpu.egg-info"
    if [ "$(cat "$VENV/installed-$1" 2>/dev/null)" = "$wanted" ]; then
        say "Installing halgpu from $ROOT"
        with_progress "$VENV/bin/python" -m pip install --no-deps --force-reinstall "$ROOT"
    else
        say "Installing halgpu from $ROOT with $1 (first time: some 200 MB from PyPI)"
        with_progress "$VENV/bin/python" -m pip install --progress-bar off --upgrade "$ROOT[$1]"
        printf '%s\n' "$wanted" >"$VENV/installed-$1"
    fi
    rm -rf "$ROOT/build" "$ROOT/halgpu.egg-info"
    PATH=$VENV/bin:$PATH
    export PATH
}
