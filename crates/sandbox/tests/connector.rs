//! The files that a process which is confined as the connector may open: those of the system's
//! resolver. The test has no harness, because such a process must have no other thread.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::disallowed_methods, reason = "opens files as a connector that is taken over")]

use std::{fs, net::TcpListener, path::Path};

use portcullis_sandbox::restrict_connector;

const RESOLVER: [&str; 6] = [
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
];

fn main() {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = own.join("connector");
    fs::write(&file, "content").unwrap();
    let program = std::env::current_exe().unwrap();
    let others = [
        &*file,
        &program,
        Path::new("/etc/passwd"),
        Path::new("/proc/self/environ"),
        Path::new("/proc/self/maps"),
    ];
    let known = RESOLVER.map(Path::new).into_iter().filter(|path| fs::read(path).is_ok());
    let known: Vec<_> = known.collect();
    assert!(known.contains(&Path::new("/etc/hosts")), "{known:?}");
    for path in others {
        assert!(fs::read(path).is_ok(), "{}", path.display());
    }

    let report = restrict_connector().unwrap();
    assert!(report.landlock_abi > 0);
    for path in known {
        assert!(fs::read(path).is_ok(), "{}", path.display());
        assert!(fs::OpenOptions::new().append(true).open(path).is_err(), "{}", path.display());
    }
    for path in others {
        assert!(fs::read(path).is_err(), "{}", path.display());
    }
    for directory in [own, Path::new("/"), Path::new("/etc"), Path::new("/proc/self/fd")] {
        assert!(fs::read_dir(directory).is_err(), "{}", directory.display());
    }
    assert!(fs::write(&file, "other").is_err());
    assert!(fs::write(own.join("new"), "").is_err());
    assert!(fs::hard_link(&file, own.join("link")).is_err());
    assert!(fs::remove_file(&file).is_err());
    assert!(std::process::Command::new(&program).spawn().is_err());
    assert!(TcpListener::bind("127.0.0.1:0").is_err());
}
