//! Carriers of labels: of the labels of content that was shown, with the reads by which they came.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use super::{lock::lock, tunnels::Tunnels};
use crate::policy::{LabelIds, Labelled};

/// The carriers in one process, by name.
#[derive(Debug, Default)]
pub(super) struct Carriers(Mutex<HashMap<String, Arc<Carrier>>>);

/// A carrier of labels until the process ends: a sandbox with all its sessions, or the agent to
/// which a token of a service belongs.
#[derive(Debug, Default)]
pub(super) struct Carrier {
    reads: Mutex<Arc<Reads>>,
    /// Held while a label is recorded and added.
    adding: Mutex<()>,
    /// The open connections of the same sandbox.
    pub(super) tunnels: Arc<Tunnels>,
}

/// The labels that are carried, each with the read by which it came.
#[derive(Debug, Clone, Default)]
pub(super) struct Reads {
    ids: LabelIds,
    of: BTreeMap<String, FirstRead>,
}

/// The read by which a label came.
#[derive(Debug, Clone)]
struct FirstRead {
    /// The number of its record.
    record: u64,
    /// The lifetime of the gateway in whose log the record is.
    boot: String,
    path: String,
}

impl Carriers {
    pub(super) fn of(&self, name: &str) -> Arc<Carrier> {
        let mut all = lock(&self.0);
        match all.get(name) {
            Some(carrier) => Arc::clone(carrier),
            None => Arc::clone(all.entry(name.to_owned()).or_default()),
        }
    }
}

impl Carrier {
    /// Returns the labels that are carried now. The value stays the same until a label is added.
    pub(super) fn reads(&self) -> Arc<Reads> {
        Arc::clone(&lock(&self.reads))
    }

    /// Adds labels; `record` records those that are new, and returns the number of the record and
    /// the lifetime in whose log it is.
    ///
    /// # Errors
    /// The errors of `record`: nothing is added then.
    pub(super) fn add<E>(
        &self,
        labels: &Labelled,
        record: impl FnOnce(&Labelled) -> Result<(u64, String), E>,
    ) -> Result<(), E> {
        let _alone = lock(&self.adding);
        let mut reads = Reads::clone(&self.reads());
        let new = labels.clone().filtered(|id| !reads.ids.contains(id));
        if new.is_empty() {
            return Ok(());
        }
        let (seq, boot) = record(&new)?;
        for (id, path) in new.iter() {
            let read = FirstRead { record: seq, boot: boot.clone(), path: path.to_string() };
            reads.ids.insert(id.to_owned());
            reads.of.insert(id.to_owned(), read);
        }
        *lock(&self.reads) = Arc::new(reads);
        Ok(())
    }
}

impl Reads {
    /// Returns the labels.
    pub(super) fn ids(&self) -> &LabelIds {
        &self.ids
    }

    /// Returns the labels, each with the path that was read.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, &str)> {
        self.of.iter().map(|(id, read)| (id.as_str(), read.path.as_str()))
    }

    /// Returns the reads of these labels for a record in the log of the gateway `boot`; `None` if
    /// none of the labels is carried.
    pub(super) fn shown(&self, labels: &LabelIds, boot: &str) -> Option<Value> {
        let carried = self.of.iter().filter(|(id, _)| labels.contains(*id));
        let shown = carried.map(|(id, FirstRead { record, boot: own, path })| {
            let mut shown = json!({ "record": record, "path": path });
            if own != boot
                && let Some(shown) = shown.as_object_mut()
            {
                shown.insert("boot".to_owned(), json!(own));
            }
            (id.clone(), shown)
        });
        let shown: serde_json::Map<_, _> = shown.collect();
        (!shown.is_empty()).then_some(Value::Object(shown))
    }
}
