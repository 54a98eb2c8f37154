//! The process that sent a request, as records name it.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use serde_json::Value;

use crate::{
    mount::Mount,
    process_info::{ProcessTree, Requester},
};

/// The fact of records of requests of the sandbox's setup.
const SETUP: &str = "setup";

impl Mount<'_> {
    /// Returns true as long as only the sandbox's setup runs.
    pub(crate) fn is_setup(&self) -> bool {
        self.options.setup.load(Ordering::Acquire)
    }

    /// Returns true if the program of the thread `pid` is being killed.
    pub(crate) fn is_killed(&self, pid: u32) -> bool {
        self.process_reader.is_killed(pid)
    }

    /// Caches the facts about the program of the thread `pid` for a while.
    pub(crate) fn note_program(&self, pid: u32) {
        self.requester(pid);
    }

    /// Returns the facts for a record of a request of the thread `pid`.
    pub(crate) fn claimed(&self, pid: u32) -> BTreeMap<String, Value> {
        self.facts_of(self.requester(pid))
    }

    /// Returns the process of the thread `pid`.
    pub(crate) fn requester(&self, pid: u32) -> Requester {
        self.process_reader.requester(pid, &|words| self.gateway.redact_words(words))
    }

    /// Returns the facts for a record. A process that belongs to no command may work for the tool
    /// call that the agent says is in progress.
    pub(crate) fn facts_of(&self, requester: Requester) -> BTreeMap<String, Value> {
        let is_agent = matches!(requester.tree, ProcessTree::Of(_));
        let tool_call = is_agent.then(|| self.options.tool_call.get()).flatten();
        let mut facts = requester.facts();
        facts.extend(tool_call.map(|id| ("toolCall".to_owned(), Value::from(&*id))));
        facts.extend(self.is_setup().then(|| (SETUP.to_owned(), true.into())));
        facts
    }
}
