//! The envelope of a refused message, which determines who gets the error: its sender, or the party
//! that waits for the reply.

use std::{borrow::Cow, fmt};

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The envelope of a message, as far as it can be parsed.
#[derive(Debug)]
pub struct PartialEnvelope<'a> {
    /// The key of the ID.
    key: &'static str,
    id: Option<&'a RawValue>,
    ambiguous: bool,
    /// True if it was parsed to its end.
    pub is_complete: bool,
    /// The first `type`.
    pub kind: Option<&'a RawValue>,
    /// True if it has a `method`, as requests have.
    pub has_method: bool,
    /// True if it has a `result` or an `error`, as replies have.
    pub has_outcome: bool,
}

impl<'a> PartialEnvelope<'a> {
    /// Parses the first bytes of a JSON-RPC line.
    pub fn read(head: &'a [u8]) -> Self {
        Self::read_with("id", head)
    }

    /// Parses the first bytes of a message that has its ID under `key`.
    pub fn read_with(key: &'static str, head: &'a [u8]) -> Self {
        let mut envelope = Self {
            key,
            id: None,
            ambiguous: false,
            is_complete: false,
            kind: None,
            has_method: false,
            has_outcome: false,
        };
        // An error is expected where the head ends or is malformed; the members before it count.
        let mut reader = serde_json::Deserializer::from_slice(head);
        let read = reader.deserialize_map(&mut envelope).and_then(|()| reader.end());
        envelope.is_complete = read.is_ok();
        envelope
    }

    /// True if there is an ID of any kind.
    pub(crate) fn has_id(&self) -> bool {
        self.id.is_some()
    }

    /// Returns the ID, if there is no second one before an error.
    pub fn id(&self) -> Option<&'a RawValue> {
        self.id.filter(|_| !self.ambiguous)
    }
}

impl<'de> Visitor<'de> for &mut PartialEnvelope<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut last = None;
        loop {
            let key = members.next_key::<Cow<'_, str>>()?;
            // The digits of a number at the end of the head may be incomplete.
            self.id = self.id.or(last.take());
            match key.as_deref() {
                Some(key) if key == self.key => {
                    self.ambiguous |= self.id.is_some();
                    last = Some(members.next_value()?);
                    continue;
                }
                Some("type") if self.kind.is_none() => {
                    self.kind = Some(members.next_value()?);
                    continue;
                }
                Some("method") => self.has_method = true,
                Some("result" | "error") => self.has_outcome = true,
                Some(_) => {}
                None => return Ok(()),
            }
            members.next_value::<IgnoredAny>()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_counts_unless_there_may_be_another() {
        let id =
            |head: &str| PartialEnvelope::read(head.as_bytes()).id().map(|id| id.get().to_owned());
        assert_eq!(id(r#"{"id":12,"method":"x","params":{"content":"xx"#), Some("12".to_owned()));
        assert_eq!(id(r#"{"params":{"a":1,"a":2},"id":"a","x":NaN}"#), Some("\"a\"".to_owned()));
        assert_eq!(id(r#"{"method":"x","id":12"#), None);
        assert_eq!(id(r#"{"id":1,"id":2,"method":"x"}"#), None);
        assert_eq!(id(r#"{"params":{"id":1},"method":"x"}"#), None);
        assert_eq!(id(r#"[{"id":1,"method":"x"}]"#), None);
    }
}
