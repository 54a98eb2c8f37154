#!/usr/bin/env bash
# Sets up what the tests need on a fresh Debian or Ubuntu machine, then checks
# format, lints and dependencies, builds, and runs every test.
#
#   tests/run.sh            everything
#   tests/run.sh full       everything, with more real agents (1.8 GB), each crate by itself and the
#                           book, and the tests that try random cases try a hundred times as many,
#                           of another seed each time: a few hours
#   tests/run.sh setup      only what the tests need
#   tests/run.sh check      format, lints, dependencies
#   tests/run.sh test       the tests
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO_DENY_VERSION=0.20.2
FSX_VERSION=0.3.2
PJDFSTEST_VERSION=0.2.2
MDBOOK_VERSION=0.5.4
PEERS=tests/peers
AGENTS=$PEERS/agents
what=${1:-all}

# What is built here once is not built again a little changed: half the space of
# the disk, and some of the time.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

say() { printf '\n== %s\n' "$*"; }

die() {
    printf 'tests/run.sh: %s\n' "$*" >&2
    exit 1
}

# Debian packages, where this is Debian and we may install them.
debian() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || die "please install: $*"
    say "installing $*"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

packages() {
    local missing=() pair tool package
    for pair in cc:gcc cc:libc6-dev setpriv:util-linux mount:mount unshare:util-linux \
        losetup:mount mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs patch:patch python3:python3 \
        podman:podman crun:crun dpkg-deb:dpkg strip:binutils man:man-db; do
        tool=${pair%%:*} package=${pair##*:}
        command -v "$tool" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] || debian "${missing[@]}"
}

# A Python that fast-agent runs on: 3.12 or newer.
python() {
    local candidate
    for candidate in \
        ${PORTCULLIS_TEST_PYTHON:-} \
        python3.14 python3.13 python3.12 python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3 \
        /usr/local/bin/python3 /opt/python*/bin/python3; do
        # A shim may be there without the Python behind it, so ask it.
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    die "the interop tests need Python 3.12 or newer with venv: install it (Debian 13: \
apt-get install python3-venv; older: pyenv install 3.12) or name one in PORTCULLIS_TEST_PYTHON"
}

# What the requirements.txt of a directory names, in a virtual environment there.
python_packages() {
    local home=$1 names=$2 stamp=$1/.venv/.requirements python
    cmp -s "$home/requirements.txt" "$stamp" && return 0
    python=$(python)
    say "installing $names with $python"
    rm -rf "$home/.venv"
    "$python" -m venv "$home/.venv"
    "$home/.venv/bin/python" -m pip install --quiet --no-deps -r "$home/requirements.txt"
    cp "$home/requirements.txt" "$stamp"
}

# A Node that the TypeScript SDK runs on, 20 or newer, with its npm.
node() {
    local candidate
    for candidate in \
        ${PORTCULLIS_TEST_NODE:-} node nodejs \
        "${NVM_DIR:-$HOME/.nvm}"/versions/node/v[2-9][0-9]*/bin/node \
        /usr/local/bin/node /opt/node*/bin/node; do
        candidate=$(type -P "$candidate") || continue
        if "$candidate" -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' \
            >/dev/null 2>&1 && npm "$candidate" --version >/dev/null 2>&1; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

# npm of that Node, whatever `node` is on the PATH.
npm() {
    PATH="$(dirname "$1"):$PATH" command npm "${@:2}"
}

# What the package-lock.json of a directory names, there, with options for npm. Not `ci`: that of npm 11
# refuses a lock file without the optional packages of other systems, which a registry may not list.
npm_packages() {
    local home=$1 names=$2 stamp=$1/node_modules/.lock
    cmp -s "$home/package-lock.json" "$stamp" && return 0
    say "installing $names with $PORTCULLIS_TEST_NODE"
    (cd "$home" && npm "$PORTCULLIS_TEST_NODE" install --no-save --silent --no-audit --no-fund "${@:3}")
    cp "$home/package-lock.json" "$stamp"
}

find_node() {
    local node
    if ! node=$(node); then
        # Where Debian's is too old or does not fit, the message below says more.
        (debian nodejs npm) || true
        node=$(node) || die "the interop tests need Node 20 or newer with npm: install it \
(https://nodejs.org/en/download) or name one in PORTCULLIS_TEST_NODE"
    fi
    export PORTCULLIS_TEST_NODE=$node
}

# Real agents and SDKs that the interop tests run, pinned with all that they need.
peers() {
    python_packages $PEERS fast-agent
    find_node
    npm_packages $PEERS "the TypeScript SDK, Node 20 and Node 24" --ignore-scripts
    # Its install script fetches the newer Node that it needs.
    npm_packages $PEERS/conformance "the MCP conformance scenarios"
    npm_packages $AGENTS "Claude Code and Gemini CLI" --ignore-scripts
}

# More of them, for `full` alone.
more_agents() {
    npm_packages $AGENTS/more "Codex, OpenCode and Qwen Code" --ignore-scripts
    python_packages $AGENTS/more "aider and curl_cffi"
}

# A program that crates.io has, of this version. Not optimized: that takes longer than they run.
tool() {
    grep -qs "\"$1 $2 " .tools/.crates.toml && return 0
    say "building $1 $2"
    cargo install --quiet --locked --debug --root .tools --target-dir .tools/target "$1@$2"
    rm -rf .tools/target
}

cargo_deny() {
    command -v cargo-deny >/dev/null 2>&1 && return 0
    tool cargo-deny "$CARGO_DENY_VERSION"
    export PATH="$PWD/.tools/bin:$PATH"
}

# Test suites for file systems, which run in the mount.
suites() {
    [ -z "${PORTCULLIS_TEST_TOOLS:-}" ] || return 0
    tool fsx "$FSX_VERSION"
    tool pjdfstest "$PJDFSTEST_VERSION"
}

setup() {
    packages
    command -v cargo >/dev/null 2>&1 || die "please install Rust 1.95 or newer: https://rustup.rs"
    peers
    suites
    cargo_deny
}

check() {
    say "format"
    cargo fmt --all --check
    say "lints"
    # The tests but one are of the full build.
    cargo clippy --workspace --lib --bins --test default_build --locked -- -D warnings
    cargo clippy --workspace --all-targets --features full --locked -- -D warnings
    say "the verifier by itself"
    cargo check -p portcullis-audit --locked
    say "dependencies"
    cargo_deny
    cargo deny --log-level error check licenses bans sources
}

# Each crate has features of its dependencies of its own, so this takes minutes.
crates_alone() {
    local crate
    say "each other crate by itself"
    for crate in policy core git search rpc fuse sandbox policy-tools review mount commands \
        egress mcp acp serve; do
        cargo check -p "portcullis-$crate" --locked
    done
}

tests() {
    peers
    suites
    say "tests"
    export PORTCULLIS_TEST_PEERS="$PWD/$PEERS/.venv"
    # Many tests wait for processes and for the disk most of their time.
    cargo test --workspace --features full --locked -- --skip timing:: \
        --test-threads $(($(nproc) + 1))
    # With the whole workspace each time: what a part of it takes of its dependencies' features
    # would build these again.
    say "the tests that compare times, with nothing beside them"
    cargo test --workspace --features full --locked --test integration -- --test-threads 1 timing::
    say "the default build says what it cannot do"
    cargo test --workspace --locked --test default_build
}

# The documents as HTML. What mdBook warns of is an error.
book() {
    tool mdbook "$MDBOOK_VERSION"
    say "the book"
    local messages
    messages=$(.tools/bin/mdbook build 2>&1)
    printf '%s\n' "$messages"
    ! grep -E 'WARN|ERROR' <<<"$messages"
}

# The tests that try random cases, with more of them. A disagreement names its seed.
campaigns() {
    peers
    more_agents
    suites
    say "more agents, connections and records"
    cargo test --workspace --features full --locked --test integration -- --ignored \
        sandbox::mount::agents egress::attacks egress::clients log_defects
    export PORTCULLIS_TEST_BUDGET=${PORTCULLIS_TEST_BUDGET:-100}
    export PORTCULLIS_TEST_SEED=${PORTCULLIS_TEST_SEED:-$(date +%s)}
    say "long campaigns: $PORTCULLIS_TEST_BUDGET times the cases, PORTCULLIS_TEST_SEED=$PORTCULLIS_TEST_SEED"
    cargo test --workspace --features full --locked --test integration -- differential:: \
        sandbox::mount::kills many_gateways:: model:: races:: crash:: faults::peers::signals
    cargo test --workspace --features full --locked --test integration -- --test-threads 1 timing::
    cargo test --workspace --features full --locked --test mount -- model:: races:: suites::
    cargo test --workspace --features full --locked --lib -- campaign::
}

case $what in
    full)
        setup
        check
        crates_alone
        tests
        book
        campaigns
        ;;
    all)
        # No `&&`: it would switch `set -e` off inside the functions.
        setup
        check
        tests
        ;;
    setup) setup ;;
    check) check ;;
    test) tests ;;
    *) die "usage: tests/run.sh [full|setup|check|test]" ;;
esac
