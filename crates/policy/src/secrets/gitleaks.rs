//! Rule files in the format of gitleaks (version 8).
//!
//! Their allowlists and inline comments weaken the rules, so they are read only if the policy says
//! so. Features that load other files, or that combine rules, are refused rather than ignored.

use std::{collections::HashSet, ops::Range, sync::Arc};

use toml::de::{DeTable, DeValue};

use super::{
    MAX_RULES, MAX_WEIGHT,
    allowlist::{Allowlist, Target},
    dialect::from_go,
    expression::Expression,
    native::{RuleText, Unusable, compile},
    rule::SecretRule,
};
use crate::{
    SourceLocation,
    check::{self, Report, shortened},
    diagnostics::{Problem, Source, syntax_problems},
    schema::{Field, Shape, optional, required},
};

type TomlValue<'i> = toml::Spanned<DeValue<'i>>;

const TEXTS: Shape = Shape::List(&Shape::Text);

const ALLOWLIST: &[Field] = &[
    optional("description", Shape::Text),
    optional("condition", Shape::Word(&["OR", "AND", "||", "&&", "or", "and"])),
    optional("commits", TEXTS),
    optional("paths", TEXTS),
    optional("regexTarget", Shape::Word(&["secret", "match", "line"])),
    optional("regexes", TEXTS),
    optional("stopwords", TEXTS),
    optional("targetRules", TEXTS),
];

const RULE: &[Field] = &[
    required("id", Shape::Text),
    optional("description", Shape::Text),
    optional("regex", Shape::Text),
    optional("path", Shape::Text),
    optional("secretGroup", Shape::Integer(0, 100)),
    optional("entropy", Shape::Number),
    optional("keywords", TEXTS),
    optional("tags", TEXTS),
    optional("allowlist", Shape::Table(ALLOWLIST)),
    optional("allowlists", Shape::Tables(ALLOWLIST)),
];

const FILE: &[Field] = &[
    optional("title", Shape::Text),
    optional("description", Shape::Text),
    optional("minVersion", Shape::Text),
    optional("allowlist", Shape::Table(ALLOWLIST)),
    optional("allowlists", Shape::Tables(ALLOWLIST)),
    required("rules", Shape::Tables(RULE)),
];

/// Parses the rules in a file, and reports problems with their places to `report`.
pub(crate) fn parse(
    source: &Source,
    honor_allowlists: bool,
    report: &mut Report<'_>,
) -> Vec<Arc<SecretRule>> {
    let (root, errors) = DeTable::parse_recoverable(&source.text);
    if !errors.is_empty() {
        for (span, problem) in syntax_problems(&errors) {
            report(span, problem);
        }
        return Vec::new();
    }
    let root = root.get_ref();
    check::document(root, FILE, &mut *report);
    let mut file = File { source, honor_allowlists, report, ids: HashSet::new() };
    let global: Vec<_> = tables(root, "allowlists")
        .chain(root.get("allowlist").and_then(|value| value.get_ref().as_table()))
        .filter_map(|table| Some((texts(table, "targetRules"), file.allowlist(table)?)))
        .collect();
    let mut rules = Vec::new();
    let mut weight = 0_usize;
    for table in tables(root, "rules") {
        let Some(mut rule) = file.rule(table) else { continue };
        weight = weight.saturating_add(rule.weight());
        if weight > MAX_WEIGHT {
            let problem = Problem::new("the expressions of the file are too large together")
                .label("with those before it, this is more than is compiled")
                .help("repeat less, or leave rules out");
            (file.report)(span(table, "regex"), problem);
            break;
        }
        if honor_allowlists {
            let about = |targets: &[String]| targets.is_empty() || targets.contains(&rule.id);
            let lists = global.iter().filter(|(targets, _)| about(targets));
            let lists: Vec<_> = lists.map(|(_, list)| list.clone()).collect();
            rule.allowlists.extend(lists);
            rule.allow_comments = true;
        }
        rules.push(Arc::new(rule));
        if rules.len() > MAX_RULES {
            (file.report)(None, Problem::new(format!("the file has more than {MAX_RULES} rules")));
            break;
        }
    }
    rules
}

struct File<'a, 'r> {
    source: &'a Source,
    honor_allowlists: bool,
    report: &'a mut Report<'r>,
    ids: HashSet<String>,
}

impl File<'_, '_> {
    fn rule(&mut self, table: &DeTable<'_>) -> Option<SecretRule> {
        let id_value = table.get("id")?;
        let id = id_value.get_ref().as_str()?;
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if id.is_empty() || id.len() > 64 || !id.chars().all(good) {
            let problem = Problem::new(format!("bad rule id \"{}\"", shortened(id)))
                .label("expected 1 to 64 letters, digits, `.`, `_` or `-`");
            (self.report)(Some(id_value.span()), problem);
            return None;
        }
        if !self.ids.insert(id.to_owned()) {
            let problem = Problem::new(format!("the rule id `{id}` is used twice"));
            (self.report)(Some(id_value.span()), problem);
            return None;
        }
        let text = |key: &str| Some(table.get(key)?.get_ref().as_str()?.to_owned());
        if text("regex").is_none() && text("path").is_none() {
            let problem = Problem::new(format!("the rule `{id}` has neither `regex` nor `path`"))
                .label("would find nothing");
            (self.report)(Some(id_value.span()), problem);
            return None;
        }
        let rule = RuleText {
            id: id.to_owned(),
            // The description may be long and is not to be shown.
            description: None,
            regex: text("regex").map(|regex| from_go(&regex)),
            path: text("path").map(|path| from_go(&path)),
            keywords: texts(table, "keywords"),
            entropy: table.get("entropy").and_then(|value| check::number(value.get_ref())),
            // In this format 0 stands for no group.
            group: table
                .get("secretGroup")
                .and_then(|value| check::integer(value.get_ref()))
                .filter(|group| *group > 0),
            warn_only: false,
            own: false,
            // gitleaks does not use this mode.
            multi_line: false,
        };
        let line = self.source.line(id_value.span().start);
        let location = SourceLocation { file: self.source.file.clone(), line };
        let mut rule = match compile(rule, location) {
            Ok(rule) => rule,
            Err(error) => {
                self.unusable(table, id, error);
                return None;
            }
        };
        if rule.ends_lazily() {
            let problem =
                Problem::new(format!("the secret of the rule `{id}` ends in a lazy repetition"))
                    .label("finds as little as it may, and the rest would be shown")
                    .help("remove its `?`, or write after it what ends the secret");
            (self.report)(span(table, "regex"), problem);
            return None;
        }
        // gitleaks reports the first group; what follows it would be shown.
        rule.hides_match = rule.is_unsure_of_group() || rule.leaves_value();
        let lists = tables(table, "allowlists")
            .chain(table.get("allowlist").and_then(|value| value.get_ref().as_table()));
        rule.allowlists = lists.filter_map(|list| self.allowlist(list)).collect();
        Some(rule)
    }

    fn unusable(&mut self, table: &DeTable<'_>, id: &str, error: Unusable) {
        let (key, what, reason) = match error {
            Unusable::Regex(reason) => ("regex", "the expression", reason),
            Unusable::Path(reason) => ("path", "the expression for paths", reason),
            Unusable::Group(most) => {
                ("secretGroup", "the group", format!("the last group of the expression is {most}"))
            }
        };
        let problem =
            Problem::new(format!("{what} of the rule `{id}` cannot be used")).label(reason);
        (self.report)(span(table, key), problem);
    }

    /// Parses an allowlist, if they count.
    fn allowlist(&mut self, table: &DeTable<'_>) -> Option<Allowlist> {
        if !self.honor_allowlists {
            return None;
        }
        let word = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str());
        let paths = self.expressions(table, "paths");
        let regexes = self.expressions(table, "regexes");
        let lower = |word: String| word.to_ascii_lowercase();
        Some(Allowlist {
            all: matches!(word("condition"), Some("AND" | "and" | "&&")),
            commits: table.contains_key("commits"),
            paths,
            regexes,
            target: match word("regexTarget") {
                Some("match") => Target::Match,
                Some("line") => Target::Line,
                _ => Target::Secret,
            },
            stopwords: texts(table, "stopwords").into_iter().map(lower).collect(),
        })
    }

    fn expressions(&mut self, table: &DeTable<'_>, key: &str) -> Vec<Expression> {
        let mut expressions = Vec::new();
        for value in elements(table, key) {
            let Some(text) = value.get_ref().as_str() else { continue };
            match Expression::compile(&from_go(text), false, &[]) {
                Ok(expression) => expressions.push(expression),
                Err(reason) => {
                    let problem = Problem::new("an expression of an allowlist cannot be used");
                    (self.report)(Some(value.span()), problem.label(reason));
                }
            }
        }
        expressions
    }
}

fn span(table: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    table.get(key).map(toml::Spanned::span)
}

fn elements<'a, 'i>(
    table: &'a DeTable<'i>,
    key: &str,
) -> impl Iterator<Item = &'a TomlValue<'i>> + use<'a, 'i> {
    let list = table.get(key).and_then(|value| value.get_ref().as_array());
    list.into_iter().flat_map(|list| list.iter())
}

fn tables<'a, 'i>(
    table: &'a DeTable<'i>,
    key: &str,
) -> impl Iterator<Item = &'a DeTable<'i>> + use<'a, 'i> {
    elements(table, key).filter_map(|value| value.get_ref().as_table())
}

fn texts(table: &DeTable<'_>, key: &str) -> Vec<String> {
    elements(table, key).filter_map(|value| Some(value.get_ref().as_str()?.to_owned())).collect()
}
