//! `portcullis audit` for reviewers: search, blame, sessions, reports, exports,
//! bundles.

mod blame;
mod bundle;
mod export;
mod hosts;
mod index;
mod query;
mod report;
mod session_summary;

use std::path::Path;

use portcullis_audit::{Chain, Draft, Kind, Prepared, SEGMENT_RECORDS, Segment};

use crate::common::World;

/// Writes a log of `count` records directly into the state directory, so that a
/// long one needs no gateway.
pub(crate) fn write_log(world: &World, count: u64, draft: impl Fn(u64) -> (Kind, Draft)) {
    let directory = world.state().join("audit");
    std::fs::create_dir_all(&directory).unwrap();
    private(&world.state());
    private(&directory);
    let mut chain = Chain::new();
    let mut bytes = Vec::new();
    for seq in 0..count {
        let (kind, draft) = draft(seq);
        let record = Prepared::new(kind, &draft, u128::from(seq).to_be_bytes()).unwrap();
        let time = format!(
            "2026-11-{:02}T{:02}:{:02}:{:02}.000000Z",
            1 + seq / 86_400 % 28,
            seq / 3600 % 24,
            seq / 60 % 60,
            seq % 60
        );
        chain.append(&record, &time, &mut bytes);
        if (seq + 1) % SEGMENT_RECORDS == 0 || seq + 1 == count {
            let name = Segment::of(seq).to_string();
            std::fs::write(directory.join(name), std::mem::take(&mut bytes)).unwrap();
        }
    }
}

fn private(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)).unwrap();
}

/// A decision of the usual form.
pub(crate) fn decision(agent: &str, op: &str, path: &str, decision: &str, rule: &str) -> Draft {
    Draft {
        session: Some(format!("session of {agent}")),
        agent: Some(agent.to_owned()),
        user: Some("ops".to_owned()),
        transport: Some("acp".to_owned()),
        op: Some(op.to_owned()),
        path: Some(path.to_owned()),
        decision: Some(decision.to_owned()),
        rule: Some(rule.to_owned()),
        result: Some(if decision == "allow" { "ok" } else { "denied" }.to_owned()),
        bytes: Some(10),
        ..Draft::default()
    }
}

/// A name that tries everything an output could fall for: a new line, a
/// terminal sequence, right-to-left override, a formula, HTML.
pub(crate) const HOSTILE: &str = "=cmd|'/c calc'!A1\n\u{1b}[2J\u{202e}<script>\"x\",&amp;";

/// No character of `text` steers or hides.
pub(crate) fn assert_visible(text: &str) {
    let hidden = |c: &char| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c);
    assert!(!text.contains(|c| hidden(&c)), "{text:?}");
}
