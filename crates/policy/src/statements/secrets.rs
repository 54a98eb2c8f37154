//! The statements of `[secrets]` about content.

use std::{collections::HashSet, ops::Range, sync::Arc};

use toml::de::DeTable;

use super::reader::{Reader, Value, elements, sub};
use crate::{
    SourceLocation, check,
    check::shortened,
    diagnostics::Problem,
    duration,
    layered::Layered,
    model::is_hidden_character,
    pattern::Comparison,
    secrets::{
        Invisible, MAX_RULES, MAX_WEIGHT, OnRead, OnWrite, RuleText, SecretRule, StatedSecrets,
        Unusable, compile_rule,
    },
};

/// Maximum length of a rule's sample, in bytes: samples are scanned without a time limit.
const MAX_SAMPLE: usize = 10 << 10;
/// Milliseconds in a day.
const MAX_SCAN_TIME: u64 = 24 * 60 * 60 * 1000;

const ON_READ: [(&str, OnRead); 3] =
    [("deny", OnRead::Deny), ("redact", OnRead::Redact), ("warn", OnRead::Warn)];

/// The rules about content in one file, and the settings for their findings.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentSecrets {
    pub(crate) stated: StatedSecrets,
    pub(crate) rules: Vec<Arc<SecretRule>>,
    /// The number of samples with which the rules were tested.
    pub(crate) samples: usize,
    pub(crate) honor_allowlists: bool,
}

impl Reader<'_, '_> {
    pub(super) fn content_secrets(&mut self, root: &DeTable<'_>) -> ContentSecrets {
        let mut secrets = self.secret_rules(root);
        secrets.rules.extend(self.invisible(root).map(Arc::new));
        secrets
    }

    /// Reads the rule about invisible text.
    fn invisible(&mut self, root: &DeTable<'_>) -> Option<SecretRule> {
        let table = sub(sub(root, "files")?, "invisible")?;
        let (key, _) = table.get_key_value("paths")?;
        let globs = elements(table, "paths");
        let globs: Vec<_> =
            globs.filter_map(|value| self.glob(value, Comparison::Folded)).collect();
        let patterns = globs.into_iter().flat_map(|glob| glob.alternatives);
        // As for secret names, a directory stands for what is beneath it.
        let patterns = patterns.map(|pattern| pattern.at_any_depth().and_beneath()).collect();
        let on_read = self.word(table, "onRead", &ON_READ);
        let on_read = on_read.map_or(OnRead::Redact, |layered| layered.value);
        let location =
            SourceLocation { file: self.file().to_owned(), line: self.line(&key.span()) };
        Some(SecretRule::invisible(Invisible { on_read, patterns }, location))
    }

    fn secret_rules(&mut self, root: &DeTable<'_>) -> ContentSecrets {
        let Some(table) = sub(root, "secrets") else { return ContentSecrets::default() };
        let stated = StatedSecrets {
            on_read: self.word(table, "onRead", &ON_READ),
            on_write: self.word(
                table,
                "onWrite",
                &[("deny", OnWrite::Deny), ("warn", OnWrite::Warn)],
            ),
            max_scan_time: table.get("maxScanTime").and_then(|value| self.scan_time(value)),
        };
        let values = (
            stated.on_read.map(|layered| layered.value),
            stated.on_write.map(|layered| layered.value),
        );
        if let ((Some(OnRead::Redact), Some(OnWrite::Warn)), Some(value)) =
            (values, table.get("onWrite"))
        {
            let problem = Problem::new(
                "`onWrite = \"warn\"` cannot stand beside `onRead = \"redact\"`",
            )
            .label("expected \"deny\"")
            .help("an agent that may write secrets could compare placeholders with its guesses");
            self.report(value.span(), problem);
        }
        let mut secrets = ContentSecrets {
            stated,
            honor_allowlists: table
                .get("honorAllowlists")
                .and_then(|value| value.get_ref().as_bool())
                .unwrap_or(false),
            ..ContentSecrets::default()
        };
        let mut ids = HashSet::new();
        let mut weight = 0_usize;
        for value in elements(table, "rules") {
            let Some(rule) = value.get_ref().as_table() else { continue };
            if secrets.rules.len() >= MAX_RULES {
                let problem = format!("the file has more than {MAX_RULES} rules about secrets");
                self.report(value.span(), Problem::new(problem).label("one too many"));
                break;
            }
            secrets.samples +=
                ["match", "notMatch"].map(|key| elements(rule, key).count()).iter().sum::<usize>();
            let compiled = self.secret_rule(rule, &mut ids);
            weight = weight.saturating_add(compiled.as_ref().map_or(0, SecretRule::weight));
            if weight > MAX_WEIGHT {
                let problem = "the expressions of the file are too large together";
                let problem = Problem::new(problem).label("one too many");
                self.report(value.span(), problem.help("repeat less, or leave rules out"));
                break;
            }
            secrets.rules.extend(compiled.map(Arc::new));
        }
        secrets
    }

    fn scan_time(&mut self, value: &Value<'_>) -> Option<Layered<u64>> {
        let text = value.get_ref().as_str()?;
        let location = Some((0, self.line(&value.span())));
        let time = duration::parse_duration(text)
            .and_then(|time| u64::try_from(time.as_millis()).ok())
            .filter(|milliseconds| (1..=MAX_SCAN_TIME).contains(milliseconds));
        if time.is_none() {
            let problem = Problem::new(format!("bad time \"{}\"", shortened(text)))
                .label("expected a whole number and a unit, such as \"10s\"")
                .help("from \"1ms\" to \"24h\"; units are ms, s, m and h");
            self.report(value.span(), problem);
        }
        Some(Layered { value: time?, location })
    }

    fn secret_rule(
        &mut self,
        table: &DeTable<'_>,
        ids: &mut HashSet<String>,
    ) -> Option<SecretRule> {
        let id_value = table.get("id")?;
        let id = self.identifier(id_value, "rule id")?;
        let line = self.line(&id_value.span());
        if !ids.insert(id.clone()) {
            let problem = Problem::new(format!("the rule id `{id}` is used twice"))
                .help("ids of rules about secrets must be unique in a file");
            self.report(id_value.span(), problem);
        }
        let description = table.get("description").and_then(|value| self.plain_text(value, 200));
        let mut keywords = Vec::new();
        for value in elements(table, "keywords") {
            let Some(text) = value.get_ref().as_str() else { continue };
            if text.is_empty() || text.len() > 100 {
                let problem = Problem::new(format!("bad keyword \"{}\"", shortened(text)))
                    .label("expected 1 to 100 bytes");
                self.report(value.span(), problem);
            }
            self.refuse_invisible(value, text);
            keywords.push(text.to_owned());
        }
        let entropy = table.get("entropy");
        let regex_value = table.get("regex")?;
        self.refuse_invisible(regex_value, regex_value.get_ref().as_str().unwrap_or_default());
        if regex_value.get_ref().as_str().is_some_and(is_delimited) {
            let problem = Problem::new("the expression stands between slashes")
                .label("these would have to be in the content")
                .help(
                    "leave them out; flags stand in front: `(?i)`; a slash that is meant is `[/]`",
                );
            self.report(regex_value.span(), problem);
        }
        let text = RuleText {
            id,
            description,
            regex: Some(regex_value.get_ref().as_str()?.to_owned()),
            path: None,
            keywords,
            entropy: entropy.and_then(|value| check::number(value.get_ref())),
            group: table.get("group").and_then(|value| check::integer(value.get_ref())),
            warn_only: table
                .get("warnOnly")
                .and_then(|value| value.get_ref().as_bool())
                .unwrap_or(false),
            own: self.is_embedded(),
            multi_line: true,
        };
        let location = SourceLocation { file: self.file().to_owned(), line };
        match compile_rule(text, location) {
            Ok(rule) => {
                if rule.matches_only_nothing() {
                    let problem = Problem::new("the rule finds nothing")
                        .label("matches nothing but the empty text");
                    self.report(regex_value.span(), problem);
                }
                if rule.is_unsure_of_group() {
                    let problem = Problem::new("a match has more than one group")
                        .label("one would be the secret, and the others would be shown")
                        .help("name the secret with `group`, or write `(?:…)` for the others");
                    self.report(regex_value.span(), problem);
                }
                if rule.ends_lazily() {
                    let problem = Problem::new("the secret ends in a lazy repetition")
                        .label("finds as little as it may, and the rest would be shown")
                        .help("remove its `?`, or write after it what ends the secret");
                    self.report(regex_value.span(), problem);
                }
                if let Some((most, value)) = rule.unreached_entropy().zip(entropy) {
                    let problem = Problem::new("the rule finds nothing").label(format!(
                        "expected less than {most:.2}: no match has more bits per byte"
                    ));
                    self.report(value.span(), problem);
                }
                // The program's tests check the samples of embedded rules.
                if !self.is_embedded() {
                    self.check_samples(table, &rule);
                }
                Some(rule)
            }
            Err(Unusable::Group(most)) => {
                let span = table.get("group").map_or(regex_value.span(), |value| value.span());
                let label = format!("the last group of the expression is {most}");
                self.report(span, Problem::new("there is no such group").label(label));
                None
            }
            Err(Unusable::Regex(reason) | Unusable::Path(reason)) => {
                let problem = Problem::new("the expression cannot be used").label(reason);
                let problem = problem.help("expressions are over bytes; see `docs/policy.md`");
                self.report(regex_value.span(), problem);
                None
            }
        }
    }

    /// Reports a text with an invisible character, for which the rule would find nothing. Lines and
    /// tabs are none: an expression may have several lines.
    fn refuse_invisible(&mut self, value: &Value<'_>, text: &str) {
        let invisible = text.chars().find(|c| is_hidden_character(*c) && !c.is_whitespace());
        if let Some(c) = invisible {
            let code = u32::from(c);
            let problem = Problem::new("the text contains an invisible character")
                .label(format!("U+{code:04X}"))
                .help(format!(
                    "leave it out; an expression that is about it has `\\x{{{code:X}}}`"
                ));
            self.report(value.span(), problem);
        }
    }

    fn check_samples(&mut self, table: &DeTable<'_>, rule: &SecretRule) {
        for (key, expected) in [("match", true), ("notMatch", false)] {
            let mut wrong: Vec<Range<usize>> = Vec::new();
            for value in elements(table, key) {
                let Some(sample) = value.get_ref().as_str() else { continue };
                if sample.len() > MAX_SAMPLE {
                    let problem = Problem::new(format!("a sample of `{key}` is too long"));
                    let label = format!("expected at most {} KiB", MAX_SAMPLE >> 10);
                    self.report(value.span(), problem.label(label));
                } else if rule.finds(sample.as_bytes()) != expected {
                    wrong.push(value.span());
                }
            }
            for span in wrong {
                let (what, help) = if expected {
                    ("the rule does not match its sample", rule.why_not())
                } else {
                    ("the rule matches a sample that it must not", "make the expression narrower")
                };
                let problem = Problem::new(what).label(format!("a sample of `{key}`"));
                self.report(span, problem.help(help));
            }
        }
    }
}

/// True if an expression has the delimiters of other languages: `/tok/i`.
fn is_delimited(text: &str) -> bool {
    let inside = text.strip_prefix('/').and_then(|rest| rest.rsplit_once('/'));
    inside.is_some_and(|(inside, flags)| {
        !inside.is_empty() && flags.chars().all(|c| "dgimsuvxy".contains(c))
    })
}
