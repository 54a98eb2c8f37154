//! Messages to the operator about connections that were denied, cut off or failed: one of each kind.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// The maximum of messages of a session.
const MAX_NOTICES: usize = 32;

/// The messages of a session.
#[derive(Debug)]
pub(crate) struct Notices {
    notify: fn(&str),
    /// The kinds of the messages so far.
    reported: Mutex<BTreeSet<String>>,
}

impl Notices {
    /// Returns notices that `notify` gets.
    pub(crate) fn new(notify: fn(&str)) -> Self {
        Self { notify, reported: Mutex::default() }
    }

    /// Reports a text to the operator, unless one of this `kind` was reported.
    pub(crate) fn report(&self, kind: String, text: &str) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() > MAX_NOTICES || !reported.insert(kind) {
            return;
        }
        match reported.len() <= MAX_NOTICES {
            true => (self.notify)(text),
            false => (self.notify)(
                "portcullis: warning: more connections were denied, cut off or failed: the log has them \
                 all",
            ),
        }
    }

    /// Returns true if anything was reported.
    pub(crate) fn has_reported(&self) -> bool {
        !self.reported.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
