//! `ledger_writer STATE TURNS`: three threads append to one log, and every
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
    let ledger = AuditLog::open(&Dir::from_std_file(std::fs::File::open(state).unwrap())).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..turns {
                    tell(&ledger.note(Kind::Decision, draft("read"), false).unwrap());
                    let intent = ledger.note(Kind::Intent, draft("write"), true).unwrap();
                    tell(&intent);
                    let outcome = Draft { result: Some("ok".to_owned()), ..Draft::default() };
                    tell(&ledger.complete(&intent, outcome).unwrap());
                }
            });
        }
    });
    ledger.close(Draft::default()).unwrap();
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
