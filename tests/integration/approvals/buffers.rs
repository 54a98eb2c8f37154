//! An approval covers unsaved content of the editor, too.

use serde_json::{Value, json};

use super::editor::{POLICY, choose};
use crate::acp_rig::{Rig, result};

/// An editor with `ci/a.yml` open, saved or not, whose user is asked.
struct Open {
    rig: Rig,
    buffer: &'static str,
}

impl Open {
    fn new(disk: Option<&str>, buffer: &'static str) -> Self {
        let rig = Rig::under(POLICY, |_| {});
        std::fs::create_dir(rig.root.join("ci")).unwrap();
        if let Some(disk) = disk {
            std::fs::write(rig.root.join("ci/a.yml"), disk).unwrap();
        }
        let offers = json!({"readTextFile": true, "writeTextFile": true});
        Self { rig: rig.made_ready(offers), buffer }
    }

    /// Answers reads of the buffer until something else is asked.
    fn asked(&mut self) -> Value {
        loop {
            let asked = self.rig.editor.hear();
            if asked["method"] != "fs/read_text_file" {
                return asked;
            }
            self.rig.editor.send(&result(asked["id"].clone(), json!({"content": self.buffer})));
        }
    }

    /// The agent writes; the user types `then` and says yes.
    fn approve_after(&mut self, then: &'static str) {
        let write = self.rig.write(5, "ci/a.yml", "NEW\n");
        self.rig.agent.send(&write);
        let asked = self.asked();
        assert_eq!(asked["method"], "session/request_permission", "{asked}");
        self.buffer = then;
        self.rig.editor.send(&choose(&asked, "once"));
    }

    /// Checks that the gateway reads the buffer once more, asks about it, and does not write it.
    fn is_asked_about_again(&mut self) {
        let asked = self.asked();
        assert_eq!(asked["method"], "session/request_permission", "{asked}");
        assert!(asked.to_string().contains("-TYPED"), "{asked}");
        self.rig.editor.send(&choose(&asked, "reject"));
        let answer = self.rig.agent.hear();
        let reason = "a person was asked and rejected it";
        assert_eq!(answer["error"]["data"]["reason"], reason, "{answer}");
        self.rig.editor.hears_nothing();
        let log = self.rig.log();
        assert!(!log.contains("\"kind\":\"intent\""), "{log}");
    }
}

#[test]
fn what_the_user_types_after_the_question_is_not_written_over() {
    for (disk, before) in [
        (Some("DISK\n"), "UNSAVED\n"),
        // At the question there was nothing unsaved.
        (Some("DISK\n"), "DISK\n"),
        (None, "UNSAVED\n"),
    ] {
        let mut open = Open::new(disk, before);
        open.approve_after("TYPED\n");
        open.is_asked_about_again();
        let there = std::fs::read_to_string(open.rig.root.join("ci/a.yml")).ok();
        assert_eq!(there.as_deref(), disk);
    }
}

#[test]
fn what_was_unsaved_at_the_question_is_written_over_and_on_record() {
    let mut open = Open::new(Some("DISK\n"), "UNSAVED\n");
    open.approve_after("UNSAVED\n");
    let told = open.asked();
    assert_eq!(told["method"], "fs/write_text_file", "{told}");
    open.rig.editor.send(&result(told["id"].clone(), Value::Null));
    assert!(open.rig.agent.hear()["error"].is_null());
    let records: Vec<Value> =
        open.rig.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let buffers = |kind: &str| {
        let found = records.iter().find(|record| record["kind"] == kind);
        found.unwrap_or_else(|| panic!("{kind} {records:#?}"))["facts"]["bufferBefore"].clone()
    };
    assert!(buffers("intent").is_string());
    assert_eq!(buffers("approval"), buffers("intent"));
}
