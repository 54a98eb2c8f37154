//! The Debian package: made of this build, installed into a fresh root, tried there and removed.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::common::copy_program;

/// Runs a program; panics unless it succeeds. Returns its output.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stdout}{stderr}");
    stdout
}

/// Runs a program as root, who is the user itself in a namespace of its own.
#[track_caller]
fn run_as_root(program: &str, args: &[&str]) -> String {
    if rustix::process::getuid().is_root() {
        return run(program, args);
    }
    run("unshare", &[&["--map-root-user", program], args].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes the package of this build, without the symbols that a debug build has.
fn package(directory: &Path) -> PathBuf {
    let program = directory.join("portcullis");
    run("strip", &["-o", text(&program), env!("CARGO_BIN_EXE_portcullis")]);
    package_of(&program, directory)
}

fn package_of(program: &Path, directory: &Path) -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/debian/build.sh");
    run(script, &[text(program), text(directory)]);
    let packages = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_package = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "deb");
    packages.into_iter().find(is_package).unwrap()
}

/// Makes a root directory with nothing but dpkg's empty database.
fn fresh_root(base: &Path) -> PathBuf {
    let root = base.join("root");
    std::fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    std::fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    root
}

/// Copies the libraries of a program, as `ldd` lists them.
fn copy_libraries(program: &Path, root: &Path) {
    for word in run("ldd", &[text(program)]).split_whitespace().filter(|word| word.starts_with('/'))
    {
        let to = root.join(word.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(word, to).unwrap();
    }
}

#[test]
fn the_debian_package_installs_into_a_fresh_root_and_leaves_it_again() {
    let base = tempfile::tempdir().unwrap();
    let package = package(base.path());
    let field = |name: &str| run("dpkg-deb", &["--field", text(&package), name]);
    assert_eq!(field("Package"), "portcullis\n");
    assert_eq!(field("Version"), format!("{}\n", env!("CARGO_PKG_VERSION")));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));
    for line in run("dpkg-deb", &["--contents", text(&package)]).lines() {
        assert!(line.contains(" root/root "), "{line}");
        let is_open = line.get(5..6) == Some("w") || line.get(8..9) == Some("w");
        assert!(!is_open || line.starts_with('l'), "{line}");
    }

    let root = fresh_root(base.path());
    let option = format!("--root={}", text(&root));
    run_as_root("dpkg", &[&option, "--force-depends", "--install", text(&package)]);
    // What is installed is what the package lists.
    assert_eq!(run_as_root("dpkg", &[&option, "--verify", "portcullis"]), "");
    for file in [
        "usr/share/man/man1/portcullis.1.gz",
        "usr/share/man/man1/portcullis-audit-verify.1.gz",
        "usr/share/bash-completion/completions/portcullis",
        "usr/share/fish/vendor_completions.d/portcullis.fish",
        "usr/share/zsh/vendor-completions/_portcullis",
        "usr/share/doc/portcullis/copyright",
        "usr/share/doc/portcullis/serve.md",
        "usr/share/doc/portcullis/security/limits.md",
        "usr/lib/sysusers.d/portcullis.conf",
    ] {
        let facts = std::fs::metadata(root.join(file)).unwrap_or_else(|_| panic!("{file}"));
        assert_eq!(facts.permissions().mode() & 0o777, 0o644, "{file}");
    }
    let unit = root.join("usr/lib/systemd/system/portcullis.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/portcullis serve "), "{unit}");
    assert!(!unit.contains("useradd") && !unit.contains("/usr/local"), "{unit}");

    let program = root.join("usr/bin/portcullis");
    copy_libraries(&program, &root);
    let version = run_as_root("chroot", &[text(&root), "/usr/bin/portcullis", "--version"]);
    assert!(version.starts_with(concat!("portcullis ", env!("CARGO_PKG_VERSION"))), "{version}");
    let presets = run_as_root("chroot", &[text(&root), "/usr/bin/portcullis", "agents", "--json"]);
    assert!(presets.contains("claude-code"), "{presets}");

    run_as_root("dpkg", &[&option, "--remove", "portcullis"]);
    assert!(!program.exists() && !root.join("usr/share/man").exists());
}

#[test]
fn the_same_program_gives_the_same_package() {
    let hash = || {
        let base = tempfile::tempdir().unwrap();
        let sum = run("sha256sum", &[text(&package(base.path()))]);
        sum.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(hash(), hash());
}

/// The search for the C library's version ended the script.
#[test]
fn a_program_without_a_c_library_is_packaged_without_dependencies() {
    let base = tempfile::tempdir().unwrap();
    let (source, program) = (base.path().join("source"), base.path().join("portcullis"));
    let script = concat!("#!/bin/sh\nexec ", env!("CARGO_BIN_EXE_portcullis"), " \"$@\"\n");
    std::fs::write(&source, script).unwrap();
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(text(&source), &program);
    let package = package_of(&program, base.path());
    assert_eq!(run("dpkg-deb", &["--field", text(&package), "Depends"]).trim(), "");
}
