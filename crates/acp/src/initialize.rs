//! Changes of `initialize`, and of login methods in errors.
//!
//! Towards the agent, protocol version 1 at most is offered, and `fs`, which the gateway serves:
//! with [`SourceMode::Editor`] as far as the editor does, with [`SourceMode::Mount`] not at all.
//! Terminals are offered if the gateway serves them, and the editor's if the operator forwards
//! their methods. Towards the editor everything is removed that would make it act for the agent.
//! The schema (ACP v1) and editors in use have these:
//!
//! * `authMethods[]` by which the editor would act (`logins`). Of the others the fields `id`,
//!   `name`, `description` and `type` pass.
//! * `_meta` of any object in the reply: `terminal-auth` of an entry of `authMethods` names a
//!   complete command line to run, and vendor keys of capabilities enable methods of the vendor.
//!   Keys pass by name only.
//! * `agentCapabilities.nes`: the editor applies edits that the agent suggests to files;
//!   `mcpCapabilities.acp`: MCP servers of the editor, reached by `mcp/*` requests that do not
//!   pass.
//!
//! Older clients also read `authMethods` from an error reply (`auth_required`), which is edited
//! likewise.

use portcullis_rpc::{Object, folds_to};
use serde_json::value::{RawValue, to_raw_value};

use super::{
    allowed::Allowed,
    config::SourceMode,
    logins::{self, AUTH_REQUIRED, RemovedLogin},
};

/// Maximum size of a reply to `initialize`, in bytes: every level of it is examined.
const MAX_REPLY: usize = 1024 * 1024;

/// The file methods that the editor offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct EditorCapabilities {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// Reasons why the reply cannot be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReplyError {
    #[error("the agent does not speak version 1 of the protocol")]
    Version,
    #[error("the agent's reply to `initialize` is too large or not an object")]
    Shape,
}

/// Edits the editor's request line; returns the new line and the editor's offers. `None` if the
/// line has no object to edit.
pub(super) fn request(
    line: &str,
    allowed: &Allowed,
    source: SourceMode,
) -> Option<(Vec<u8>, EditorCapabilities)> {
    let mut message = Object::parse(line)?;
    let mut params = message.object("params")?;
    let offers = clamp(&mut params, allowed, source)?;
    let params = params.to_raw()?;
    message.set("params", params);
    Some((serde_json::to_vec(&message).ok()?, offers))
}

fn clamp(
    params: &mut Object<'_>,
    allowed: &Allowed,
    source: SourceMode,
) -> Option<EditorCapabilities> {
    if params.get("protocolVersion").is_some_and(|version| !matches!(version.get(), "0" | "1")) {
        params.set("protocolVersion", to_raw_value(&1).ok()?);
    }
    let mut capabilities = params.object("clientCapabilities").or_else(empty)?;
    let mut fs = capabilities.object("fs").or_else(empty)?;
    let offered = |key| fs.get(key).is_some_and(|value| value.get() == "true");
    let offers =
        EditorCapabilities { read: offered("readTextFile"), write: offered("writeTextFile") };
    let served = match source {
        SourceMode::Auto | SourceMode::Disk => EditorCapabilities { read: true, write: true },
        // A write reads the old content first.
        SourceMode::Editor => EditorCapabilities { write: offers.read && offers.write, ..offers },
        SourceMode::Mount => EditorCapabilities::default(),
    };
    fs.set("readTextFile", to_raw_value(&served.read).ok()?);
    fs.set("writeTextFile", to_raw_value(&served.write).ok()?);
    let fs = fs.to_raw()?;
    capabilities.set("fs", fs);
    if !allowed.any_terminal() {
        capabilities.set("terminal", to_raw_value(&allowed.serves_terminals()).ok()?);
        if let Some(mut auth) = capabilities.object("auth") {
            auth.set("terminal", to_raw_value(&false).ok()?);
            let auth = auth.to_raw()?;
            capabilities.set("auth", auth);
        }
    }
    if let Some(mut meta) = capabilities.object("_meta") {
        meta.retain(|key, _| key != "terminal-auth" || allowed.named(key));
        let meta = meta.to_raw()?;
        capabilities.set("_meta", meta);
    }
    capabilities.retain(|key, _| key != "elicitation" || allowed.named("elicitation/create"));
    let capabilities = capabilities.to_raw()?;
    params.set("clientCapabilities", capabilities);
    Some(offers)
}

fn empty<'a>() -> Option<Object<'a>> {
    Object::parse("{}")
}

/// Removes members of the result of the agent's reply; `None` if it stays unchanged.
pub(super) fn result(
    raw: &RawValue,
    allowed: &Allowed,
) -> Result<Option<Box<RawValue>>, ReplyError> {
    if raw.get().len() > MAX_REPLY {
        return Err(ReplyError::Shape);
    }
    let object = Object::parse(raw.get()).ok_or(ReplyError::Shape)?;
    let versions = object.members().filter(|(key, _)| folds_to(key, "protocolVersion"));
    if !versions.map(|(_, value)| value.get()).eq(["1"]) {
        return Err(ReplyError::Version);
    }
    changed(raw, clean(raw, allowed, ReplyPosition::Result).ok_or(ReplyError::Shape)?)
}

/// Removes members of the error of an agent's reply to any request; `None` if it stays unchanged.
/// If login methods were `removed` before, an error that asks for a login names them: the editor
/// cannot offer them.
pub(super) fn error(
    raw: &RawValue,
    allowed: &Allowed,
    removed: &[RemovedLogin],
) -> Result<Option<Box<RawValue>>, ReplyError> {
    let cleaned = cleaned_error(raw, allowed)?;
    let explained = explained(cleaned.as_deref().unwrap_or(raw), removed);
    Ok(explained.or(cleaned))
}

/// Adds the `removed` login methods to the message of an error; `None` if the error asks for no
/// login.
fn explained(raw: &RawValue, removed: &[RemovedLogin]) -> Option<Box<RawValue>> {
    let mut error = Object::parse(raw.get())?;
    if removed.is_empty() || error.get("code")?.get() != AUTH_REQUIRED {
        return None;
    }
    let message: String = serde_json::from_str(error.get("message")?.get()).ok()?;
    let text = format!("{message} ({})", logins::explain(removed));
    error.set("message", to_raw_value(&text).ok()?);
    error.to_raw()
}

fn cleaned_error(raw: &RawValue, allowed: &Allowed) -> Result<Option<Box<RawValue>>, ReplyError> {
    let mentions =
        |object: &Object<'_>| object.members().any(|(key, _)| folds_to(key, "authMethods"));
    let object = Object::parse(raw.get()).ok_or(ReplyError::Shape)?;
    let mut data = object.members().filter(|(key, _)| folds_to(key, "data"));
    let within = |value: &RawValue| Object::parse(value.get()).is_some_and(|data| mentions(&data));
    if !mentions(&object) && !data.any(|(_, value)| within(value)) {
        return Ok(None);
    }
    if raw.get().len() > MAX_REPLY {
        return Err(ReplyError::Shape);
    }
    changed(raw, clean(raw, allowed, ReplyPosition::Result).ok_or(ReplyError::Shape)?)
}

fn changed(old: &RawValue, new: Box<RawValue>) -> Result<Option<Box<RawValue>>, ReplyError> {
    // The comparison ignores insignificant white space, which rebuilding drops.
    let plain = |raw: &RawValue| serde_json::from_str::<serde_json::Value>(raw.get()).ok();
    Ok((plain(old) != plain(&new)).then_some(new))
}

/// The position of a value in the reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyPosition {
    Result,
    AgentCapabilities,
    McpCapabilities,
    AuthMethods,
    AuthMethod,
    Meta,
    Else,
}

impl ReplyPosition {
    fn member(self, key: &str) -> Self {
        let is = |name| folds_to(key, name);
        match self {
            _ if is("_meta") => Self::Meta,
            Self::Result if is("data") => Self::Result,
            Self::Result if is("agentCapabilities") => Self::AgentCapabilities,
            Self::Result if is("authMethods") => Self::AuthMethods,
            Self::AgentCapabilities if is("mcpCapabilities") => Self::McpCapabilities,
            _ => Self::Else,
        }
    }

    fn keeps(self, key: &str, allowed: &Allowed) -> bool {
        match self {
            Self::Meta => allowed.named(key),
            Self::AuthMethod => {
                matches!(key, "id" | "name" | "description" | "type" | "_meta")
                    || (allowed.any_terminal() && matches!(key, "args" | "env"))
            }
            Self::AgentCapabilities => !folds_to(key, "nes") || allowed.named("nes/suggest"),
            Self::McpCapabilities => !folds_to(key, "acp") || allowed.named("mcp/connect"),
            Self::Result => !folds_to(key, "authMethods") || key == "authMethods",
            Self::AuthMethods | Self::Else => true,
        }
    }
}

fn clean(raw: &RawValue, allowed: &Allowed, place: ReplyPosition) -> Option<Box<RawValue>> {
    let text = raw.get();
    if text.starts_with('{') {
        let mut object = Object::parse(text)?;
        object.retain(|key, value| {
            place.keeps(key, allowed)
                && match place {
                    ReplyPosition::Result if folds_to(key, "authMethods") => {
                        value.get().starts_with('[')
                    }
                    ReplyPosition::AuthMethod if key == "type" => logins::keeps_type(value),
                    _ => true,
                }
        });
        object.change_values(|key, value| match place {
            // Values that the operator forwards pass unchanged.
            ReplyPosition::Meta => Some(value.to_owned()),
            _ => clean(value, allowed, place.member(key)),
        })?;
        return object.to_raw();
    }
    if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        let inner = if place == ReplyPosition::AuthMethods {
            ReplyPosition::AuthMethod
        } else {
            ReplyPosition::Else
        };
        let kept = items
            .into_iter()
            .filter(|item| inner == ReplyPosition::Else || logins::passes(item, allowed));
        let cleaned: Option<Vec<_>> = kept.map(|item| clean(item, allowed, inner)).collect();
        return to_raw_value(&cleaned?).ok();
    }
    Some(raw.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn none() -> Allowed {
        Allowed::new(&[], false).unwrap()
    }

    fn cleaned(value: &Value, allowed: &Allowed) -> Value {
        let raw = to_raw_value(value).unwrap();
        let new = result(&raw, allowed).unwrap().unwrap_or(raw);
        serde_json::from_str(new.get()).unwrap()
    }

    #[test]
    fn the_agent_is_offered_fs_and_no_terminal() {
        let line = r#"{"id":0.50,"params":{"z":1.0,"protocolVersion":7,"clientCapabilities":{"elicitation":{"form":{}},"terminal":true,"fs":{"readTextFile":true,"_meta":{"k":1e1}},"auth":{"terminal":true},"_meta":{"terminal-auth":true,"terminal_output":true}},"clientInfo":{"name":"e"}}}"#;
        let (line, offers) = request(line, &none(), SourceMode::Auto).unwrap();
        assert_eq!(
            String::from_utf8(line).unwrap(),
            r#"{"id":0.50,"params":{"z":1.0,"protocolVersion":1,"clientCapabilities":{"terminal":false,"fs":{"readTextFile":true,"_meta":{"k":1e1},"writeTextFile":true},"auth":{"terminal":false},"_meta":{"terminal_output":true}},"clientInfo":{"name":"e"}}}"#
        );
        assert_eq!(offers, EditorCapabilities { read: true, write: false });
    }

    #[test]
    fn a_client_without_capabilities_offers_nothing_and_the_gateway_offers_fs() {
        for params in
            [r#"{"protocolVersion":1}"#, r#"{"protocolVersion":1,"clientCapabilities":null}"#]
        {
            let line = format!(r#"{{"params":{params}}}"#);
            let (line, offers) = request(&line, &none(), SourceMode::Disk).unwrap();
            let line: Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(
                line["params"]["clientCapabilities"],
                json!({"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": false})
            );
            assert_eq!(offers, EditorCapabilities::default());
        }
    }

    /// Every write was refused with -32602.
    #[test]
    fn of_an_editor_that_alone_serves_files_no_more_is_offered_than_it_has() {
        for (read, write, served) in [
            (true, true, [true, true]),
            (true, false, [true, false]),
            (false, true, [false, false]),
            (false, false, [false, false]),
        ] {
            let fs = json!({"readTextFile": read, "writeTextFile": write});
            let line = json!({"params": {"clientCapabilities": {"fs": fs}}}).to_string();
            let (line, offers) = request(&line, &none(), SourceMode::Editor).unwrap();
            let line: Value = serde_json::from_slice(&line).unwrap();
            let fs = &line["params"]["clientCapabilities"]["fs"];
            assert_eq!([&fs["readTextFile"], &fs["writeTextFile"]], served, "{fs}");
            assert_eq!(offers, EditorCapabilities { read, write });
        }
    }

    /// Gemini CLI 0.61 made no new file if an editor served files: it does not recognize the error
    /// for a missing one.
    #[test]
    fn with_a_mount_for_its_source_an_agent_is_offered_no_files() {
        let fs = json!({"readTextFile": true, "writeTextFile": true});
        let line = json!({"params": {"clientCapabilities": {"fs": fs}}}).to_string();
        let (line, _) = request(&line, &none(), SourceMode::Mount).unwrap();
        let line: Value = serde_json::from_slice(&line).unwrap();
        let expected = json!({"readTextFile": false, "writeTextFile": false});
        assert_eq!(line["params"]["clientCapabilities"]["fs"], expected);
    }

    #[test]
    fn nothing_that_runs_a_command_reaches_the_editor() {
        let reply = json!({
            "protocolVersion": 1,
            "_meta": {"vendor": 1},
            "agentCapabilities": {
                "loadSession": true, "nes": {}, "_meta": {"vendor.run": true},
                "mcpCapabilities": {"http": true, "acp": true},
                "promptCapabilities": {"image": true, "_META": {"x": 1}}
            },
            "authMethods": [
                {"id": "a", "name": "A", "_meta": {"terminal-auth": {"command": "sh", "args": ["-c", "id"]}}},
                {"id": "b", "name": "B", "type": "agent", "args": ["--x"], "command": "sh"},
                {"id": "c", "name": "C", "type": "terminal", "args": ["--x"], "env": {"LD_PRELOAD": "x"}},
                {"id": "d", "name": "D", "type": "env_var", "vars": [{"name": "PATH"}]},
                {"id": "e", "name": "E", "Type": "terminal"},
                "f"
            ],
            "AuthMethods": [{"id": "g", "type": "terminal"}]
        });
        assert_eq!(
            cleaned(&reply, &none()),
            json!({
                "protocolVersion": 1,
                "_meta": {},
                "agentCapabilities": {
                    "loadSession": true, "_meta": {},
                    "mcpCapabilities": {"http": true},
                    "promptCapabilities": {"image": true, "_META": {}}
                },
                "authMethods": [
                    {"id": "a", "name": "A", "_meta": {}},
                    {"id": "b", "name": "B", "type": "agent"}
                ]
            })
        );
    }

    #[test]
    fn the_operator_can_name_what_passes() {
        let allowed =
            Allowed::new(&["terminal/create".into(), "terminal-auth".into()], false).unwrap();
        let reply = json!({"protocolVersion": 1, "authMethods": [
            {"id": "c", "type": "terminal", "args": ["--x"], "_meta": {"terminal-auth": {"command": "c"}, "o": 1}}
        ]});
        assert_eq!(
            cleaned(&reply, &allowed)["authMethods"],
            json!([{"id": "c", "type": "terminal", "args": ["--x"], "_meta": {"terminal-auth": {"command": "c"}}}])
        );
    }

    /// A method whose variables the operator gave was removed, so no editor could log in.
    #[test]
    fn a_login_by_variables_that_the_operator_gave_is_one_of_the_agents_own() {
        let allowed = none().with_variables(["KEY".to_owned()]);
        let reply = json!({"protocolVersion": 1, "authMethods": [
            {"type": "env_var", "id": "k", "name": "K", "vars": [{"name": "KEY"}], "link": "x"},
            {"type": "env_var", "id": "o", "name": "O", "vars": [{"name": "OTHER"}]},
        ]});
        assert_eq!(cleaned(&reply, &allowed)["authMethods"], json!([{"id": "k", "name": "K"}]));
    }

    #[test]
    fn a_harmless_reply_is_left_alone() {
        let raw = RawValue::from_string(
            r#"{ "protocolVersion":1, "agentCapabilities":{"loadSession":true}, "authMethods":[{"id":"a","name":"A"}], "x":1.0 }"#.into(),
        )
        .unwrap();
        assert!(result(&raw, &none()).unwrap().is_none());
    }

    #[test]
    fn a_reply_of_very_many_members_is_cleaned() {
        let many: Vec<_> = (0..90_000).map(|n| format!("\"{n}\":0")).collect();
        let text = format!(r#"{{"protocolVersion":1,"_meta":{{"x":0}},{}}}"#, many.join(","));
        let raw = RawValue::from_string(text).unwrap();
        assert!(result(&raw, &none()).unwrap().is_some());
    }

    #[test]
    fn another_version_of_the_protocol_is_refused() {
        for version in ["2", "\"1\"", "1.0", "null"] {
            let raw = RawValue::from_string(format!(r#"{{"protocolVersion":{version}}}"#)).unwrap();
            assert_eq!(result(&raw, &none()).unwrap_err(), ReplyError::Version);
        }
        let raw =
            RawValue::from_string(r#"{"protocolVersion":1,"ProtocolVersion":2}"#.into()).unwrap();
        assert_eq!(result(&raw, &none()).unwrap_err(), ReplyError::Version);
    }

    #[test]
    fn an_error_that_asks_for_a_login_names_the_removed_methods() {
        let reply = json!({"protocolVersion": 1, "authMethods": [
            {"id": "a", "name": "A"}, {"id": "c", "name": "C\u{1b}[1m", "type": "terminal"}]});
        let removed = logins::removed(&to_raw_value(&reply).unwrap(), &none());
        let names: Vec<_> = removed.iter().map(|login| login.name.as_str()).collect();
        assert_eq!(names, ["C\u{1b}[1m"]);
        let asks = to_raw_value(&json!({"code": -32000, "message": "Authentication required"}));
        let new = error(&asks.unwrap(), &none(), &removed).unwrap().unwrap();
        let new: Value = serde_json::from_str(new.get()).unwrap();
        let message = new["message"].as_str().unwrap();
        assert!(message.starts_with("Authentication required (Portcullis"), "{message}");
        assert!(message.contains("--agent-env") && !message.contains('\u{1b}'), "{message}");
        let other = to_raw_value(&json!({"code": -32603, "message": "m"})).unwrap();
        assert!(error(&other, &none(), &removed).unwrap().is_none());
    }

    #[test]
    fn methods_in_an_error_are_cleaned_too() {
        let raw = to_raw_value(&json!({"code": -32000, "message": "m", "data": {
            "authMethods": [{"id": "c", "type": "terminal"}], "other": 1}}))
        .unwrap();
        let new = error(&raw, &none(), &[]).unwrap().unwrap();
        let new: Value = serde_json::from_str(new.get()).unwrap();
        assert_eq!(new["data"], json!({"authMethods": [], "other": 1}));
        // A reader may ignore the case of keys.
        let other = to_raw_value(&json!({"code": -32000, "message": "m", "Data": {
            "authMethods": [{"id": "c", "type": "terminal"}]}}))
        .unwrap();
        let new = error(&other, &none(), &[]).unwrap().unwrap();
        assert!(!new.get().contains("terminal"), "{new}");
        let plain = to_raw_value(&json!({"code": 1, "message": "m"})).unwrap();
        assert!(error(&plain, &none(), &[]).unwrap().is_none());
    }
}
