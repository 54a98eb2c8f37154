//! The tools: names, arguments, results, and the operation that each needs.

mod commands;
mod diff;
mod edits;
mod media;
mod name;
mod reading;
mod reference;
mod reference_reading;
mod searching;
mod table;
mod tree;
mod workspace;

pub(super) use media::mime;
pub use name::{Name, NameError};
pub(super) use table::{ExpectedWait, Tool};

/// The set of tools for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Toolset {
    /// The workspace's own tools, `workspace__NAME__read_file` and so on.
    Workspace(Name),
    /// The tools of the reference filesystem server, `read_text_file` and so on.
    Reference,
}

/// Returns the tools of a set.
pub(super) fn tools(set: &Toolset) -> Vec<Tool> {
    match set {
        Toolset::Workspace(name) => {
            let mut tools = workspace::tools(name);
            tools.extend(commands::tools(name));
            tools
        }
        Toolset::Reference => reference::tools(),
    }
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
        for (set, count) in [(Toolset::Workspace(Name::near("w")), 15), (Toolset::Reference, 14)] {
            let tools = tools(&set);
            assert_eq!(tools.len(), count);
            for tool in tools {
                let shown = tool.shown();
                assert!(shown.name.len() <= 64, "{}", shown.name);
                assert_eq!(shown.input_schema.get("type"), Some(&json!("object")));
                assert!(shown.description.is_some(), "{}", shown.name);
                let reads = shown.annotations.as_ref().unwrap().read_only_hint.unwrap();
                if let Some(kind) = tool.kind() {
                    assert_eq!(reads, !kind.is_mutation(), "{}", shown.name);
                }
            }
        }
    }
}
