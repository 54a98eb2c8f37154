//! Contents of the sandbox's root directory: a list that the broker makes from the grants and that
//! the init carries out (`root`).

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::{
    machine_keys::{ETC_DIRECTORIES, with_keys},
    mount::WorkspaceMount,
    mounts::Mounts,
    resolve::{Resolved, resolve},
    spec::Grant,
};

/// Files of `/etc` that programs read, copied if the host has them.
const COPIED: [&str; 16] = [
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/os-release",
    "/etc/mime.types",
    "/etc/locale.conf",
    "/etc/locale.alias",
    "/etc/inputrc",
    "/etc/magic",
];

/// Devices without side effects.
pub(super) const DEVICES: [&str; 5] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Each process's controlling terminal. The agent begins without one.
pub(super) const TERMINAL: &str = "/dev/tty";
/// Pseudo-terminals.
pub(super) const TERMINALS: &str = "/dev/pts";

/// Links in `/dev` that programs expect.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// An entry of the root directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Node {
    /// A symbolic link.
    Link(PathBuf),
    /// A file with this text.
    Text(String),
    /// A copy of the host's file of the same name.
    Copy,
    /// The host's file or directory of the same name.
    Bind {
        writable: bool,
        directory: bool,
        /// The mounts within it and itself, each with the options that must be kept.
        mounts: Vec<(PathBuf, LockedMountOptions)>,
    },
    /// A file of the host under another name; read-only.
    From { source: PathBuf, keep: LockedMountOptions },
    /// The host's device of the same name. Its mount is read-only: a device is written to all the
    /// same, and its mode and times stay.
    Device(LockedMountOptions),
    /// An empty file system in memory.
    Empty { mode: u16, writable: bool },
    /// The processes of the sandbox.
    Proc,
    /// Pseudo-terminals of the sandbox's own.
    Terminals,
}

/// Mount options that a less privileged remount may not remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct LockedMountOptions {
    pub(super) noexec: bool,
    pub(super) read_only: bool,
}

/// All entries, parents first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Layout {
    pub(super) nodes: BTreeMap<PathBuf, Node>,
    /// The mounts that are made last, on top of the workspaces' directories.
    pub(super) mounts: Vec<WorkspaceMount>,
}

/// A grant cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The path is not absolute.
    #[error("`{}` is not an absolute path; the agent can only be given those", .0.display())]
    Relative(PathBuf),
    /// The path lies where the sandbox has an own file system.
    #[error("`{}` cannot be given to the agent: it has a `/proc`, `/dev` and `/sys` of its own or none", .0.display())]
    Reserved(PathBuf),
    /// The path cannot be looked up.
    #[error("`{path}`, which the agent is to get, cannot be opened: {1}", path = .0.display())]
    Lookup(PathBuf, io::Error),
    /// The path lies in a workspace, at whose path there is a mount.
    #[error(
        "`{}` cannot be given to the agent: it lies in a workspace, which the agent has as a mount here; \
         let the policy allow it, or leave the mount out", .0.display()
    )]
    InMount(PathBuf),
    /// The mounts of this machine cannot be read.
    #[error("cannot read the mounts of this machine: {0}")]
    Mounts(io::Error),
}

/// Returns the links by which `alias` leads to the workspace. Those in the workspace are left out:
/// that directory is empty in a sandbox.
pub(super) fn links_to(workspace: &Path, alias: &Path) -> Vec<(PathBuf, PathBuf)> {
    match resolve(alias) {
        Ok(found) if found.target == workspace => {
            found.links.into_iter().filter(|(link, _)| !link.starts_with(workspace)).collect()
        }
        // It leads elsewhere by now.
        _ => Vec::new(),
    }
}

/// Resolves all grants; leaves out those that need not exist and do not.
pub(super) fn resolve_grants(grants: &[Grant]) -> Result<Vec<Resolved>, GrantError> {
    let mut found = Vec::new();
    for grant in grants {
        if !grant.path.is_absolute() {
            return Err(GrantError::Relative(grant.path.clone()));
        }
        let resolved = match resolve(&grant.path) {
            Ok(resolved) => resolved,
            Err(e) if e.kind() == io::ErrorKind::NotFound && !grant.required => continue,
            Err(e) => return Err(GrantError::Lookup(grant.path.clone(), e)),
        };
        if is_reserved(&resolved.target) {
            return Err(GrantError::Reserved(grant.path.clone()));
        }
        found.push(resolved);
    }
    Ok(found)
}

/// True if the sandbox has an own file system there, or none.
fn is_reserved(path: &Path) -> bool {
    ["/proc", "/dev", "/sys"].iter().any(|own| path.starts_with(own))
}

/// Input of a layout.
pub(super) struct Plan<'a> {
    pub(super) read: &'a [Resolved],
    pub(super) write: &'a [Resolved],
    pub(super) home: &'a Path,
    pub(super) workspaces: &'a [&'a Path],
    /// Links on the way to the agent's program and to the workspace; they disclose only their
    /// targets.
    pub(super) links: &'a [(PathBuf, PathBuf)],
    /// Files of the host that the sandbox has under other names.
    pub(super) files: &'a [(&'a str, &'a Path)],
    /// The ids that the agent sees as its own.
    pub(super) user: (u32, u32),
    pub(super) temporary_mode: u16,
    /// True if the workspaces' paths are to have mounts.
    pub(super) mount: bool,
}

impl Layout {
    /// Lays out a sandbox.
    pub(super) fn new(plan: &Plan<'_>, mounts: &Mounts) -> Result<Self, GrantError> {
        let mut nodes = BTreeMap::new();
        for directory in ETC_DIRECTORIES.map(Path::new) {
            if let Ok(found) = resolve(directory) {
                bind(&mut nodes, &found, false, mounts)?;
            }
        }
        for file in COPIED.map(Path::new) {
            if is_small_file(file) {
                nodes.insert(file.to_owned(), Node::Copy);
            }
        }
        nodes.insert("/tmp".into(), Node::Empty { mode: plan.temporary_mode, writable: true });
        nodes.insert("/dev".into(), Node::Empty { mode: 0o755, writable: false });
        nodes.insert("/dev/shm".into(), Node::Empty { mode: plan.temporary_mode, writable: true });
        nodes.insert("/proc".into(), Node::Proc);
        nodes.insert(TERMINALS.into(), Node::Terminals);
        for device in DEVICES.into_iter().chain([TERMINAL]) {
            let own = mounts.of(Path::new(device)).map_err(GrantError::Mounts)?;
            nodes.insert(device.into(), Node::Device(keep(&own.options)));
        }
        for (link, says) in DEVICE_LINKS {
            nodes.insert(link.into(), Node::Link(says.into()));
        }
        link(&mut nodes, plan.links);
        for resolved in plan.read {
            bind(&mut nodes, resolved, false, mounts)?;
        }
        for resolved in plan.write {
            bind(&mut nodes, resolved, true, mounts)?;
        }
        for keys in with_keys().into_iter().flat_map(|(_, keys)| keys) {
            nodes.entry(keys).or_insert(Node::Empty { mode: 0o555, writable: false });
        }
        // Replaces the host's file of that name even if a policy grants it.
        for (path, text) in generated(plan.user) {
            nodes.insert(path.into(), Node::Text(text));
        }
        let home = Resolved { target: plan.home.to_owned(), ..Resolved::default() };
        bind(&mut nodes, &home, true, mounts)?;
        for (name, source) in plan.files {
            let own = mounts.of(source).map_err(GrantError::Mounts)?;
            let node = Node::From { source: (*source).to_owned(), keep: keep(&own.options) };
            nodes.insert((*name).into(), node);
        }
        for workspace in plan.workspaces {
            nodes.insert(workspace.into(), Node::Empty { mode: 0o555, writable: false });
        }
        let mounted = plan.workspaces.iter().filter(|_| plan.mount);
        let mounts: Vec<_> = mounted.map(|path| WorkspaceMount::new(path, plan.user)).collect();
        for WorkspaceMount { path: workspace, .. } in &mounts {
            // The mount would cover it; a link there is the workspace's own.
            let is_inside = |path: &Path| path.starts_with(workspace) && path != workspace;
            nodes.retain(|path, node| !(is_inside(path) && matches!(node, Node::Link(_))));
            if let Some(path) = nodes.keys().find(|path| is_inside(path)) {
                return Err(GrantError::InMount(path.clone()));
            }
        }
        Ok(Self { nodes: without_covered(nodes), mounts })
    }
}

/// Adds links of the host.
fn link(nodes: &mut BTreeMap<PathBuf, Node>, links: &[(PathBuf, PathBuf)]) {
    for (link, says) in links.iter().filter(|(link, _)| !is_reserved(link)) {
        nodes.entry(link.clone()).or_insert_with(|| Node::Link(says.clone()));
    }
}

fn bind(
    nodes: &mut BTreeMap<PathBuf, Node>,
    resolved: &Resolved,
    writable: bool,
    mounts: &Mounts,
) -> Result<(), GrantError> {
    link(nodes, &resolved.links);
    let path = &resolved.target;
    let facts = rustix::fs::lstat(path).map_err(|e| GrantError::Lookup(path.clone(), e.into()))?;
    let directory = FileType::from_raw_mode(facts.st_mode).is_dir();
    let own = mounts.of(path).map_err(GrantError::Mounts)?;
    let mut inner = vec![(path.clone(), keep(&own.options))];
    inner.extend(mounts.under(path).map(|m| (m.point.clone(), keep(&m.options))));
    nodes.insert(path.clone(), Node::Bind { writable, directory, mounts: inner });
    Ok(())
}

fn keep(options: &[String]) -> LockedMountOptions {
    LockedMountOptions {
        noexec: options.iter().any(|o| o == "noexec"),
        read_only: options.iter().any(|o| o == "ro"),
    }
}

/// Leaves out entries that a granted directory shows anyway.
fn without_covered(nodes: BTreeMap<PathBuf, Node>) -> BTreeMap<PathBuf, Node> {
    let mut stored: BTreeMap<PathBuf, Node> = BTreeMap::new();
    for (path, node) in nodes {
        let above = path.ancestors().skip(1).find_map(|a| match stored.get(a) {
            Some(Node::Bind { writable, .. }) => Some(Some(*writable)),
            Some(Node::Empty { .. }) => Some(None),
            _ => None,
        });
        let covered = match (above.flatten(), &node) {
            (None, _) | (Some(_), Node::Empty { .. } | Node::Proc | Node::Terminals) => false,
            (Some(outer), Node::Bind { writable, .. }) => outer == *writable,
            (Some(_), _) => true,
        };
        if !covered {
            stored.insert(path, node);
        }
    }
    stored
}

/// Returns files that define the agent's user and the lookup of names; the host's own name accounts
/// and services that the sandbox cannot reach.
fn generated((uid, gid): (u32, u32)) -> [(&'static str, String); 3] {
    [
        (
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 agent:x:{uid}:{gid}:agent:/nonexistent:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("/etc/group", format!("root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n")),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
    ]
}

fn is_small_file(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|facts| {
        FileType::from_raw_mode(facts.st_mode).is_file() && facts.st_size < 1 << 20
    })
}

#[cfg(test)]
mod tests {
    use super::{super::machine_keys::without_keys, *};

    fn layout(read: &[&str], write: &[&str]) -> Layout {
        let grants = |paths: &[&str]| {
            let grants: Vec<_> =
                paths.iter().map(|p| Grant { path: p.into(), required: true }).collect();
            resolve_grants(&grants).unwrap()
        };
        let plan = Plan {
            read: &grants(read),
            write: &grants(write),
            home: Path::new("/var"),
            workspaces: &[Path::new("/srv/work")],
            links: &[],
            files: &[],
            user: (1000, 1000),
            temporary_mode: 0o1777,
            mount: false,
        };
        Layout::new(&plan, &Mounts::read().unwrap()).unwrap()
    }

    #[test]
    fn what_lies_beneath_a_mount_cannot_be_given() {
        let tmp = tempfile::tempdir().unwrap();
        let base = crate::mounts::existing(tmp.path()).unwrap();
        rustix::fs::mkdir(base.join("inside"), rustix::fs::Mode::RWXU).unwrap();
        std::os::unix::fs::symlink("/usr", base.join("link")).unwrap();
        let laid = |name: &str, mount| {
            let grant = Grant { path: base.join(name), required: true };
            let read = resolve_grants(&[grant]).unwrap();
            let plan = Plan {
                read: &read,
                write: &[],
                home: Path::new("/var"),
                workspaces: &[&base],
                links: &[],
                files: &[],
                user: (1000, 1000),
                temporary_mode: 0o1777,
                mount,
            };
            Layout::new(&plan, &Mounts::read().unwrap())
        };
        assert!(laid("inside", false).is_ok());
        assert!(
            matches!(laid("inside", true), Err(GrantError::InMount(path)) if path == base.join("inside"))
        );
        let link = laid("link", true).unwrap();
        assert!(!link.nodes.contains_key(&base.join("link")) && !link.mounts.is_empty());
    }

    #[test]
    fn nested_grants_are_mounted_once_and_sharper_ones_on_top() {
        let layout = layout(&["/usr", "/usr/share"], &["/usr/lib"]);
        assert!(!layout.nodes.contains_key(Path::new("/usr/share")));
        assert!(matches!(
            layout.nodes.get(Path::new("/usr/lib")),
            Some(Node::Bind { writable: true, .. })
        ));
    }

    #[test]
    fn links_on_the_way_are_made_again() {
        let tmp = tempfile::tempdir().unwrap();
        let base = crate::mounts::existing(tmp.path()).unwrap();
        let (real, link) = (base.join("real"), base.join("link"));
        rustix::fs::mkdir(&real, rustix::fs::Mode::RWXU).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let layout = layout(&[link.to_str().unwrap()], &[]);
        assert_eq!(layout.nodes.get(&link), Some(&Node::Link("real".into())));
        assert!(matches!(layout.nodes.get(&real), Some(Node::Bind { writable: false, .. })));
    }

    /// The attempt to make a link there was reported as forbidden namespaces.
    #[test]
    fn no_link_is_made_where_the_sandbox_has_something_of_its_own() {
        let link = "/proc/self/root/usr";
        let layout = layout(&[link], &[]);
        assert!(layout.nodes.contains_key(Path::new("/usr")));
        let within = |path: &Path| path.starts_with("/proc") && path != Path::new("/proc");
        assert!(!layout.nodes.keys().any(|path| within(path)), "{layout:?}");
    }

    #[test]
    fn private_keys_are_left_out_beside_certificates() {
        let tmp = tempfile::tempdir().unwrap();
        let base = crate::mounts::existing(tmp.path()).unwrap();
        for name in ["certs", "private", "tls", "tls/private", "tls/certs"] {
            rustix::fs::mkdir(base.join(name), rustix::fs::Mode::RWXU).unwrap();
        }
        let keys = ["private", "tls/private"].map(|name| base.join(name));
        let mut shown = without_keys(&base, &keys);
        shown.sort();
        assert_eq!(shown, ["certs", "tls/certs"].map(|name| base.join(name)));
        for (directory, keys) in with_keys() {
            assert!(keys.iter().all(|keys| keys.starts_with(&directory)), "{keys:?}");
            let layout = layout(&["/etc"], &[]);
            for keys in &keys {
                let node = layout.nodes.get(keys);
                assert!(matches!(node, Some(Node::Empty { writable: false, .. })), "{node:?}");
            }
        }
    }

    #[test]
    fn the_sandboxes_own_filesystems_cannot_be_replaced() {
        for path in ["/proc/self", "/dev", "/dev/shm", "/sys"] {
            let grant = Grant { path: path.into(), required: true };
            assert!(resolve_grants(&[grant]).is_err(), "{path}");
        }
        let relative = Grant { path: "usr".into(), required: false };
        assert!(matches!(resolve_grants(&[relative]), Err(GrantError::Relative(_))));
    }

    #[test]
    fn what_need_not_exist_is_left_out() {
        let grant = |required| Grant { path: "/no/such/place".into(), required };
        assert!(resolve_grants(&[grant(false)]).unwrap().is_empty());
        assert!(resolve_grants(&[grant(true)]).is_err());
    }
}
