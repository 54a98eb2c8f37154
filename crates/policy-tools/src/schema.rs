//! The JSON Schema of policy files, for editors. It is generated from the table of keys that files
//! are checked with, so the two cannot disagree.
//!
//! Draft 7, which every TOML language server supports. `policy check` refuses everything that the
//! schema refuses. Only `policy check` verifies the meaning of a string beyond its form, and two
//! files together.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};

use super::descriptions::description;
use crate::policy::{Field, KEYS, Shape, Status, StringFormat};

/// The file name in `#:schema` lines.
pub const SCHEMA_FILE: &str = "policy.schema.json";

/// Returns the JSON Schema of policy files.
pub fn json_schema() -> Value {
    SchemaSettings::draft07().into_generator().into_root_schema_for::<PolicyFile>().to_value()
}

/// A policy file, as described by its table of keys.
struct PolicyFile;

impl JsonSchema for PolicyFile {
    fn schema_name() -> Cow<'static, str> {
        "Portcullis policy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let Value::Object(mut schema) = table(KEYS, "") else { return json_schema!({}) };
        schema.insert(
            "description".to_owned(),
            "What an agent may do with the files of a workspace. Reference: docs/policy.md".into(),
        );
        schema.into()
    }
}

fn table(fields: &[Field], path: &str) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| {
            let path = if path.is_empty() {
                field.key.to_owned()
            } else {
                format!("{path}.{}", field.key)
            };
            let mut schema = shape(field.shape, &path);
            if let (Some(text), Value::Object(schema)) = (description(&path), &mut schema) {
                schema.insert("description".to_owned(), text.into());
            }
            (field.key.to_owned(), schema)
        })
        .collect();
    let required: Vec<_> = fields
        .iter()
        .filter(|field| field.status == Status::Required)
        .map(|field| field.key)
        .collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if let Value::Object(schema) = &mut schema {
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
        if let Value::Object(relation) = relation(path) {
            schema.extend(relation);
        }
    }
    schema
}

/// Returns the constraints between the keys of one table.
fn relation(path: &str) -> Value {
    match path {
        "rules" => json!({
            "if": { "properties": { "effect": { "const": "allow" } }, "required": ["effect"] },
            "then": { "required": ["operations"] },
        }),
        "secrets" => json!({
            "if": { "properties": { "onRead": { "const": "redact" } }, "required": ["onRead"] },
            "then": { "properties": { "onWrite": { "not": { "const": "warn" } } } },
        }),
        "network.rules" => json!({
            "if": {
                "anyOf": [
                    { "properties": { "effect": { "const": "deny" } }, "required": ["effect"] },
                    { "required": ["whenRead"] },
                ],
            },
            "then": {
                "if": { "required": ["whenRead"] },
                "then": { "not": { "properties": { "effect": { "const": "allow" } }, "required": ["effect"] } },
                "else": { "not": { "required": ["except"] } },
            },
            "else": { "required": ["ports"], "not": { "required": ["except"] } },
        }),
        "tests" => {
            let is = |operation: &str| {
                json!({
                    "properties": { "operation": { "const": operation } },
                    "required": ["operation"],
                })
            };
            let has_any = |keys: &[&str]| {
                let each = keys.iter().map(|key| json!({ "required": [key] }));
                json!({ "anyOf": each.collect::<Vec<_>>() })
            };
            json!({
                "if": is("connect"),
                "then": { "required": ["host", "port"], "not": has_any(&["path", "to"]) },
                "else": {
                    "required": ["path"],
                    "not": has_any(&["host", "port", "address", "whenRead"]),
                    "if": is("rename"),
                    "then": { "required": ["to"] },
                    "else": { "not": { "required": ["to"] } },
                },
            })
        }
        _ => Value::Null,
    }
}

fn shape(shape_of: Shape, path: &str) -> Value {
    match shape_of {
        Shape::Text => json!({ "type": "string" }),
        Shape::Formed(StringFormat { pattern, never: None }) => {
            json!({ "type": "string", "pattern": pattern })
        }
        Shape::Formed(StringFormat { pattern, never: Some(never) }) => {
            json!({ "type": "string", "pattern": pattern, "not": { "pattern": never } })
        }
        Shape::Size => json!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB|TiB)$" }),
        Shape::Duration => json!({ "type": "string", "pattern": "^0*[1-9][0-9]*(ms|s|m|h)$" }),
        Shape::Integer(low, high) => {
            json!({ "type": "integer", "minimum": low, "maximum": high })
        }
        Shape::Number => json!({ "type": "number", "minimum": 0 }),
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Word(words) => json!({ "type": "string", "enum": words }),
        Shape::List(element) => json!({ "type": "array", "items": shape(*element, path) }),
        Shape::Filled(element) => {
            json!({ "type": "array", "items": shape(*element, path), "minItems": 1 })
        }
        Shape::Table(fields) => table(fields, path),
        Shape::Texts => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        Shape::Tables(fields) => json!({ "type": "array", "items": table(fields, path) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects every key with the path of its table.
    fn keys(fields: &[Field], path: &str, found: &mut Vec<String>) {
        for field in fields {
            let path = if path.is_empty() {
                field.key.to_owned()
            } else {
                format!("{path}.{}", field.key)
            };
            match field.shape {
                Shape::Table(inner) | Shape::Tables(inner) => {
                    keys(inner, &path, found);
                }
                _ => {}
            }
            found.push(path);
        }
    }

    #[test]
    fn every_key_has_a_description() {
        let mut found = Vec::new();
        keys(KEYS, "", &mut found);
        assert!(found.len() > 50, "{found:?}");
        let missing: Vec<_> = found.iter().filter(|path| description(path).is_none()).collect();
        assert!(missing.is_empty(), "describe these in `descriptions.rs`: {missing:?}");
    }

    #[test]
    fn the_schema_is_of_the_draft_that_editors_know() {
        let schema = json_schema();
        assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
        assert_eq!(schema["properties"]["schema"]["minimum"], 1);
        assert_eq!(schema["required"], json!(["schema"]));
        let effect = &schema["properties"]["rules"]["items"]["properties"]["effect"];
        assert!(effect["enum"].as_array().unwrap().contains(&json!("deny")));
    }
}
