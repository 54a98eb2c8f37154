//! Results of tool calls in the protocol's terms: content for models, structured content
//! for programs, and in `_meta` the receipts and the reason of a refusal.

use portcullis_audit::Receipt;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Map, Value, json};

use crate::gateway::{self, ErrorKind, Skipped, Stopped, Summary};

/// The key of the last record's receipt in `_meta`.
const RECEIPT: &str = "portcullis/receipt";
/// The key of all receipts, when a call made several records.
const RECEIPTS: &str = "portcullis/receipts";
/// The key of a search's statistics, among them what it skipped.
const SEARCH: &str = "portcullis/search";
/// The key of an error's details.
const ERROR: &str = "portcullis/error";

/// The result of a successful call.
pub(super) struct ToolResult {
    pub(super) content: Vec<ContentBlock>,
    structured: Option<Value>,
    /// Details for programs, by their key in `_meta`.
    about: Option<(&'static str, Value)>,
}

impl ToolResult {
    /// Returns content, with equivalent structured content.
    pub(super) fn of(content: Vec<ContentBlock>, structured: Value) -> Self {
        Self { content, structured: Some(structured), about: None }
    }

    /// Returns content alone, with details for programs in `_meta`.
    pub(super) fn unstructured(
        content: Vec<ContentBlock>,
        key: &'static str,
        about: Value,
    ) -> Self {
        Self { content, structured: None, about: Some((key, about)) }
    }

    /// Returns a text alone.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { content: vec![ContentBlock::text(text)], structured: None, about: None }
    }

    /// Adds the argument that gets the next page, if there is one.
    pub(super) fn and_next(mut self, next: Option<&str>) -> Self {
        self.content.extend(next.map(more).map(ContentBlock::text));
        self
    }

    /// Returns structured content, with the same as JSON text.
    pub(super) fn structured(value: Value) -> Self {
        Self::with_text(value.to_string(), value)
    }

    /// Returns structured content with a different text.
    pub(super) fn with_text(text: impl Into<String>, structured: Value) -> Self {
        Self::of(vec![ContentBlock::text(text)], structured)
    }

    /// Returns a page of results, with notes for models; more results follow after
    /// `next`, if set.
    pub(super) fn page(
        results: &str,
        list: Vec<Value>,
        next: Option<String>,
        mut notes: Vec<String>,
    ) -> Self {
        let mut page = Map::from_iter([(results.to_owned(), Value::Array(list))]);
        if let Some(next) = next {
            notes.insert(0, more(&next));
            page.insert("next".to_owned(), json!(next));
        }
        if !notes.is_empty() {
            page.insert("note".to_owned(), json!(notes.join(" ")));
        }
        Self::structured(Value::Object(page))
    }

    /// Returns a page of a search; `cut` if a limit stopped the search of an earlier
    /// page.
    pub(super) fn found(
        matches: Vec<Value>,
        next: Option<String>,
        cut: bool,
        summary: &Summary,
    ) -> Self {
        let mut notes = notes(summary);
        if cut && summary.stopped.is_none() {
            let reason = "Results may be missing: the search of an earlier page was stopped by a \
                       limit; narrow it.";
            notes.insert(0, reason.to_owned());
        }
        Self::page("matches", matches, next, notes).about_search(summary)
    }

    /// Adds the notes of a search as separate contents.
    pub(super) fn of_search(mut self, summary: &Summary) -> Self {
        self.content.extend(notes(summary).into_iter().map(ContentBlock::text));
        self.about_search(summary)
    }

    fn about_search(mut self, summary: &Summary) -> Self {
        let skipped: Map<_, _> = summary
            .skipped
            .iter()
            .map(|(reason, count)| (reason.as_str().to_owned(), json!(count)))
            .collect();
        let about = json!({
            "searched": summary.searched,
            "skipped": skipped,
            "stopped": summary.stopped.map(Stopped::as_str),
        });
        self.about = Some((SEARCH, about));
        self
    }
}

fn more(next: &str) -> String {
    format!("There is more: call this again with `after`: {next:?}.")
}

/// Returns notes for models on what a search did not cover.
fn notes(summary: &Summary) -> Vec<String> {
    let stopped = summary.stopped.map(|reason| {
        let reason = reason.as_str();
        format!("There may be more: the search was stopped by its limit on {reason}; narrow it.")
    });
    let all: Vec<_> = summary
        .skipped
        .iter()
        .map(|(reason, count)| format!("{count} {}", reason.as_str()))
        .collect();
    let skipped = (!all.is_empty()).then(|| {
        let more = match summary.skipped.contains_key(&Skipped::Ignored) {
            true => " With `includeIgnored` what is ignored is found too.",
            false => "",
        };
        format!("Skipped: {}.{more}", all.join(", "))
    });
    stopped.into_iter().chain(skipped).collect()
}

/// The reason why a call fails.
#[derive(Debug)]
pub(super) enum ToolError {
    /// The gateway refused or failed; that is recorded.
    Gateway(gateway::Error),
    /// The arguments are wrong; that is not recorded yet.
    Arguments(String),
    /// Another failure, after operations that are recorded.
    Said(String),
}

impl From<gateway::Error> for ToolError {
    fn from(error: gateway::Error) -> Self {
        Self::Gateway(error)
    }
}

/// Returns the result of a success.
pub(super) fn done(answer: ToolResult, receipts: &[Receipt]) -> CallToolResult {
    let mut result = CallToolResult::success(answer.content);
    result.structured_content = answer.structured;
    let mut meta = meta(receipts, None);
    meta.0.extend(answer.about.map(|(key, about)| (key.to_owned(), about)));
    result.with_meta(Some(meta))
}

/// Returns the result of a refusal or failure. Structured content would have to match the
/// tool's output schema, so the details are in `_meta`.
pub(super) fn failed(error: &gateway::Error, receipts: &[Receipt]) -> CallToolResult {
    let details = describe(error);
    let mut receipts = receipts.to_vec();
    receipts.extend(error.receipt().cloned());
    let result = CallToolResult::error(vec![ContentBlock::text(error.to_string())]);
    result.with_meta(Some(meta(&receipts, Some(details))))
}

/// Returns the result of a failure without a record of its own.
pub(super) fn failure(message: &str, receipts: &[Receipt]) -> CallToolResult {
    let details = json!({ "kind": ErrorKind::InvalidInput.as_str(), "message": message });
    let result = CallToolResult::error(vec![ContentBlock::text(message)]);
    result.with_meta(Some(meta(receipts, Some(details))))
}

/// Returns the details of an error, for programs.
pub(super) fn describe(error: &gateway::Error) -> Value {
    let mut details = Map::new();
    details.insert("kind".to_owned(), json!(error.kind().as_str()));
    details.insert("message".to_owned(), json!(error.to_string()));
    details.extend(error.rule().map(|rule| ("rule".to_owned(), json!(rule))));
    details.extend(error.reason().map(|reason| ("reason".to_owned(), json!(reason))));
    details.extend(error.receipt().map(|receipt| ("receipt".to_owned(), json!(receipt))));
    Value::Object(details)
}

pub(super) fn meta(receipts: &[Receipt], error: Option<Value>) -> MetaObject {
    let mut meta = Map::new();
    meta.extend(receipts.last().map(|last| (RECEIPT.to_owned(), json!(last))));
    if receipts.len() > 1 {
        meta.insert(RECEIPTS.to_owned(), json!(receipts));
    }
    meta.extend(error.map(|error| (ERROR.to_owned(), error)));
    MetaObject::from(meta)
}
