#!/usr/bin/env bash
# Builds what a release consists of into target/release-VERSION; docs/installing.md.
#
#   deploy/release.sh
#
# Needs a clean checkout. A part whose tools are missing is named and left out: the static program
# needs the Rust target $MUSL and musl-gcc, the bill of materials cargo-cyclonedx.
set -euo pipefail
cd "$(dirname "$0")/.."

MUSL=$(uname -m)-unknown-linux-musl

say() { printf '\n== %s\n' "$*"; }

[ -z "$(git status --porcelain)" ] || { echo "release.sh: the checkout has changes" >&2; exit 1; }
PORTCULLIS_COMMIT=$(git rev-parse --short=12 HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export PORTCULLIS_COMMIT SOURCE_DATE_EPOCH
# Paths of this machine are no part of the program.
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"

say "building"
cargo build --release --locked --features full
version=$(target/release/portcullis --version | cut -d' ' -f2)
out=target/release-$version
rm -rf "$out"
mkdir -p "$out"
name=portcullis-$version-$(uname -m)
install -m 755 target/release/portcullis "$out/$name-linux-gnu"

say "Debian package"
deploy/debian/build.sh target/release/portcullis "$out"

# Untested: no machine of the project has had the target yet.
say "static program"
if rustc --print target-libdir --target "$MUSL" 2>/dev/null | xargs test -d && command -v musl-gcc >/dev/null; then
    cargo build --release --locked --features full --target "$MUSL"
    install -m 755 "target/$MUSL/release/portcullis" "$out/$name-linux-musl"
else
    echo "left out: rustup target add $MUSL, and install musl-tools"
fi

say "bill of materials"
if cargo cyclonedx --version >/dev/null 2>&1; then
    cargo cyclonedx --format json --spec-version 1.5 --features full --target "$(uname -m)-unknown-linux-gnu" \
        --manifest-path Cargo.toml --override-filename "$name.cdx"
    mv "$name.cdx.json" "$out/"
    # One is written for each package of the workspace.
    find . -path ./target -prune -o -name "$name.cdx.json" -exec rm {} +
else
    echo "left out: cargo install cargo-cyclonedx --locked"
fi

(cd "$out" && sha256sum -- * > SHA256SUMS)
say "$out"
cat "$out/SHA256SUMS"
