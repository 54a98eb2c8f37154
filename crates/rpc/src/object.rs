//! A JSON object whose members keep their order and their exact text.
//!
//! Members that are not edited stay byte for byte, so numbers, unknown fields and nested texts
//! survive when a line is rebuilt.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::{RawValue, to_raw_value};

/// An object of raw members.
#[derive(Debug)]
pub struct Object<'a> {
    members: Vec<(String, Cow<'a, RawValue>)>,
}

impl<'a> Object<'a> {
    /// Parses an object; `None` if `text` is another kind of value.
    pub fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the text of the member `key`.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.members.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// Returns the text of the member `key` as parsed; `None` if it was replaced.
    pub fn borrowed(&self, key: &str) -> Option<&'a RawValue> {
        match self.members.iter().find(|(name, _)| name == key)? {
            (_, Cow::Borrowed(value)) => Some(value),
            (_, Cow::Owned(_)) => None,
        }
    }

    /// Parses the member `key` as an object.
    pub fn object(&self, key: &str) -> Option<Object<'_>> {
        Object::parse(self.get(key)?.get())
    }

    /// Replaces the member `key` in its place, or adds it at the end.
    pub fn set(&mut self, key: &str, value: Box<RawValue>) {
        match self.members.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = Cow::Owned(value),
            None => self.members.push((key.to_owned(), Cow::Owned(value))),
        }
    }

    /// Keeps the members for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &RawValue) -> bool) {
        self.members.retain(|(key, value)| keep(key, value));
    }

    /// Replaces every value; `None` if `change` returns `None`.
    pub fn change_values(
        &mut self,
        mut change: impl FnMut(&str, &RawValue) -> Option<Box<RawValue>>,
    ) -> Option<()> {
        for (key, value) in &mut self.members {
            *value = Cow::Owned(change(key, value)?);
        }
        Some(())
    }

    /// Returns the members in order.
    pub fn members(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.members.iter().map(|(key, value)| (key.as_str(), &**value))
    }

    /// Returns the object's text.
    pub fn to_raw(&self) -> Option<Box<RawValue>> {
        to_raw_value(self).ok()
    }
}

/// True if a reader that ignores case could take `key` for `name` (which is ASCII): some JSON
/// libraries match keys that way, with Unicode folding.
pub fn folds_to(key: &str, name: &str) -> bool {
    let fold = |c: char| c.to_uppercase().flat_map(char::to_lowercase);
    key.chars().flat_map(fold).eq(name.chars().flat_map(fold))
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(String, Cow<'de, RawValue>)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    members.push((key, Cow::Borrowed(value)));
                }
                Ok(members)
            }
        }

        Ok(Self { members: deserializer.deserialize_map(Members)? })
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.members.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_not_edited_keep_their_order_and_text() {
        let mut object = Object::parse(r#"{"z":1.50,"b":{"x" :1e2},"a":"\u0041"}"#).unwrap();
        object.set("b", to_raw_value(&7).unwrap());
        object.set("new", to_raw_value(&true).unwrap());
        assert_eq!(object.to_raw().unwrap().get(), r#"{"z":1.50,"b":7,"a":"\u0041","new":true}"#);
    }

    #[test]
    fn folding_sees_through_case_and_lookalikes() {
        for key in ["method", "Method", "METHOD"] {
            assert!(folds_to(key, "method"), "{key}");
        }
        assert!(folds_to("re\u{17f}ult", "result"), "long s");
        assert!(folds_to("\u{212a}ey", "key"), "kelvin sign");
        assert!(!folds_to("methods", "method"));
    }
}
