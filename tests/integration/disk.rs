//! Small disks that tests mount, fill, and break. They need root and report
//! that.

use std::{
    fs::{self, File},
    os::{fd::AsRawFd as _, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::scripted_agent;

/// A file system mounted at a place of its own, unmounted when dropped.
pub(crate) struct Disk {
    place: PathBuf,
    /// A tmpfs has none.
    device: Option<Mutex<Device>>,
}

/// A loop device.
struct Device {
    path: PathBuf,
    /// The file beneath it.
    image: File,
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "this test mounts file systems, so it must run as root on a machine that lets it: \
         {command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A loop device for the image.
#[track_caller]
fn attach(image: &Path) -> Device {
    let path = run(Command::new("losetup").args(["--find", "--show"]).arg(image)).trim().into();
    Device { path, image: File::open(image).unwrap() }
}

impl Disk {
    /// Memory of so many kilobytes.
    #[track_caller]
    pub(crate) fn memory(place: &Path, kilobytes: u32) -> Self {
        fs::create_dir_all(place).unwrap();
        let options = format!("size={kilobytes}k,mode=700");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(place));
        Self { place: place.to_owned(), device: None }
    }

    /// A journaled ext4 of so many megabytes on a loop device.
    #[track_caller]
    pub(crate) fn ext4(place: &Path, image: &Path, megabytes: u64) -> Self {
        Self::ext4_made(place, image, megabytes, &[])
    }

    /// The same with room for about so many files.
    #[track_caller]
    pub(crate) fn ext4_for_files(place: &Path, image: &Path, files: u32) -> Self {
        Self::ext4_made(place, image, 24, &["-N", &files.to_string()])
    }

    #[track_caller]
    fn ext4_made(place: &Path, image: &Path, megabytes: u64, options: &[&str]) -> Self {
        fs::create_dir_all(place).unwrap();
        fs::File::create(image).unwrap().set_len(megabytes << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).args(options).arg(image));
        let disk = Self::found(place, image);
        fs::set_permissions(place, fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir(place.join("lost+found")).unwrap();
        disk
    }

    /// An ext4 in an existing image, in any condition.
    #[track_caller]
    pub(crate) fn found(place: &Path, image: &Path) -> Self {
        let disk = Self { place: place.to_owned(), device: Some(Mutex::new(attach(image))) };
        disk.mount("rw");
        disk
    }

    /// A file system of so many megabytes that can clone files.
    #[track_caller]
    pub(crate) fn cloning(place: &Path, image: &Path, megabytes: u64) -> Self {
        fs::create_dir_all(place).unwrap();
        fs::File::create(image).unwrap().set_len(megabytes << 20).unwrap();
        run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(image));
        let disk = Self { place: place.to_owned(), device: Some(Mutex::new(attach(image))) };
        run(Command::new("mount").args(["-t", "xfs"]).arg(disk.device()).arg(place));
        disk
    }

    fn device(&self) -> PathBuf {
        self.device.as_ref().expect("memory has no device").lock().unwrap().path.clone()
    }

    /// Continues on another device, with a copy of the image.
    #[track_caller]
    fn replace_device(&self) {
        let mut device = self.device.as_ref().expect("memory has no device").lock().unwrap();
        // Gone when the last one lets go of it.
        let copy = tempfile::NamedTempFile::new().unwrap();
        let image = format!("/proc/self/fd/{}", device.image.as_raw_fd());
        fs::copy(image, copy.path()).unwrap();
        let before = std::mem::replace(&mut *device, attach(copy.path()));
        let _ = Command::new("losetup").arg("--detach").arg(before.path).status();
    }

    #[track_caller]
    fn mount(&self, options: &str) {
        let options = format!("errors=remount-ro,{options}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", &options]).arg(self.device()).arg(&self.place);
        run(&mut mount);
    }

    /// Mounts it again, as after the operator's visit.
    #[track_caller]
    pub(crate) fn again(&self, options: &str) {
        let in_use = self.sysfs();
        // A failed one refuses it.
        let _ = Command::new("sync").arg("--file-system").arg(&self.place).output();
        // Another process may have a look at it.
        let end = Instant::now() + scripted_agent::TIMEOUT;
        while !Command::new("umount").arg(&self.place).output().unwrap().status.success() {
            assert!(Instant::now() < end, "somebody uses the disk");
            thread::sleep(Duration::from_millis(20));
        }
        // A sandbox or a container of another test may have a copy of all mounts until it ends; as
        // long as it has, this would be the same broken one again.
        let end = Instant::now() + Duration::from_secs(10);
        while in_use.exists() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        if in_use.exists() {
            self.replace_device();
        }
        self.mount(options);
    }

    #[track_caller]
    pub(crate) fn sync(&self) {
        run(Command::new("sync").arg("--file-system").arg(&self.place));
    }

    #[track_caller]
    pub(crate) fn remount(&self, options: &str) {
        run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.place));
    }

    /// Takes all room but `leave` bytes.
    pub(crate) fn fill(&self, leave: u64) {
        let free = rustix::fs::statvfs(&self.place).unwrap();
        let size = (free.f_bavail * free.f_frsize).saturating_sub(leave);
        let file = fs::File::create(self.place.join("filler")).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size.max(1)).unwrap();
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(self.place.join("filler")).unwrap();
    }

    /// Makes files until it can hold no other, however small.
    pub(crate) fn take_all_inodes(&self) {
        let directory = self.place.join("fillers");
        fs::create_dir(&directory).unwrap();
        let mut files = (0..).map(|number| fs::File::create(directory.join(number.to_string())));
        let full = files.find_map(Result::err).unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    }

    pub(crate) fn give_inodes_back(&self) {
        fs::remove_dir_all(self.place.join("fillers")).unwrap();
    }

    /// Has the kernel find an error in it, for all its users: it becomes
    /// read-only.
    pub(crate) fn fail_read_only(&self) {
        fs::write(self.sysfs().join("trigger_fs_error"), "1").unwrap();
    }

    /// The kernel's directory about it while it is mounted anywhere.
    fn sysfs(&self) -> PathBuf {
        Path::new("/sys/fs/ext4").join(self.device().file_name().unwrap())
    }

    /// Cuts it off, as a pulled cable or a lost power supply does: from now on
    /// every use of it is an I/O error, and unsynced data is lost.
    ///
    /// A sync in progress may succeed and be lost all the same, which no power
    /// failure does: its caller would not live to see the result. So a process
    /// that relies on its syncs must be paused before.
    pub(crate) fn cut_off(&self) {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h).
        let shutdown = "import fcntl, os, struct, sys\n\
            fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        run(Command::new("/usr/bin/python3").args(["-c", shutdown]).arg(&self.place));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, for what a failed test may still use.
        let _ = Command::new("umount").arg("--lazy").arg(&self.place).status();
        if let Some(device) = self.device.take() {
            let device = device.into_inner().unwrap_or_else(PoisonError::into_inner);
            // Now, or when the last one lets go of it.
            let _ = Command::new("losetup").arg("--detach").arg(device.path).status();
        }
    }
}

/// Mounts for as long as it lives.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    #[track_caller]
    pub(crate) fn new(args: &[&str], target: PathBuf) -> Self {
        run(Command::new("mount").args(args).arg(&target));
        Self(target)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
