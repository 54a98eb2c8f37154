//! The arguments of a call, read by name and type.

use portcullis_rpc::value_size;
use rmcp::model::JsonObject;
use serde_json::Value;

use super::tool_result::ToolError;
use crate::{count::count, model::OperationKind};

/// Longest name of an unknown argument that a refusal repeats, in bytes.
const MAX_KEY: usize = 64;

/// The value of `arguments`.
#[derive(PartialEq)]
pub(super) struct Arguments(JsonObject);

impl Arguments {
    pub(super) fn new(object: Option<JsonObject>) -> Self {
        Self(object.unwrap_or_default())
    }

    /// Refuses arguments that `known` does not name.
    pub(super) fn only(&self, known: &JsonObject) -> Result<(), ToolError> {
        let Some(key) = self.0.keys().find(|key| !known.contains_key(*key)) else { return Ok(()) };
        // A secret that is cut is no longer found.
        Err(ToolError::Arguments(match key.len() {
            ..=MAX_KEY => format!("the tool takes no argument `{key}`"),
            _ => format!("the tool takes no argument whose name has more than {MAX_KEY} bytes"),
        }))
    }

    /// Returns a mandatory string.
    pub(super) fn text(&self, name: &str) -> Result<&str, ToolError> {
        match self.0.get(name) {
            Some(Value::String(text)) => Ok(text),
            other => Err(wrong(name, "a string", other)),
        }
    }

    /// Returns a boolean, false when left out. `null` is refused: read as false it would turn a
    /// preview (`dryRun`) into the change.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ToolError> {
        match self.0.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            other => Err(wrong(name, "true or false", other)),
        }
    }

    /// Returns an optional string.
    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&str>, ToolError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            other => Err(wrong(name, "a string", other)),
        }
    }

    /// Returns an optional integer, not negative.
    pub(super) fn count(&self, name: &str) -> Result<Option<u64>, ToolError> {
        let wrong = |value| wrong(name, "a whole number, not negative", value);
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let whole = value.as_number().and_then(count);
                whole.map(Some).ok_or_else(|| wrong(Some(value)))
            }
        }
    }

    /// Returns a list of strings; an empty one when left out.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<&str>, ToolError> {
        let Some(value) = self.0.get(name) else { return Ok(Vec::new()) };
        let texts = value.as_array().map(|items| items.iter().map(Value::as_str).collect());
        match texts {
            Some(Some(texts)) => Ok(texts),
            _ => Err(wrong(name, "a list of strings", Some(value))),
        }
    }

    /// Returns the members of an object of strings; none when left out.
    pub(super) fn text_members(&self, name: &str) -> Result<Vec<(String, String)>, ToolError> {
        let Some(value) = self.0.get(name) else { return Ok(Vec::new()) };
        let texts = value.as_object().map(|members| {
            let texts =
                members.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            texts.collect::<Option<_>>()
        });
        texts.flatten().ok_or_else(|| wrong(name, "an object of strings", Some(value)))
    }

    /// Returns a mandatory list of objects.
    pub(super) fn objects(&self, name: &str) -> Result<Vec<Self>, ToolError> {
        let value = self.0.get(name);
        let objects = value.and_then(Value::as_array).map(|items| {
            items.iter().map(|item| Some(Self(item.as_object()?.clone()))).collect::<Option<_>>()
        });
        match objects {
            Some(Some(objects)) => Ok(objects),
            _ => Err(wrong(name, "a list of objects", value)),
        }
    }

    /// Returns the approximate memory of the arguments, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value_size(value)).sum()
    }

    /// Returns all paths of a call of this kind, with its pattern where that is one on paths.
    pub(super) fn paths(&self, kind: OperationKind) -> impl Iterator<Item = &str> {
        let pattern = Some("pattern").filter(|_| kind == OperationKind::Glob);
        let single = ["path", "from", "to"].into_iter().chain(pattern);
        let single = single.filter_map(|name| self.0.get(name));
        let several = self.0.get("paths").and_then(Value::as_array).into_iter().flatten();
        single.chain(several).filter_map(Value::as_str)
    }

    /// Returns the path for the record of a refused call.
    pub(super) fn shown_path(&self) -> Option<&str> {
        ["path", "from", "source"].into_iter().find_map(|name| self.0.get(name)?.as_str())
    }
}

fn wrong(name: &str, expected: &str, found: Option<&Value>) -> ToolError {
    ToolError::Arguments(match found {
        None => format!("the argument `{name}` is missing; it must be {expected}"),
        Some(_) => format!("the argument `{name}` must be {expected}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A million of them weighed nothing.
    #[test]
    fn empty_texts_lists_and_objects_weighed_nothing() {
        for empty in [json!(""), json!([]), json!({})] {
            let paths = json!({ "path": vec![empty; 1000] });
            let arguments = Arguments::new(paths.as_object().cloned());
            assert!(arguments.weight() > 32 * 1000, "{}", arguments.weight());
        }
    }
}
