use std::os::unix::fs::symlink;

use rustix::fs::{Mode, mkdir};

use super::*;
use crate::mounts;

fn trusted(role: Trusted, path: PathBuf) -> TrustedPath {
    TrustedPath { role, path }
}

fn agent(access: Access, path: PathBuf) -> AgentPath {
    AgentPath { access, path, target: None }
}

/// Directories that lie apart, each with a role.
fn good(base: &Path) -> TrustedPaths {
    for name in ["work", "work/inner", "state", "home", "tools", "cache", "bin"] {
        mkdir(base.join(name), Mode::RWXU).unwrap();
    }
    TrustedPaths {
        trusted: vec![
            trusted(Trusted::State, base.join("state/not/yet")),
            trusted(Trusted::Policy, base.join("policy.toml")),
            trusted(Trusted::Homes, base.join("homes")),
            trusted(Trusted::Program, base.join("bin/portcullis")),
        ],
        agents: vec![
            agent(Access::Workspace, base.join("work")),
            agent(Access::Home, base.join("homes/work/agent")),
            agent(Access::Read, base.join("tools")),
            agent(Access::Read, base.join("bin")),
            agent(Access::Write, base.join("cache")),
        ],
    }
}

fn with(good: &TrustedPaths, role: Trusted, path: PathBuf) -> TrustedPaths {
    let mut paths = good.clone();
    paths.trusted.push(trusted(role, path));
    paths
}

fn and(good: &TrustedPaths, access: Access, path: PathBuf) -> TrustedPaths {
    let mut paths = good.clone();
    paths.agents.push(agent(access, path));
    paths
}

#[track_caller]
fn overlaps(paths: &TrustedPaths) {
    let got = paths.check();
    assert!(matches!(got, Err(TrustError::Overlap { .. })), "{got:?} {paths:?}");
}

#[track_caller]
fn is_redirectable(paths: &TrustedPaths) {
    let got = paths.check();
    assert!(matches!(got, Err(TrustError::Redirectable { .. })), "{got:?} {paths:?}");
}

#[test]
fn paths_that_lie_apart_pass() {
    let tmp = tempfile::tempdir().unwrap();
    let base = mounts::existing(tmp.path()).unwrap();
    let good = good(&base);
    good.check().unwrap();
    and(&good, Access::Read, base.join("tools")).check().unwrap();
    and(&good, Access::Write, base.join("cache")).check().unwrap();
    and(&good, Access::Write, base.join("work/../tools")).check().unwrap();
    with(&good, Trusted::Signer, base.join("tools/sign")).check().unwrap();
}

#[test]
fn whatever_lies_in_what_an_agent_gets_is_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let base = mounts::existing(tmp.path()).unwrap();
    let good = good(&base);
    for role in [Trusted::Policy, Trusted::Configuration, Trusted::Program, Trusted::Homes] {
        for writable in ["work", "work/not/yet", "cache/x", "homes/work/agent/x", "cache"] {
            overlaps(&with(&good, role, base.join(writable)));
        }
    }
    overlaps(&with(&good, Trusted::CertificateKey, base.join("tools/key.pem")));
    overlaps(&with(&good, Trusted::State, base.clone()));
    // Another agent's credentials could be read in its home.
    overlaps(&and(&good, Access::Read, base.join("homes")));
    overlaps(&and(&good, Access::Read, base.join("homes/work/other")));
    for access in [Access::Read, Access::Write, Access::Home, Access::Workspace] {
        for path in ["/", "state", "work", "work/inner", "policy.toml"] {
            overlaps(&and(&good, access, base.join(path)));
        }
    }
    overlaps(&and(&good, Access::Write, base.join("bin")));
    overlaps(&and(&good, Access::Workspace, base.join("homes/other")));
    // Paths that the agent could replace by a link.
    for access in [Access::Read, Access::Write] {
        overlaps(&and(&good, access, base.join("cache/inner")));
        overlaps(&and(&good, access, base.join("homes/work/agent/inner")));
    }
}

/// Only the homes were refused: an agent rewrote the signer's program in its scratch directory.
#[test]
fn nothing_trusted_lies_in_scratch_or_homes_or_is_named_through_them() {
    let tmp = tempfile::tempdir().unwrap();
    let base = mounts::existing(tmp.path()).unwrap();
    let good = with(&good(&base), Trusted::Scratch, base.join("scratch"));
    good.check().unwrap();
    for name in ["scratch", "scratch/inner", "homes", "elsewhere"] {
        mkdir(base.join(name), Mode::RWXU).unwrap();
    }
    for role in [Trusted::Policy, Trusted::Signer, Trusted::Program, Trusted::Configuration] {
        overlaps(&with(&good, role, base.join("scratch/inner/file")));
        overlaps(&with(&good, role, base.join("homes/file")));
    }
    for location in ["scratch/inner", "homes"] {
        let link = base.join(location).join("link");
        symlink(base.join("elsewhere"), &link).unwrap();
        is_redirectable(&with(&good, Trusted::Policy, link.join("file")));
        is_redirectable(&and(&good, Access::Read, link));
    }
    good.check().unwrap();
}

/// Only the paths of this start's agents were looked at: an agent has the other name in its scratch
/// directory, or another agent in its home.
#[test]
#[expect(clippy::disallowed_methods, reason = "makes files of the operator")]
fn no_trusted_file_has_another_name_in_scratch_or_homes() {
    for (role, name) in [(Trusted::Scratch, "scratch"), (Trusted::Homes, "homes")] {
        let tmp = tempfile::tempdir().unwrap();
        let base = mounts::existing(tmp.path()).unwrap();
        std::fs::write(base.join("policy.toml"), "").unwrap();
        std::fs::hard_link(base.join("policy.toml"), base.join("other")).unwrap();
        let shared = trusted(role, base.join(name));
        let policy = trusted(Trusted::Policy, base.join("policy.toml"));
        let paths = TrustedPaths { trusted: vec![shared, policy], agents: Vec::new() };
        // No agent has been there.
        paths.check().unwrap();
        mkdir(base.join(name), Mode::RWXU).unwrap();
        let got = paths.check();
        assert!(matches!(got, Err(TrustError::HardLink { .. })), "{got:?}");
    }
}

#[test]
fn links_are_followed_and_must_lie_elsewhere() {
    let tmp = tempfile::tempdir().unwrap();
    let base = mounts::existing(tmp.path()).unwrap();
    let good = good(&base);
    for (says, name) in [
        ("work/inner", "into"),
        ("../tools", "work/link"),
        ("work/link", "by"),
        ("tools", "plain"),
        ("nowhere", "dangling"),
        ("work/nowhere", "made"),
    ] {
        symlink(says, base.join(name)).unwrap();
    }
    for (name, bad) in [("into", true), ("made", true), ("plain/x", false), ("dangling/x", false)] {
        let paths = with(&good, Trusted::PublicKey, base.join(name));
        assert_eq!(paths.check().is_err(), bad, "{name}");
    }
    overlaps(&with(&good, Trusted::Configuration, base.join("made/deep")));
    for name in ["work/link", "work/link/deep/not/yet", "by/x", "work/inner/../../tools/x"] {
        is_redirectable(&with(&good, Trusted::PublicKey, base.join(name)));
        is_redirectable(&and(&good, Access::Read, base.join(name)));
    }
    // The target at the time of the mount counts, too.
    let mut paths = good.clone();
    paths.agents.push(AgentPath {
        access: Access::Write,
        path: base.join("other"),
        target: Some(base.join("state")),
    });
    overlaps(&paths);
}

#[test]
fn a_link_that_hides_the_workspace_while_it_is_looked_up_is_no_way_in() {
    let tmp = tempfile::tempdir().unwrap();
    let base = mounts::existing(tmp.path()).unwrap();
    let good = good(&base);
    // It was a directory when the name was looked up, and is a link at this
    // moment.
    symlink(base.join("tools"), base.join("work/moment")).unwrap();
    let mut paths = good;
    paths.agents.push(AgentPath {
        access: Access::Read,
        path: base.join("plain"),
        target: Some(base.join("work/moment")),
    });
    overlaps(&paths);
}

#[test]
fn what_needs_a_directory_of_its_own_gets_one() {
    let tmp = tempfile::tempdir().unwrap();
    let base = mounts::existing(tmp.path()).unwrap();
    good(&base);
    let at = |name: &str| ("directory", base.join(name));
    all_apart(&[at("work"), at("state"), at("not/yet")]).unwrap();
    for other in ["state", "state/inner", ""] {
        assert!(all_apart(&[at("work"), at("state"), at(other)]).is_err(), "{other}");
    }
}
