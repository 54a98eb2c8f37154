//! The arguments of a call, taken out one by one by name and type.

use rmcp::model::JsonObject;
use serde_json::Value;

use super::answer::Trouble;
use crate::{count::count, model::OperationKind};

/// What came as `arguments`.
#[derive(PartialEq)]
pub(super) struct Arguments(JsonObject);

impl Arguments {
    pub(super) fn new(object: Option<JsonObject>) -> Self {
        Self(object.unwrap_or_default())
    }

    /// Refuses what `known` does not name.
    pub(super) fn only(&self, known: &JsonObject) -> Result<(), Trouble> {
        match self.0.keys().find(|key| !known.contains_key(*key)) {
            Some(key) => {
                let key: String = key.chars().take(64).collect();
                Err(Trouble::Arguments(format!("the tool takes no argument `{key}`")))
            }
            None => Ok(()),
        }
    }

    /// A text that must be there.
    pub(super) fn text(&self, name: &str) -> Result<&str, Trouble> {
        match self.0.get(name) {
            Some(Value::String(text)) => Ok(text),
            other => Err(wrong(name, "a string", other)),
        }
    }

    /// A truth value that is false when left out. `null` is none: it would turn a
    /// look at what would change (`dryRun`) into the change.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Trouble> {
        match self.0.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            other => Err(wrong(name, "true or false", other)),
        }
    }

    /// A text that may be left out.
    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&str>, Trouble> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            other => Err(wrong(name, "a string", other)),
        }
    }

    /// A whole number from 0 on that may be left out.
    pub(super) fn count(&self, name: &str) -> Result<Option<u64>, Trouble> {
        let wrong = |value| wrong(name, "a whole number, not negative", value);
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let whole = value.as_number().and_then(count);
                whole.map(Some).ok_or_else(|| wrong(Some(value)))
            }
        }
    }

    /// A list of texts; an empty one when left out.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<&str>, Trouble> {
        let Some(value) = self.0.get(name) else { return Ok(Vec::new()) };
        let texts = value.as_array().map(|items| items.iter().map(Value::as_str).collect());
        match texts {
            Some(Some(texts)) => Ok(texts),
            _ => Err(wrong(name, "a list of strings", Some(value))),
        }
    }

    /// The members of an object, which are texts; none when left out.
    pub(super) fn text_members(&self, name: &str) -> Result<Vec<(String, String)>, Trouble> {
        let Some(value) = self.0.get(name) else { return Ok(Vec::new()) };
        let texts = value.as_object().map(|members| {
            let texts =
                members.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            texts.collect::<Option<_>>()
        });
        texts.flatten().ok_or_else(|| wrong(name, "an object of strings", Some(value)))
    }

    /// A list of objects that must be there.
    pub(super) fn objects(&self, name: &str) -> Result<Vec<Self>, Trouble> {
        let value = self.0.get(name);
        let objects = value.and_then(Value::as_array).map(|items| {
            items.iter().map(|item| Some(Self(item.as_object()?.clone()))).collect::<Option<_>>()
        });
        match objects {
            Some(Some(objects)) => Ok(objects),
            _ => Err(wrong(name, "a list of objects", value)),
        }
    }

    /// How much memory texts take.
    pub(super) fn weight(&self) -> usize {
        fn of(value: &Value) -> usize {
            match value {
                Value::String(text) => text.len(),
                Value::Array(items) => items.iter().map(of).sum(),
                Value::Object(members) => members.iter().map(|(key, v)| key.len() + of(v)).sum(),
                _ => 8,
            }
        }
        self.0.iter().map(|(key, value)| key.len() + of(value)).sum()
    }

    /// All paths of a call about such an operation, and its pattern where that is one on paths.
    pub(super) fn paths(&self, kind: OperationKind) -> impl Iterator<Item = &str> {
        let pattern = Some("pattern").filter(|_| kind == OperationKind::Glob);
        let single = ["path", "from", "to"].into_iter().chain(pattern);
        let single = single.filter_map(|name| self.0.get(name));
        let several = self.0.get("paths").and_then(Value::as_array).into_iter().flatten();
        single.chain(several).filter_map(Value::as_str)
    }

    /// The path for the record of a call that is refused.
    pub(super) fn shown_path(&self) -> Option<&str> {
        ["path", "from", "source"].into_iter().find_map(|name| self.0.get(name)?.as_str())
    }
}

fn wrong(name: &str, expected: &str, found: Option<&Value>) -> Trouble {
    Trouble::Arguments(match found {
        None => format!("the argument `{name}` is missing; it must be {expected}"),
        Some(_) => format!("the argument `{name}` must be {expected}"),
    })
}
