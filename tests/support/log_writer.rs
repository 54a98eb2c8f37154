//! `log_writer STATE TURNS`: three threads append to one log, and every
//! receipt goes to stdout. Tests start several of these and kill them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "part of the tests: it says what went wrong by panicking"
)]

use std::{io::Write as _, thread};

use cap_std::fs::Dir;
use portcullis::gateway::AuditLog;
use portcullis_audit::{Draft, Kind, Receipt};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let state = arguments.next().expect("a state directory");
    let turns: usize = arguments.next().expect("a number").to_str().unwrap().parse().unwrap();
    let audit_log =
        AuditLog::open(&Dir::from_std_file(std::fs::File::open(state).unwrap())).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..turns {
                    tell(&audit_log.note(Kind::Decision, draft("read"), false).unwrap());
                    let intent = audit_log.note(Kind::Intent, draft("write"), true).unwrap();
                    tell(&intent);
                    let outcome = Draft { result: Some("ok".to_owned()), ..Draft::default() };
                    tell(&audit_log.complete(&intent, outcome).unwrap());
                }
            });
        }
    });
    audit_log.close(Draft::default()).unwrap();
}

fn tell(receipt: &Receipt) {
    let json = serde_json::to_string(receipt).unwrap();
    // In one write, so that what a kill cuts short is the last line only.
    let _ = std::io::stdout().write_all(format!("receipt {json}\n").as_bytes());
}

fn draft(path: &str) -> Draft {
    Draft {
        op: Some("write".to_owned()),
        path: Some(path.to_owned()),
        decision: Some("allow".to_owned()),
        ..Draft::default()
    }
}
