//! The cgroup of a sandbox (cgroups(7), version 2): a directory beside the cgroup of this process,
//! if this process may make one there.

#![expect(clippy::disallowed_methods, reason = "cgroups are files of the kernel's")]

use std::{
    fs, io,
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use super::{
    limits::{Controllers, ResourceLimits},
    random::random_hex,
};

/// Prefix of the directories' names; the PID of the process that made the cgroup follows.
const PREFIX: &str = "portcullis-";

/// Number of attempts to remove a cgroup whose processes are being killed, and the time between.
const MAX_REMOVALS: u32 = 100;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(10);

/// A cgroup. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
    controllers: Controllers,
}

impl Cgroup {
    /// Makes a cgroup with these limits for `process` and its descendants.
    ///
    /// # Errors
    /// If the machine gives this process none.
    pub(super) fn make(limits: &ResourceLimits, process: u32) -> io::Result<Self> {
        let parent = parent(
            &fs::read_to_string("/proc/self/mountinfo")?,
            &fs::read_to_string("/proc/self/cgroup")?,
        );
        let parent = parent.ok_or_else(|| not_found("no cgroup of version 2 is mounted"))?;
        remove_abandoned(&parent)?;
        Self::make_in(&parent, limits, process)
    }

    fn make_in(parent: &Path, limits: &ResourceLimits, process: u32) -> io::Result<Self> {
        let controllers = enable(parent, limits)?;
        if controllers == Controllers::default() {
            return Err(not_found("no controller is delegated"));
        }
        let name = format!("{PREFIX}{}-{}", process::id(), random_hex()?);
        let path = parent.join(name);
        fs::create_dir(&path)?;
        let cgroup = Self { path, controllers };
        if let Some(memory) = limits.memory.filter(|_| controllers.memory) {
            cgroup.set("memory.max", memory)?;
            // Absent where the kernel has no swap.
            let _ = cgroup.set("memory.swap.max", 0);
        }
        if controllers.pids {
            cgroup.set("pids.max", limits.all_processes())?;
        }
        fs::write(cgroup.path.join("cgroup.procs"), process.to_string())?;
        Ok(cgroup)
    }

    /// Returns the controllers that enforce limits in it.
    pub(super) fn controllers(&self) -> Controllers {
        self.controllers
    }

    fn set(&self, file: &str, value: u64) -> io::Result<()> {
        fs::write(self.path.join(file), value.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Since Linux 5.14. The end of the init kills the processes, too.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        for _ in 0..MAX_REMOVALS {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(REMOVAL_INTERVAL);
                }
                // A directory that stays is removed by a later start.
                Ok(()) | Err(_) => return,
            }
        }
    }
}

fn not_found(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, reason)
}

/// Returns the directory of the cgroups beside that of a process with these files in `/proc`. For
/// the root cgroup, that is the root cgroup itself.
fn parent(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (root == "/" && file_system.starts_with("cgroup2 ")).then_some(point)
    })?;
    let mount = Path::new(mount);
    match own {
        "" => Some(mount.to_owned()),
        // It lies outside of the cgroup namespace of this process.
        own if own.starts_with("..") => None,
        own => mount.join(own).parent().map(Path::to_owned),
    }
}

/// Enables the controllers that the limits need for cgroups beneath `parent`, as far as allowed.
fn enable(parent: &Path, limits: &ResourceLimits) -> io::Result<Controllers> {
    let file = parent.join("cgroup.subtree_control");
    let enabled = |name: &str| -> io::Result<bool> {
        let has = || Ok(fs::read_to_string(&file)?.split_whitespace().any(|word| word == name));
        if has()? {
            return Ok(true);
        }
        // Refused where it is not delegated, and where a process is in the parent itself.
        let _ = fs::write(&file, format!("+{name}"));
        has()
    };
    let memory = limits.memory.is_some() && enabled("memory")?;
    Ok(Controllers { memory, pids: enabled("pids")? })
}

/// Removes the cgroups of processes that have ended. The kernel refuses to remove one with
/// processes.
fn remove_abandoned(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let name = entry?.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        let Some(maker) = maker.and_then(|maker| maker.parse::<u32>().ok()) else { continue };
        if !Path::new("/proc").join(maker.to_string()).exists() {
            let _ = fs::remove_dir(parent.join(&name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ResourceLimits = ResourceLimits {
        memory: Some(1 << 30),
        processes: 64,
        needs_processes: true,
        cpu: Some(1),
    };

    /// Makes a directory that imitates a cgroup with these controllers enabled for its children.
    fn standing_in(controllers: &str) -> tempfile::TempDir {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("cgroup.subtree_control"), controllers).unwrap();
        parent
    }

    #[test]
    fn limits_are_set_before_the_process_is_in_the_cgroup() {
        let parent = standing_in("cpu memory pids");
        let cgroup = Cgroup::make_in(parent.path(), &LIMITS, 4321).unwrap();
        assert_eq!(cgroup.controllers(), Controllers { memory: true, pids: true });
        let path = cgroup.path.clone();
        let has = |file: &str| fs::read_to_string(path.join(file)).unwrap();
        let files = ["memory.max", "memory.swap.max", "pids.max", "cgroup.procs"].map(has);
        assert_eq!(files, ["1073741824", "0", "65", "4321"]);
        let time = |file: &str| fs::metadata(path.join(file)).unwrap().modified().unwrap();
        assert!(time("cgroup.procs") >= time("pids.max"));
        drop(cgroup);
        // The directory is not empty, as a cgroup's would be, and stays.
        assert_eq!(has("cgroup.kill"), "1");
    }

    #[test]
    fn controllers_that_are_not_delegated_are_left_out() {
        let parent = standing_in("pids");
        // Only the last requested controller would stay in this file, which does not append.
        let limits = ResourceLimits { memory: None, ..LIMITS };
        let cgroup = Cgroup::make_in(parent.path(), &limits, 1).unwrap();
        assert_eq!(cgroup.controllers(), Controllers { memory: false, pids: true });
        assert!(!cgroup.path.join("memory.max").exists());
        let none = standing_in("cpu");
        assert!(Cgroup::make_in(none.path(), &LIMITS, 1).is_err());
        assert_eq!(fs::read_dir(none.path()).unwrap().count(), 1);
    }

    #[test]
    fn cgroups_of_processes_that_are_gone_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let (own, gone) =
            (format!("{PREFIX}{}-1", process::id()), format!("{PREFIX}{}-1", u32::MAX));
        for name in [&own, &gone, "portcullis-other", "user.slice"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        remove_abandoned(parent.path()).unwrap();
        let left = fs::read_dir(parent.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [own.as_str(), "portcullis-other", "user.slice"]);
    }

    #[test]
    fn the_cgroup_lies_beside_that_of_this_process() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let found = |own: &str| parent(mounts, own).map(|path| path.display().to_string());
        let scope = "1:name=systemd:/x\n0::/user.slice/app.slice/run-1.scope\n";
        assert_eq!(found(scope).as_deref(), Some("/sys/fs/cgroup/user.slice/app.slice"));
        assert_eq!(found("0::/\n").as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(found("0::/../other\n"), None);
        assert_eq!(found("8:pids:/\n"), None);
        assert_eq!(parent("30 25 0:26 / /sys rw - sysfs sysfs rw\n", scope), None);
    }
}
