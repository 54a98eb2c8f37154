//! Copies of the logs of a service.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use rustix::process::Signal;

use super::rig::{Service, Site, kill, wait};
use crate::aliases::Mounted;

/// The broker looked the target up each time that a worker had started: on a network mount that
/// hangs it waited, and with it all workspaces, logins and `/readyz`.
#[test]
fn a_target_that_hangs_holds_up_no_workspace() {
    let mut site = Site::new(&["one", "two"]);
    let far = site.base().join("far");
    fs::create_dir(&far).unwrap();
    let mounted = Mounted::at(&far);
    site.settings = format!("[audit]\nship = [{{ to = \"{}\" }}]", far.join("copies").display());
    let service = site.serve();
    let token = site.token("all");
    kill(mounted.pid(), Signal::STOP);
    for name in ["one", "two"] {
        let read = service.session(token, name).read("file.txt").unwrap();
        assert_eq!(read, format!("of {name}\n"));
        service.await_ready();
    }
    kill(mounted.pid(), Signal::CONT);
    service.stop();
}

/// The warning named neither workspace nor target, and nothing was tried again.
#[test]
fn a_copy_that_cannot_be_begun_is_named_and_tried_again() {
    let mut site = Site::new(&["one"]);
    let copies = site.base().join("copies");
    site.settings = format!(
        "[audit]\ncheckpoints = {{ seconds = 1 }}\nship = [{{ to = \"{}\" }}]",
        copies.display()
    );
    site.write();
    let said = site.base().join("said");
    let state = site.state("one");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(state.join("ship"), "").unwrap();
    let stderr = Stdio::from(fs::File::create(&said).unwrap());
    let service = Service::start_saying(&mut site.command(&[]), stderr);
    let token = site.token("all");
    assert_eq!(service.session(token, "one").read("file.txt").unwrap(), "of one\n");
    let place = copies.join("one");
    let warning = format!("the audit log is not copied to {}: ", place.display());
    wait(|| fs::read_to_string(&said).unwrap().contains(&warning).then_some(()));
    fs::remove_file(state.join("ship")).unwrap();
    wait(|| place.exists().then_some(()));
    service.stop();
}
