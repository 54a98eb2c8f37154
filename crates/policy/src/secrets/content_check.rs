//! Decisions on a content by the findings in it.

use std::{borrow::Cow, collections::HashSet, fmt};

use super::{
    OnRead, OnWrite, Secrets,
    key::SecretKey,
    restore::{MisusedPlaceholder, Restored, restore},
    rule::SecretRule,
    scanner::{Hit, Incomplete},
    search::MAX_FINDINGS,
    text::{BYTE_ORDER_MARK, readings},
    view::{Redacted, has_marker, redact},
};
use crate::{
    Decision,
    model::{WorkspacePath, is_text},
};

/// The rule that denies a content because of a placeholder in it.
const PLACEHOLDER: &str = "secrets.placeholder";

/// The inputs of a decision besides the content.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The file's canonical path.
    pub path: &'a WorkspacePath,
    /// The key of placeholders and hashes.
    pub key: &'a SecretKey,
    /// A function that returns true if the scan has taken too long.
    pub overdue: &'a dyn Fn() -> bool,
}

/// A verdict with the findings that led to it.
#[derive(Debug)]
#[must_use]
pub struct WithFindings<T> {
    /// The findings in the form for records.
    pub findings: Vec<SecretFinding>,
    /// The result, or the denial.
    pub verdict: Result<T, Decision>,
}

/// One secret, in the form for records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFinding {
    /// The ID of the rule.
    pub rule: String,
    /// The line in which it begins, from 1.
    pub line: u64,
    /// 128 bits of a keyed hash of it, as hex digits: equal for equal secrets under one state
    /// directory.
    pub hash: String,
    /// The action: `denied`, `redacted`, `preserved` (written back unchanged) or `warned`.
    pub action: &'static str,
}

/// The content for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disclosed {
    /// The content, with placeholders where the policy requires them.
    pub bytes: Vec<u8>,
    /// True if it contains any.
    pub redacted: bool,
    /// The original content, if it differs.
    pub whole: Option<SecretSpans>,
}

/// A content with its secrets, for its hash only.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretSpans(pub Vec<u8>);

impl fmt::Debug for SecretSpans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Whole({} bytes)", self.0.len())
    }
}

/// A secret in one of the readings of a content; the first reading is the bytes themselves.
struct LocatedSecret {
    reading: usize,
    hit: Hit,
    finding: SecretFinding,
    /// True if the rule does more than warn, provided that the settings do.
    blocks: bool,
    on_read: OnRead,
    on_write: OnWrite,
}

/// Returns the hits that are replaced in the content itself.
fn blocking(found: &[LocatedSecret]) -> Vec<Hit> {
    let replaced = found.iter().filter(|found| found.blocks && found.reading == 0);
    replaced.map(|found| found.hit.clone()).collect()
}

impl Secrets {
    /// Decides on the content that a reader gets of `content`.
    pub fn disclose(&self, subject: &Subject<'_>, content: Vec<u8>) -> WithFindings<Disclosed> {
        let found = match self.look(subject, &content) {
            Ok(found) => found,
            Err(denial) => return WithFindings { findings: Vec::new(), verdict: Err(denial) },
        };
        let first = |word| found.iter().find(|found| found.on_read == word);
        let verdict = match (first(OnRead::Deny), first(OnRead::Redact)) {
            (Some(first), _) => Err(self.denial(&first.hit, "the content contains {}")),
            (None, None) => Ok(Disclosed { bytes: content, redacted: false, whole: None }),
            // In other bytes a placeholder could not be distinguished from content when it is
            // written back, and the bytes around it may contain the secret again.
            (None, Some(first)) if !is_text(&content) => {
                let reason = "the content contains {}, and only text can be redacted";
                Err(self.denial(&first.hit, reason))
            }
            (None, Some(_)) => {
                let Redacted { bytes, .. } = self.redacted(subject, &content, &found);
                Ok(Disclosed { bytes, redacted: true, whole: Some(SecretSpans(content)) })
            }
        };
        let action = if verdict.is_err() { "denied" } else { "redacted" };
        let findings =
            findings(found, |found| if found.on_read == OnRead::Warn { "warned" } else { action });
        WithFindings { findings, verdict }
    }

    /// Replaces the secrets in the words of a command line, or in a single text, with placeholders
    /// for a record, irrespective of the settings for reads. `None` if the rules did not examine
    /// all of it. They examine each word and the line, since a rule may be about an option and the
    /// value after it.
    pub fn redact_words(&self, subject: &Subject<'_>, words: &[&str]) -> Option<Vec<String>> {
        let line = self.text_hits(subject, &words.join(" "))?;
        let mut end = 0;
        let redacted = words.iter().map(|word| {
            let start = end;
            end += word.len() + 1;
            let mut hits = self.text_hits(subject, word)?;
            hits.extend(line.iter().filter_map(|Hit { rule, range }| {
                let within = |at: usize| at.saturating_sub(start).min(word.len());
                let range = within(range.start)..within(range.end);
                (!range.is_empty()).then_some(Hit { rule: *rule, range })
            }));
            hits.sort_by_key(|hit| (hit.range.start, hit.range.end, hit.rule));
            let Redacted { bytes, .. } = self.with_placeholders(subject, word.as_bytes(), &hits);
            Some(String::from_utf8_lossy(&bytes).into_owned())
        });
        redacted.collect()
    }

    /// Returns the secrets in a text; `None` if the rules did not examine all of it.
    fn text_hits(&self, subject: &Subject<'_>, text: &str) -> Option<Vec<Hit>> {
        let found = self.look(subject, text.as_bytes()).ok()?;
        found.iter().all(|found| found.reading == 0).then(|| blocking(&found))
    }

    /// True if readers get placeholders for anything.
    pub fn redacts(&self) -> bool {
        self.any_on_read(OnRead::Redact)
    }

    fn consequences(&self, rule: &SecretRule) -> (OnRead, OnWrite) {
        rule.consequences((self.settings.on_read, self.settings.on_write))
    }

    fn any_on_read(&self, word: OnRead) -> bool {
        self.scanner.rules().iter().any(|rule| self.consequences(rule).0 == word)
    }

    /// True if a text to be stored may contain placeholders, so that the content that it replaces
    /// is needed.
    pub fn needs_original(&self, text: &[u8]) -> bool {
        self.redacts() && has_marker(text)
    }

    /// Decides on the content that is stored if `text` is to replace `original`: secrets are
    /// restored in place of placeholders. If there are none, because reads are denied, `text` was
    /// made from `original` without a read.
    pub fn store<'t>(
        &self,
        subject: &Subject<'_>,
        original: Option<&[u8]>,
        text: Cow<'t, [u8]>,
    ) -> WithFindings<Cow<'t, [u8]>> {
        let restored = if self.needs_original(&text) {
            self.restored(subject, original.unwrap_or_default(), &text)
                .map(|Restored { bytes, secrets }| (bytes.into(), secrets))
        } else {
            Ok((text, Vec::new()))
        };
        let looked = restored.and_then(|(bytes, secrets)| {
            let found = self.look(subject, &bytes)?;
            Ok((bytes, secrets, found, self.withheld(subject, original)?))
        });
        let (bytes, secrets, found, withheld) = match looked {
            Ok(all) => all,
            Err(denial) => return WithFindings { findings: Vec::new(), verdict: Err(denial) },
        };
        // A secret that the gateway itself restores is not new.
        let kept = |found: &LocatedSecret| {
            // The ranges are in order and do not overlap.
            let after = secrets.partition_point(|(range, _)| range.start <= found.hit.range.start);
            let around = after.checked_sub(1).and_then(|at| secrets.get(at));
            found.reading == 0 && around.is_some_and(|(range, _)| found.hit.range.end <= range.end)
        };
        let new = found.iter().find(|found| found.on_write == OnWrite::Deny && !kept(found));
        let again: HashSet<(usize, &Hit)> =
            found.iter().map(|found| (found.reading, &found.hit)).collect();
        let mut put_back = secrets.iter().flat_map(|(_, hits)| hits);
        let lost = put_back.find(|hit| !again.contains(&(0, hit)));
        let bared = withheld.iter().find(|found| !again.contains(&(found.reading, &found.hit)));
        let denial = match (bared, lost, new) {
            (Some(bared), ..) => {
                let reason = "with this, {} in the file would no longer be recognised";
                Some(self.denial(&bared.hit, reason))
            }
            (None, Some(_), ..) => Some(Decision::built_in_denial(
                PLACEHOLDER,
                "with these changes around it, a secret that stays in the file would no longer be \
                 recognised; change other lines, or leave out the line with the placeholder",
            )),
            (None, None, Some(new)) => {
                let line = new.finding.line;
                let reason = format!("line {line} of the new content contains {{}}");
                Some(self.denial(&new.hit, &reason))
            }
            (None, None, None) => None,
        };
        let bared = bared.map(|bared| SecretFinding { action: "denied", ..bared.finding.clone() });
        let mut findings = findings(found, |found| match found.on_write {
            _ if found.blocks && kept(found) => "preserved",
            OnWrite::Deny => "denied",
            OnWrite::Warn => "warned",
        });
        findings.extend(bared);
        WithFindings { findings, verdict: denial.map_or(Ok(bytes), Err) }
    }

    /// Returns the secrets because of which reads of `original` are denied.
    fn withheld(
        &self,
        subject: &Subject<'_>,
        original: Option<&[u8]>,
    ) -> Result<Vec<LocatedSecret>, Decision> {
        let (true, Some(original)) = (self.any_on_read(OnRead::Deny), original) else {
            return Ok(Vec::new());
        };
        let mut found = self.look(subject, original)?;
        found.retain(|found| found.on_read == OnRead::Deny);
        Ok(found)
    }

    /// True if renaming a file can change the consequences of the secrets in it: rules can be about
    /// paths.
    pub fn depends_on_path(&self) -> bool {
        self.scanner.rules().iter().any(|rule| {
            rule.depends_on_path() && self.consequences(rule) != (OnRead::Warn, OnWrite::Warn)
        })
    }

    /// True if renaming a file certainly changes none of them, whatever its content.
    pub fn is_same_for(&self, from: &WorkspacePath, to: &WorkspacePath) -> bool {
        let is_same = |rule: &SecretRule| rule.is_same_for(from.as_str(), to.as_str());
        self.scanner.rules().iter().all(|rule| is_same(rule))
    }

    /// Decides whether a file of this content may be renamed to `to`. The new path must not show
    /// more than the old one. The content must also be writable there: otherwise an agent could
    /// move a guess to the path of a secret and compare its placeholder with the one that it saw.
    ///
    /// # Errors
    /// The denial.
    pub fn renamed(
        &self,
        subject: &Subject<'_>,
        to: &WorkspacePath,
        content: &[u8],
    ) -> Result<(), Decision> {
        let here = self.look(subject, content)?;
        let there = self.look(&Subject { path: to, ..*subject }, content)?;
        if let Some(shown) = uncovered(&here, &there, |found| found.on_read != OnRead::Warn) {
            let reason = "under the new name, {} in the file would no longer be recognised";
            return Err(self.denial(&shown.hit, reason));
        }
        if let Some(brought) = uncovered(&there, &here, |found| found.on_write == OnWrite::Deny) {
            let reason = "under the new name, the content of the file counts as {}";
            return Err(self.denial(&brought.hit, reason));
        }
        Ok(())
    }

    /// Scans all readings of a content.
    fn look(&self, subject: &Subject<'_>, content: &[u8]) -> Result<Vec<LocatedSecret>, Decision> {
        let mut all = Vec::new();
        for (reading, text) in readings(content).enumerate() {
            let hits = self.hits(subject, &text).map_err(|why| self.incomplete(why))?;
            let (mut line, mut counted) = (1, 0);
            for hit in hits {
                let passed = text.get(counted..hit.range.start).unwrap_or_default();
                line += passed.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
                counted = counted.max(hit.range.start);
                let Some(rule) = self.scanner.rules().get(hit.rule) else { continue };
                let secret = text.get(hit.range.clone()).unwrap_or_default();
                let hash = subject.key.tag("finding", &[secret]);
                let finding = SecretFinding { rule: rule.id.clone(), line, hash, action: "" };
                let ((on_read, on_write), blocks) = (self.consequences(rule), !rule.warn_only);
                all.push(LocatedSecret { reading, hit, finding, blocks, on_read, on_write });
            }
        }
        Ok(all)
    }

    /// Scans one reading, with and without its byte order mark, since a reader may take either for
    /// the beginning of the first line.
    fn hits(&self, subject: &Subject<'_>, text: &[u8]) -> Result<Vec<Hit>, Incomplete> {
        let scan = |text| self.scanner.scan(subject.path.as_str(), text, subject.overdue);
        let mut hits = scan(text)?;
        let Some(unmarked) = text.strip_prefix(BYTE_ORDER_MARK) else { return Ok(hits) };
        let known: HashSet<Hit> = hits.iter().cloned().collect();
        let more = scan(unmarked)?.into_iter().filter_map(|Hit { rule, range }| {
            let at = |start: usize| Hit { rule, range: start..range.end + BYTE_ORDER_MARK.len() };
            let hit = at(range.start + BYTE_ORDER_MARK.len());
            // A hit from the very beginning includes it.
            (!known.contains(&hit) && !known.contains(&at(0))).then_some(hit)
        });
        hits.extend(more);
        hits.sort_by_key(|hit| (hit.range.start, hit.range.end, hit.rule));
        Ok(hits)
    }

    fn redacted(&self, subject: &Subject<'_>, content: &[u8], found: &[LocatedSecret]) -> Redacted {
        let hits: Vec<Hit> = found
            .iter()
            .filter(|found| found.on_read == OnRead::Redact && found.reading == 0)
            .map(|found| found.hit.clone())
            .collect();
        self.with_placeholders(subject, content, &hits)
    }

    fn with_placeholders(&self, subject: &Subject<'_>, content: &[u8], hits: &[Hit]) -> Redacted {
        redact(content, hits, subject.key, subject.path.as_str(), |rule| {
            self.scanner.rules().get(rule).map_or("", |rule| &rule.id)
        })
    }

    fn restored(
        &self,
        subject: &Subject<'_>,
        original: &[u8],
        text: &[u8],
    ) -> Result<Restored, Decision> {
        let mut found = self.look(subject, original)?;
        if !is_text(original) {
            // Readers never got a placeholder of it.
            found.clear();
        }
        let view = self.redacted(subject, original, &found);
        restore(text, &view, original).map_err(|MisusedPlaceholder { line, reason }| {
            let reason = format!("line {line} of the new content cannot be stored: {reason}");
            Decision::built_in_denial(PLACEHOLDER, &reason)
        })
    }

    /// Makes the denial because of a hit, whose description replaces `{}` in the reason.
    fn denial(&self, hit: &Hit, reason: &str) -> Decision {
        let rule = self.scanner.rules().get(hit.rule);
        let reason = reason.replace("{}", rule.map_or("a secret", |rule| rule.noun()));
        let what = rule.and_then(|rule| rule.description.as_deref());
        let reason = match what {
            Some(what) => format!("{reason} ({what})"),
            None => reason,
        };
        let id = rule.map_or_else(|| "secrets".to_owned(), |rule| rule.decision_id());
        let location = rule.map(|rule| rule.location.clone());
        Decision { location, ..Decision::built_in_denial(&id, &reason) }
    }

    fn incomplete(&self, why: Incomplete) -> Decision {
        let (rule, location, reason) = match why {
            Incomplete::Overdue => (
                "secrets.maxScanTime",
                self.max_scan_place.clone(),
                "looking for secrets in the content took too long".to_owned(),
            ),
            Incomplete::TooMany => (
                "secrets.tooManyFindings",
                None,
                format!("rules about content find something at more than {MAX_FINDINGS} places"),
            ),
        };
        Decision { location, ..Decision::built_in_denial(rule, &reason) }
    }
}

/// Returns the first finding of `some` with these consequences that no such finding of `others`
/// covers. Both are in order of reading and range, and may be many.
fn uncovered<'f>(
    some: &'f [LocatedSecret],
    others: &[LocatedSecret],
    is: fn(&LocatedSecret) -> bool,
) -> Option<&'f LocatedSecret> {
    // Each element has the maximum end of the findings that begin no later.
    let mut reach: Vec<(usize, usize, usize)> = Vec::new();
    for other in others.iter().filter(|other| is(other)) {
        let end = match reach.last() {
            Some((reading, _, end)) if *reading == other.reading => other.hit.range.end.max(*end),
            _ => other.hit.range.end,
        };
        reach.push((other.reading, other.hit.range.start, end));
    }
    some.iter().filter(|one| is(one)).find(|one| {
        let location = (one.reading, one.hit.range.start);
        let after = reach.partition_point(|(reading, start, _)| (*reading, *start) <= location);
        let around = after.checked_sub(1).and_then(|at| reach.get(at));
        !around
            .is_some_and(|(reading, _, end)| *reading == one.reading && one.hit.range.end <= *end)
    })
}

fn findings(
    found: Vec<LocatedSecret>,
    action: impl Fn(&LocatedSecret) -> &'static str,
) -> Vec<SecretFinding> {
    let named = |found: LocatedSecret| {
        let action = action(&found);
        SecretFinding { action, ..found.finding }
    };
    found.into_iter().map(named).collect()
}
