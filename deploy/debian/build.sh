#!/usr/bin/env bash
# Makes a Debian package of a built portcullis; docs/installing.md.
#
#   deploy/debian/build.sh [PROGRAM] [DIRECTORY]
#
# PROGRAM is target/release/portcullis by default, DIRECTORY, for the package, target/debian. Needs
# dpkg-deb and gzip. The program's own output becomes the completions and the manual pages, so it
# must run on this machine. Files belong to root without root's rights, and have the time
# SOURCE_DATE_EPOCH (by default that of the last commit): the same program gives the same package.
set -euo pipefail
cd "$(dirname "$0")/../.."

program=$(realpath "${1:-target/release/portcullis}")
directory=${2:-target/debian}
version=$("$program" --version | cut -d' ' -f2)
architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

mkdir -p "$directory"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -D -m 755 "$program" "$root/usr/bin/portcullis"
"$program" setup --prefix "$root/usr" >/dev/null
# Debian's zsh reads completions of packages here.
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_portcullis" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
gzip -9n "$root"/usr/share/man/man1/*.1

install -D -m 644 deploy/portcullis.service "$root/usr/lib/systemd/system/portcullis.service"
sed -i 's|/usr/local/bin/|/usr/bin/|; /^#   useradd/d; /^#   install -m 0755/d' \
    "$root/usr/lib/systemd/system/portcullis.service"
install -D -m 644 deploy/debian/portcullis.sysusers "$root/usr/lib/sysusers.d/portcullis.conf"

doc=$root/usr/share/doc/portcullis
install -d "$doc"
cp -r docs/. "$doc/"
for file in README.md SECURITY.md ARCHITECTURE.md CHANGELOG.md; do
    sed 's|(docs/|(|g' "$file" > "$doc/$file"
done
install -m 644 deploy/debian/copyright "$doc/copyright"
gzip -9n "$doc/CHANGELOG.md"

# umask may have been any.
find "$root" -type d -exec chmod 755 {} +
find "$root" -type f -not -path "$root/usr/bin/*" -exec chmod 644 {} +
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

# The oldest C library that has what the program uses.
libc=$({ grep -aoE 'GLIBC_2\.[0-9]+' "$program" || true; } | sed 's/GLIBC_//' | sort -uV | tail -1)
size=$(du -sk --apparent-size "$root" | cut -f1)
install -d -m 755 "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<CONTROL
Package: portcullis
Version: $version
Architecture: $architecture
Maintainer: Portcullis developers <portcullis@localhost>
Installed-Size: $size
Depends: ${libc:+libc6 (>= $libc), libgcc-s1}
Recommends: git
Suggests: libnotify-bin, man-db
Section: utils
Priority: optional
Description: filesystem gateway for untrusted AI agents
 Portcullis starts an AI agent in a sandbox that reaches neither a directory nor the
 network, and serves both itself. Every operation is decided by a policy, backed up and
 recorded in a tamper-evident log.
CONTROL
# A static program needs no library.
sed -i '/^Depends: $/d' "$root/DEBIAN/control"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
touch -d "@$SOURCE_DATE_EPOCH" "$root/DEBIAN" "$root/DEBIAN/"*

package=$directory/portcullis_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
