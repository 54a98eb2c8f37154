//! The statements of one policy file, parsed: patterns, sizes, rules, tests.
//!
//! Values of the wrong type are skipped here because [`check`](super::check) has reported them; a
//! file with any report does not become part of a policy.

mod labels;
mod located;
mod network;
mod reader;
mod rules;
mod secrets;
mod sections;

use std::ops::Range;

use toml::de::DeTable;

pub(super) use labels::StatedLabel;
pub(super) use located::StatedPattern;
use located::{Located, StatedList};
pub(super) use network::StatedNetworkRule;
pub use rules::Agents;
#[cfg(test)]
pub(super) use rules::BUILT_IN;
pub(super) use rules::{Rule, Test, TestSubject};
pub(super) use secrets::ContentSecrets;
pub use sections::is_extension;

use super::{
    action_set::PerAccess,
    check,
    diagnostics::{Diagnostics, Problem, Source, is_syntax_error, syntax_problems},
    mode::Mode,
    network::StatedNetwork,
    settings::StatedSettings,
};
use reader::Reader;

/// One file as written.
#[derive(Debug, Clone, Default)]
pub(super) struct Statements {
    pub(super) name: Option<String>,
    pub(super) version: Option<u64>,
    pub(super) mode: Option<Mode>,
    pub(super) allowed: PerAccess<Option<StatedList<StatedPattern>>>,
    pub(super) extensions: PerAccess<Option<StatedList<String>>>,
    pub(super) denied_extensions: Vec<Located<String>>,
    pub(super) secret_names: Vec<StatedPattern>,
    pub(super) secret_except: Vec<StatedPattern>,
    pub(super) content_secrets: ContentSecrets,
    pub(super) settings: StatedSettings,
    pub(super) rules: Vec<Rule>,
    pub(super) network: StatedNetwork,
    pub(super) network_rules: Vec<StatedNetworkRule>,
    pub(super) labels: Vec<StatedLabel>,
    /// The labels that rules and tests name, with their places.
    pub(super) named_labels: Vec<(String, Range<usize>)>,
    pub(super) tests: Vec<Test>,
}

/// Parses a file and adds all its problems to `diagnostics`, together with those that were `found`
/// before. For a file without text, because it could not be read, nothing more is reported.
pub(super) fn parse(
    source: &Source,
    mut found: Vec<(Option<Range<usize>>, Problem)>,
    diagnostics: &mut Diagnostics,
) -> Statements {
    if let (true, [(None, _), ..]) = (source.text.is_empty(), found.as_slice()) {
        for (span, problem) in found {
            diagnostics.report(source, span, problem);
        }
        return Statements::default();
    }
    let (root, errors) = DeTable::parse_recoverable(&source.text);
    found.extend(syntax_problems(&errors));
    // After a syntax error the rest of the file cannot be interpreted reliably and is not checked.
    // A duplicate key leaves the first value, which is checked.
    let trusted = errors
        .iter()
        .filter(|error| is_syntax_error(error))
        .map(|error| error.span().map_or(0, |span| source.line_start_of(span.start)))
        .min();
    let complete = trusted.is_none();
    let mut report = |span: Option<Range<usize>>, problem: Problem| {
        let start = span.as_ref().map_or(0, |span| span.start);
        if trusted.is_none_or(|end| start < end) {
            found.push((span, problem));
        }
    };
    check::file(root.get_ref(), complete, &mut report);
    let mut reader = Reader::new(source, &mut report);
    let statements = Statements {
        name: reader.policy_name(root.get_ref()),
        version: root.get_ref().get("version").and_then(|value| check::integer(value.get_ref())),
        mode: reader.mode(root.get_ref()),
        allowed: reader.allowed_paths(root.get_ref()),
        extensions: reader.allowed_extensions(root.get_ref()),
        denied_extensions: reader.denied_extensions(root.get_ref()),
        secret_names: reader.secrets(root.get_ref(), "names"),
        secret_except: reader.secrets(root.get_ref(), "except"),
        content_secrets: reader.content_secrets(root.get_ref()),
        settings: reader.settings(root.get_ref()),
        rules: reader.rules(root.get_ref()),
        network: reader.network(root.get_ref()),
        network_rules: reader.network_rules(root.get_ref()),
        labels: reader.labels(root.get_ref()),
        named_labels: labels::named(root.get_ref()),
        tests: reader.tests(root.get_ref()),
    };
    found.sort_by_key(|(span, _)| span.as_ref().map_or(0, |span| span.start));
    for (span, problem) in found {
        diagnostics.report(source, span, problem);
    }
    statements
}
