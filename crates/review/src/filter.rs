//! Filters for records.

use std::{borrow::Cow, collections::BTreeSet, ops::RangeInclusive, str::FromStr};

use portcullis_audit::{Hash, Kind, RecordView};

use super::Field;
use crate::{
    model::has_hidden_characters,
    policy::{GlobError, GlobPattern},
};

/// Conditions on a record. All conditions must hold; of several values of one condition, one must.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The earliest time, inclusive, in the form of `t`.
    pub since: Option<String>,
    /// The latest time, exclusive.
    pub until: Option<String>,
    /// The range of indices.
    pub records: Option<RangeInclusive<u64>>,
    /// Kinds of records.
    pub kinds: Vec<String>,
    /// Prefixes of session identifiers.
    pub sessions: Vec<String>,
    /// Names of agents.
    pub agents: Vec<String>,
    /// Names of system users.
    pub users: Vec<String>,
    /// Transports.
    pub transports: Vec<String>,
    /// Operations.
    pub ops: Vec<String>,
    /// Paths: requested, canonical or new.
    pub paths: Vec<PathFilter>,
    /// Decisions.
    pub decisions: Vec<String>,
    /// Rules, or sections of a policy: `secrets` includes `secrets.names[0]`.
    pub rules: Vec<String>,
    /// Results.
    pub results: Vec<String>,
    /// Prefixes of the hash of a content, before or after.
    pub hashes: Vec<String>,
}

/// Number of hexadecimal digits of a hash that an index stores.
const HASH_DIGITS: usize = 16;

/// A condition on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathFilter {
    /// These paths, everything beneath them, and the directories above them; the root is empty.
    Related(BTreeSet<String>),
    /// This path and everything beneath it.
    Below(String),
    /// The paths that match a pattern, and the path with the pattern's text as its name, with
    /// everything beneath it.
    Glob(GlobPattern, String),
    /// Connections to this host, a name or an address, at any port.
    Host(String),
}

impl FromStr for PathFilter {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        let path = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
        // A pattern contains no hidden characters, so such a name is taken literally.
        if path.contains(['*', '?', '[', '{', '\\']) && !has_hidden_characters(path) {
            return Ok(Self::Glob(GlobPattern::parse(path)?, path.to_owned()));
        }
        Ok(Self::Below(if path == "." { String::new() } else { path.to_owned() }))
    }
}

impl PathFilter {
    /// True if `path` meets the condition.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Related(paths) => is_related(path, paths),
            Self::Below(above) if above.is_empty() => true,
            Self::Below(above) => is_below(path, above),
            Self::Glob(glob, text) => glob.matches(path) || is_below(path, text),
            Self::Host(host) => {
                let host = path.rsplit_once(':').filter(|(found, _)| found == host);
                host.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
            }
        }
    }
}

/// True if `path` is one of these, beneath one or above one. There may be as many as records.
fn is_related(path: &str, paths: &BTreeSet<String>) -> bool {
    let mut above = path.match_indices('/').filter_map(|(end, _)| path.get(..end));
    let beneath = format!("{path}/");
    let next = paths.range(beneath.clone()..).next();
    path == "."
        || paths.contains("")
        || paths.contains(path)
        || above.any(|above| paths.contains(above))
        || next.is_some_and(|next| next.starts_with(&beneath))
}

/// True if `path` is `above` or beneath it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Filter {
    /// True if it has conditions on values of fields, which an index contains.
    pub(super) fn asks_for_values(&self) -> bool {
        Test::ALL.iter().any(|test| test.is_asked(self))
    }

    /// True if the record meets all conditions.
    pub fn matches(&self, record: &RecordView<'_>) -> bool {
        let t = record.t.as_str();
        self.since.as_deref().is_none_or(|since| t >= since)
            && self.until.as_deref().is_none_or(|until| t < until)
            && self.records.as_ref().is_none_or(|range| range.contains(&record.seq))
            && !self.leaves_out(record)
            && (Test::ALL.iter()).all(|test| {
                !test.is_asked(self)
                    || test.values(record).into_iter().flatten().any(|text| test.holds(self, &text))
            })
    }

    /// True if the record repeats the decision of another one: an approval, of which the request has a
    /// record of its own. One that is asked for by its kind counts.
    fn leaves_out(&self, record: &RecordView<'_>) -> bool {
        record.kind == Kind::Approval && !self.decisions.is_empty() && self.kinds.is_empty()
    }
}

/// A condition on texts, which is true if one of the record's values meets it. An index evaluates
/// it once for each distinct text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    Kind,
    Session,
    Agent,
    User,
    Transport,
    Op,
    Path,
    Decision,
    Rule,
    Result,
    Hash,
}

impl Test {
    pub(super) const ALL: [Self; 11] = [
        Self::Kind,
        Self::Session,
        Self::Agent,
        Self::User,
        Self::Transport,
        Self::Op,
        Self::Path,
        Self::Decision,
        Self::Rule,
        Self::Result,
        Self::Hash,
    ];

    /// True if the filter has the condition.
    pub(super) fn is_asked(self, filter: &Filter) -> bool {
        match self {
            Self::Path => !filter.paths.is_empty(),
            _ => !self.texts(filter).is_empty(),
        }
    }

    fn texts(self, filter: &Filter) -> &[String] {
        match self {
            Self::Kind => &filter.kinds,
            Self::Session => &filter.sessions,
            Self::Agent => &filter.agents,
            Self::User => &filter.users,
            Self::Transport => &filter.transports,
            Self::Op => &filter.ops,
            Self::Path => &[],
            Self::Decision => &filter.decisions,
            Self::Rule => &filter.rules,
            Self::Result => &filter.results,
            Self::Hash => &filter.hashes,
        }
    }

    /// Returns the record's values that it is about.
    pub(super) fn values<'r>(self, record: &'r RecordView<'_>) -> [Option<Cow<'r, str>>; 3] {
        let one = |text: Option<&'r str>| [text.map(Cow::Borrowed), None, None];
        let hash = |hash: Option<Hash>| hash.map(|hash| Cow::Owned(hash.to_string()));
        match self {
            Self::Kind => one(Some(record.kind_name())),
            Self::Session => one(record.session()),
            Self::Agent => one(record.agent()),
            Self::User => one(record.user()),
            Self::Transport => one(record.transport()),
            Self::Op => one(record.op()),
            Self::Path => {
                let others = [record.resolved(), record.to()].map(|path| path.map(Cow::Borrowed));
                let [resolved, to] = others;
                [record.target(), resolved, to]
            }
            Self::Decision => one(record.decision()),
            Self::Rule => one(record.rule()),
            Self::Result => one(record.result()),
            Self::Hash => [hash(record.before), hash(record.after), None],
        }
    }

    /// True if it is about the field of this name.
    pub(super) fn is_of(self, name: &str) -> bool {
        let fields: &[Field] = match self {
            Self::Kind => &[Field::Kind],
            Self::Session => &[Field::Session],
            Self::Agent => &[Field::Agent],
            Self::User => &[Field::User],
            Self::Transport => &[Field::Transport],
            Self::Op => &[Field::Op],
            Self::Path => &[Field::Path, Field::Resolved, Field::To],
            Self::Decision => &[Field::Decision],
            Self::Rule => &[Field::Rule],
            Self::Result => &[Field::Result],
            Self::Hash => &[Field::Before, Field::After],
        };
        fields.iter().any(|field| field.as_str() == name)
    }

    /// Returns the part of a value that an index stores: of a hash a prefix, which excludes nearly
    /// all others; of other fields the complete value.
    pub(super) fn shortened(field: Field, value: &str) -> &str {
        match field {
            Field::Before | Field::After => value.get(..HASH_DIGITS).unwrap_or(value),
            _ => value,
        }
    }

    /// True if a value of which an index stores `value` may meet the condition.
    pub(super) fn may_hold(self, filter: &Filter, value: &str) -> bool {
        match self {
            Self::Hash => (self.texts(filter).iter())
                .any(|text| value.starts_with(text.get(..HASH_DIGITS).unwrap_or(text))),
            _ => self.holds(filter, value),
        }
    }

    /// True if a value meets the condition.
    pub(super) fn holds(self, filter: &Filter, value: &str) -> bool {
        let any = |is: &dyn Fn(&str) -> bool| self.texts(filter).iter().any(|text| is(text));
        match self {
            Self::Path => filter.paths.iter().any(|path| path.matches(value)),
            Self::Session | Self::Hash => any(&|text| value.starts_with(text)),
            Self::Rule => any(&|text| {
                value
                    .strip_prefix(text)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            }),
            _ => any(&|text| value == text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_globs_or_what_is_beneath() {
        let matches =
            |filter: &str, path: &str| filter.parse::<PathFilter>().unwrap().matches(path);
        assert!(matches("src", "src") && matches("src/", "src/a/b") && matches("./src", "src/a"));
        assert!(!matches("src", "srcs") && !matches("src", "a/src"));
        assert!(matches(".", "anything") && matches("./", "anything"));
        assert!(matches("**/*.rs", "a/b.rs") && !matches("*.rs", "a/b.rs"));
        // Paths that no pattern can express can still be searched for.
        assert!(matches("a\nb", "a\nb") && "[".parse::<PathFilter>().is_err());
    }

    #[test]
    fn paths_are_related_to_what_is_above_and_beneath() {
        let names = ["a/b", "a-b", "c"].map(str::to_owned);
        let filter = PathFilter::Related(names.into());
        for path in [".", "a", "a/b", "a/b/c/d", "a-b/x", "c", "c/x"] {
            assert!(filter.matches(path), "{path}");
        }
        for path in ["a/bc", "a/c", "a-", "b", "cc", "d"] {
            assert!(!filter.matches(path), "{path}");
        }
        assert!(PathFilter::Related([String::new()].into()).matches("a/b"));
    }

    /// A name with brackets was read only as a pattern, which does not match the name.
    #[test]
    fn a_pattern_is_also_the_path_that_is_spelled_so() {
        let matches =
            |filter: &str, path: &str| filter.parse::<PathFilter>().unwrap().matches(path);
        for name in ["app/[id]/page.tsx", "src/{a,b}.rs", "what?", "./app/[...slug]"] {
            assert!(matches(name, name.trim_start_matches("./")), "{name}");
        }
        assert!(matches("app/[id]", "app/[id]/page.tsx") && matches("app/[id]/", "app/[id]"));
        assert!(matches("app/[id]", "app/i") && !matches("app/[id]", "app/[id]s"));
    }

    #[test]
    fn every_condition_must_hold() {
        let line = format!(
            r#"{{"v":1,"seq":3,"kind":"intent","t":"2026-11-21T08:00:00.000000Z","session":"abc","agent":"coder","path":"a","to":"b/c","rule":"secrets.names[0]","before":"00ff{:060}","nonce":"{:032}","prev":"{:064}"}}"#,
            0, 0, 0
        );
        let record = RecordView::parse(line.as_bytes()).unwrap();
        let wants = |change: &dyn Fn(&mut Filter)| {
            let mut filter =
                Filter { agents: vec!["x".into(), "coder".into()], ..Filter::default() };
            change(&mut filter);
            filter.matches(&record)
        };
        assert!(wants(&|_| {}));
        assert!(wants(&|f| f.since = Some("2026-11-21".into())));
        assert!(!wants(&|f| f.until = Some("2026-11-21".into())));
        assert!(wants(&|f| f.sessions = vec!["ab".into()]));
        assert!(wants(&|f| f.paths = vec!["b".parse().unwrap()]));
        assert!(!wants(&|f| f.paths = vec!["c".parse().unwrap()]));
        assert!(wants(&|f| f.rules = vec!["secrets".into()]));
        assert!(!wants(&|f| f.rules = vec!["secret".into()]));
        assert!(wants(&|f| f.hashes = vec!["00f".into()]));
        assert!(!wants(&|f| f.decisions = vec!["deny".into()]));
        assert!(!wants(&|f| f.records = Some(4..=9)));
    }
}
