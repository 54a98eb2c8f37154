//! What can be seen of a line or message that is refused: whoever waits because of
//! it should be told.

use std::{borrow::Cow, fmt};

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The envelope of a message, as far as it can be read.
#[derive(Debug)]
pub(super) struct Glimpse<'a> {
    /// Under which key the id stands.
    key: &'static str,
    id: Option<&'a RawValue>,
    ambiguous: bool,
    /// Whether it could be read to its end.
    pub(super) whole: bool,
    /// The first `type`.
    pub(super) kind: Option<&'a RawValue>,
    /// It looks like a request.
    pub(super) method: bool,
    /// It looks like a reply.
    pub(super) outcome: bool,
}

impl<'a> Glimpse<'a> {
    /// Reads a line of JSON-RPC of which `head` is the beginning.
    pub(super) fn of(head: &'a [u8]) -> Self {
        Self::by("id", head)
    }

    /// The same of a message that has its id under `key`.
    pub(super) fn by(key: &'static str, head: &'a [u8]) -> Self {
        let mut glimpse = Self {
            key,
            id: None,
            ambiguous: false,
            whole: false,
            kind: None,
            method: false,
            outcome: false,
        };
        // The error at the place where the line breaks off or goes wrong is
        // expected; what was seen until then counts.
        let mut reader = serde_json::Deserializer::from_slice(head);
        let read = reader.deserialize_map(&mut glimpse).and_then(|()| reader.end());
        glimpse.whole = read.is_ok();
        glimpse
    }

    /// Whether there is an id of whatever kind.
    pub(super) fn has_id(&self) -> bool {
        self.id.is_some()
    }

    /// The id, if there is certainly no other one before the line goes wrong.
    pub(super) fn id(&self) -> Option<&'a RawValue> {
        self.id.filter(|_| !self.ambiguous)
    }
}

impl<'de> Visitor<'de> for &mut Glimpse<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut last = None;
        loop {
            let key = members.next_key::<Cow<'_, str>>()?;
            // Of a number with which a line breaks off the end may be missing.
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
                Some("method") => self.method = true,
                Some("result" | "error") => self.outcome = true,
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
    fn the_id_is_found_unless_another_may_be_meant() {
        let id = |head: &str| Glimpse::of(head.as_bytes()).id().map(|id| id.get().to_owned());
        assert_eq!(id(r#"{"id":12,"method":"x","params":{"content":"xx"#), Some("12".to_owned()));
        assert_eq!(id(r#"{"params":{"a":1,"a":2},"id":"a","x":NaN}"#), Some("\"a\"".to_owned()));
        assert_eq!(id(r#"{"method":"x","id":12"#), None);
        assert_eq!(id(r#"{"id":1,"id":2,"method":"x"}"#), None);
        assert_eq!(id(r#"{"params":{"id":1},"method":"x"}"#), None);
        assert_eq!(id(r#"[{"id":1,"method":"x"}]"#), None);
    }
}
