//! Counts of reads of labelled content, and of changes by carriers of its label.

use portcullis_audit::RecordView;
use serde_json::Value;

use super::Digest;
use crate::report::items::LabelUse;

impl Digest {
    /// A request was decided.
    pub(super) fn labels(&mut self, record: &RecordView<'_>) {
        let named = |name: &str| {
            let ids = record.facts.as_ref().and_then(|facts| facts.get(name)?.as_array());
            ids.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned)
        };
        let (read, carried): (Vec<_>, Vec<_>) = match (record.kind_name(), record.result()) {
            ("decision", Some("ok")) => (named("labels").collect(), Vec::new()),
            // An edit and a rename can be both.
            ("intent", _) => (named("labels").collect(), named("carries").collect()),
            _ => return,
        };
        for (label, reads, changes) in
            read.into_iter().map(|id| (id, 1, 0)).chain(carried.into_iter().map(|id| (id, 0, 1)))
        {
            self.label(LabelUse { label, reads, changes });
        }
    }

    /// Adds to what is known of a label.
    pub(super) fn label(&mut self, more: LabelUse) {
        let new = || LabelUse { label: more.label.clone(), ..LabelUse::default() };
        let sum = self.label_uses.entry(more.label.clone()).or_insert_with(new);
        sum.reads += more.reads;
        sum.changes += more.changes;
    }
}
