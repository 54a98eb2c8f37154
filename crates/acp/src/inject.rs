//! The gateway's entry among the MCP servers of a session (ACP v1: `mcpServers` of `session/new`,
//! `session/load`, `session/resume` and `session/fork`).
//!
//! Only this and `initialize` change messages of the editor. The line stays the same, byte for
//! byte, but for one more entry at the end of the list.

use std::collections::HashSet;

use portcullis_rpc::Object;
use serde_json::{json, value::RawValue};

use crate::mcp_attach::{ATTACH_TOKEN, AttachTokens};

/// The name of the parameter.
const LIST: &str = "mcpServers";
/// The server's name, unless the editor has a server of that name.
const NAME: &str = "portcullis";

/// Adds the gateway's own server, with its `token`, to the line; `None` if the line has no place
/// for it.
pub(super) fn add(line: &str, tokens: &AttachTokens, token: &str) -> Option<String> {
    let message = Object::parse(line)?;
    let params = message.borrowed("params")?;
    let members = Object::parse(params.get())?;
    match members.borrowed(LIST).map(|list| (list, list.get())) {
        Some((list, text)) if text.starts_with('[') => {
            let there: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            let entry = entry(&there, tokens, token);
            let end = offset(line, list)?.checked_add(text.len())?.checked_sub(1)?;
            let comma = if there.is_empty() { "" } else { "," };
            splice(line, end, 0, &format!("{comma}{entry}"))
        }
        Some((list, text @ "null")) => {
            let entry = entry(&[], tokens, token);
            splice(line, offset(line, list)?, text.len(), &format!("[{entry}]"))
        }
        Some(_) => None,
        None => {
            let entry = entry(&[], tokens, token);
            let comma = if members.members().next().is_some() { "," } else { "" };
            let start = offset(line, params)?.checked_add(1)?;
            splice(line, start, 0, &format!("\"{LIST}\":[{entry}]{comma}"))
        }
    }
}

/// Makes the `McpServerStdio` of the schema.
fn entry(there: &[&RawValue], tokens: &AttachTokens, token: &str) -> String {
    let names: HashSet<String> = there
        .iter()
        .filter_map(|server| {
            serde_json::from_str(Object::parse(server.get())?.get("name")?.get()).ok()
        })
        .collect();
    let mut name = NAME.to_owned();
    let mut number = 2_u32;
    while names.contains(&name) {
        name = format!("{NAME}-{number}");
        number = number.saturating_add(1);
    }
    let (program, socket) = tokens.command();
    json!({
        "name": name,
        "command": program,
        "args": ["mcp", "--connect", socket],
        "env": [{"name": ATTACH_TOKEN, "value": token}],
    })
    .to_string()
}

/// Returns the offset of a part of `line`.
fn offset(line: &str, part: &RawValue) -> Option<usize> {
    let start = part.get().as_ptr().addr().checked_sub(line.as_ptr().addr())?;
    // The part is a slice of the line; this is checked nevertheless.
    line.get(start..)?.starts_with(part.get()).then_some(start)
}

fn splice(line: &str, at: usize, remove: usize, new: &str) -> Option<String> {
    let (before, after) = (line.get(..at)?, line.get(at.checked_add(remove)?..)?);
    Some([before, new, after].concat())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn added(line: &str) -> Option<String> {
        let tokens = AttachTokens::new(Path::new("/p"), Path::new("/s"));
        add(line, &tokens, "w")
    }

    const ENTRY: &str = r#"{"args":["mcp","--connect","/s"],"command":"/p","env":[{"name":"PORTCULLIS_ATTACH_TOKEN","value":"w"}],"name":"portcullis"}"#;

    #[test]
    fn only_the_list_grows_and_everything_else_stays_byte_for_byte() {
        let line = |list: &str| {
            format!(
                r#" {{ "id" : 1.50,"params":{{"cwd":"/\u0061", "mcp\u0053ervers" : {list} ,"_meta":{{"k":1e2}}}} ,"method":"session/new","x":[] }}"#
            )
        };
        for (before, after) in [
            ("[]", format!("[{ENTRY}]")),
            ("[ ]", format!("[ {ENTRY}]")),
            ("null", format!("[{ENTRY}]")),
            (r#"[{"name":"a"} ]"#, format!(r#"[{{"name":"a"}} ,{ENTRY}]"#)),
            (
                r#"[{"name":"portcullis"},{"name":"portcullis-2"},7]"#,
                format!(
                    r#"[{{"name":"portcullis"}},{{"name":"portcullis-2"}},7,{}]"#,
                    ENTRY.replace("\"portcullis\"", "\"portcullis-3\"")
                ),
            ),
        ] {
            assert_eq!(added(&line(before)).unwrap(), line(&after));
        }
    }

    #[test]
    fn a_line_without_the_list_gets_one() {
        assert_eq!(
            added(r#"{"params":{}}"#).unwrap(),
            format!(r#"{{"params":{{"mcpServers":[{ENTRY}]}}}}"#)
        );
        assert_eq!(
            added(r#"{"params":{"cwd":"/"}}"#).unwrap(),
            format!(r#"{{"params":{{"mcpServers":[{ENTRY}],"cwd":"/"}}}}"#)
        );
    }

    #[test]
    fn what_is_no_list_is_left_alone() {
        for line in [r#"{"params":{"mcpServers":{}}}"#, r#"{"params":[]}"#, r#"{"id":1}"#] {
            assert_eq!(added(line), None, "{line}");
        }
    }
}
