//! The tools: what they are called, what they take and give, and which
//! operation each needs.

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use rmcp::model::{self, JsonObject, ToolAnnotations};
use serde::Deserialize;
use serde_json::Value;

use crate::model::OperationKind;

use super::{
    answer::{Answer, Trouble},
    arguments::Arguments,
    call::Call,
};

mod diff;
mod edits;
mod media;
mod reading;
mod reference;
mod reference_reading;
mod searching;
mod tree;
mod workspace;

/// Which tools a client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Toolset {
    /// `workspace__NAME__read_file` and so on.
    Workspace(Name),
    /// Those of the reference filesystem server, `read_text_file` and so on.
    Reference,
}

/// A workspace's name in names of tools: 1 to 32 ASCII letters, digits, `_` and
/// `-`, so that every client takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

/// A text is not a [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a workspace is 1 to 32 letters, digits, `_` or `-`")]
pub struct NameError;

impl Name {
    /// The nearest name to `text`, such as that of a directory.
    pub fn near(text: &str) -> Self {
        let clean = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name: String = text.chars().map(clean).take(32).collect();
        Self(if name.is_empty() { "workspace".to_owned() } else { name })
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let near = Self::near(text);
        if near.0 == text { Ok(near) } else { Err(NameError) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) use media::mime;

/// The argument of searches that are to find what `.gitignore` files ignore too.
const INCLUDE_IGNORED: &str = "includeIgnored";

type Run = fn(&Call<'_>, &Arguments) -> Result<Answer, Trouble>;

/// A row of a table of tools: name, operation without which the tool is of no use, effect,
/// wait, and implementation.
type Row = (&'static str, OperationKind, Effect, Waits, Run);

/// One tool.
pub(super) struct Tool {
    shown: model::Tool,
    kind: OperationKind,
    waits: Waits,
    run: Run,
    refuses_unknown: bool,
}

/// The part of a tool that clients are shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    title: String,
    description: String,
    input_schema: JsonObject,
    output_schema: Option<JsonObject>,
}

/// What a tool does to the workspace.
#[derive(Clone, Copy)]
enum Effect {
    Reads,
    /// Adds, and does no more when done again.
    Adds,
    /// Adds each time.
    AddsAgain,
    /// Replaces or removes, and does no more when done again.
    Replaces,
    /// Replaces or removes something else when done again.
    ReplacesAgain,
}

impl Effect {
    fn annotations(self, title: &str) -> ToolAnnotations {
        let (reads, replaces, again) = match self {
            Self::Reads => (true, false, false),
            Self::Adds => (false, false, false),
            Self::AddsAgain => (false, false, true),
            Self::Replaces => (false, true, false),
            Self::ReplacesAgain => (false, true, true),
        };
        ToolAnnotations::with_title(title)
            .read_only(reads)
            .destructive(replaces)
            .idempotent(!again)
            .open_world(false)
    }
}

/// What a call of a tool waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// One look at one entry.
    Nothing,
    /// The disk, for one change of one file.
    Syncs,
    /// Perhaps much.
    Long,
}

impl Tool {
    /// The tool as clients see it.
    pub(super) fn shown(&self) -> &model::Tool {
        &self.shown
    }

    pub(super) fn kind(&self) -> OperationKind {
        self.kind
    }

    /// Whether it tells only what every client is told (`resources/templates/list`),
    /// so that no policy is asked about it.
    pub(super) fn tells_nothing(&self) -> bool {
        self.shown.name == reference::DIRECTORIES
    }

    /// What a call waits for, unless the policy has it ask a person.
    pub(super) fn waits(&self) -> Waits {
        self.waits
    }

    /// Carries a call out.
    pub(super) fn run(&self, call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
        let known = self.shown.input_schema.get("properties").and_then(Value::as_object);
        if let Some(known) = known.filter(|_| self.refuses_unknown) {
            arguments.only(known)?;
        }
        (self.run)(call, arguments)
    }
}

/// The tools of a set.
pub(super) fn tools(set: &Toolset) -> Vec<Tool> {
    match set {
        Toolset::Workspace(name) => workspace::tools(name),
        Toolset::Reference => reference::tools(),
    }
}

/// Makes the tools of a table; `shown` is JSON, and `name` makes a tool's name of that in
/// the table.
fn load(shown: &str, rows: &[Row], name: impl Fn(&str) -> String) -> Vec<Tool> {
    // A test loads both tables.
    let mut shown: HashMap<String, Shown> = serde_json::from_str(shown).unwrap_or_default();
    let tool = |(key, kind, effect, waits, run): &Row| {
        let Shown { title, description, input_schema, output_schema } = shown.remove(*key)?;
        let mut tool = model::Tool::new(name(key), description, Arc::new(input_schema))
            .with_annotations(effect.annotations(&title))
            .with_title(title);
        tool.output_schema = output_schema.map(Arc::new);
        Some(Tool { shown: tool, kind: *kind, waits: *waits, run: *run, refuses_unknown: false })
    };
    rows.iter().filter_map(tool).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_directorys_name_becomes_one_that_clients_take() {
        assert_eq!(Name::near("my project (2)").to_string(), "my_project__2_");
        assert_eq!(Name::near("żółw").to_string(), "___w");
        assert_eq!(Name::near("").to_string(), "workspace");
        assert_eq!("a-b_9".parse::<Name>().unwrap().to_string(), "a-b_9");
        assert_eq!("a b".parse::<Name>(), Err(NameError));
        assert_eq!("".parse::<Name>(), Err(NameError));
        assert_eq!("x".repeat(33).parse::<Name>(), Err(NameError));
    }

    #[test]
    fn every_tool_says_what_it_takes_gives_and_does() {
        for (set, count) in [(Toolset::Workspace(Name::near("w")), 12), (Toolset::Reference, 14)] {
            let tools = tools(&set);
            assert_eq!(tools.len(), count);
            for tool in tools {
                let shown = tool.shown();
                assert!(shown.name.len() <= 64, "{}", shown.name);
                assert_eq!(shown.input_schema.get("type"), Some(&json!("object")));
                assert!(shown.description.is_some(), "{}", shown.name);
                let reads = shown.annotations.as_ref().unwrap().read_only_hint.unwrap();
                assert_eq!(reads, !tool.kind().is_mutation(), "{}", shown.name);
            }
        }
    }
}
