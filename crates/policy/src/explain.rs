//! Explanations of decisions: every stage with its verdict.

use serde::Serialize;

use super::{
    Decision, Effect, Object, Policy, Query,
    normalized::NormalizedForms,
    stages::{NAMES, OBJECTS, PreparedQuery, Stage, Verdict},
};
use crate::model::{Access, Transport};

/// The decision on a query with the verdicts that led to it.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The gateway's decision.
    pub decision: Decision,
    /// Every stage in order, including those after the one that decided.
    pub stages: Vec<StageReport>,
}

/// The verdict of one stage.
#[derive(Debug, Clone, Serialize)]
pub struct StageReport {
    /// The stage, by the prefix of its rule IDs.
    pub stage: &'static str,
    /// Its verdict.
    pub verdict: StageVerdict,
    /// The rule of the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The place of that rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The rule's reason, or the information that the stage lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Verdicts of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StageVerdict {
    /// The stage has no objection.
    Pass,
    /// The stage denies.
    Deny,
    /// The stage denies, but observe mode allows.
    #[serde(rename = "wouldDeny")]
    WouldDeny,
    /// The stage asks, unless another one denies.
    Ask,
    /// The stage allows, unless another one denies.
    Allow,
    /// The stage needs the object or the content.
    Open,
}

impl StageVerdict {
    /// Returns the name for people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Deny => "deny",
            Self::WouldDeny => "wouldDeny",
            Self::Ask => "ask",
            Self::Allow => "allow",
            Self::Open => "open",
        }
    }
}

impl Policy {
    /// Decides like [`evaluate`](Policy::evaluate) and, if `object` is known,
    /// [`evaluate_object`](Policy::evaluate_object), and reports all stages. The stages of content
    /// stay open, since they need the content.
    pub fn explain(&self, query: &Query<'_>, object: Option<&Object>) -> Explanation {
        let forms = NormalizedForms::of(query.path);
        let subject = PreparedQuery::new(query, &forms);
        let mut stages = Vec::new();
        let decision = self.answer(self.walk(&NAMES, &subject, None, true, |stage, verdict| {
            stages.push(self.report(stage, verdict));
        }));
        let mut decision = self.with_others(decision, &subject);
        if object.is_some() {
            let outcome = self.walk(&OBJECTS, &subject, object, true, |stage, verdict| {
                // A stage with a verdict on the name is reported again only if the object changes
                // the verdict.
                if !NAMES.contains(&stage) || !matches!(verdict, Verdict::Pass) {
                    stages.push(self.report(stage, verdict));
                }
            });
            if outcome.finding.is_some() {
                decision = decision.and(self.answer(outcome));
            }
        } else {
            let needing = OBJECTS.iter().filter(|stage| !NAMES.contains(stage));
            stages.extend(needing.map(|stage| open(stage.as_str(), "depends on what is there")));
        }
        stages.extend(
            content_stages(query.access)
                .into_iter()
                .flatten()
                .map(|stage| open(stage, "depends on the content")),
        );
        let found = self.secrets().and_then(|secrets| secrets.on_invisible(query.path));
        if let (Some(on_read), Access::Read | Access::Write) = (found, query.access) {
            let note = format!("depends on the content: readers get `{}`", on_read.as_str());
            stages.push(open("files.invisible", &note));
        }
        if self.limits.any() {
            stages.push(open("limits", "depends on what the session has done"));
        }
        if content_stages(query.access).is_some() {
            let size = self.max_size(query.access, Transport::Mount);
            let note = format!("applies at the mount in place of these: at most {size} bytes");
            stages.push(open("mount", &note));
        }
        Explanation { decision, stages }
    }

    fn report(&self, stage: Stage, verdict: &Verdict<'_>) -> StageReport {
        let (verdict, finding) = match verdict {
            Verdict::Pass => (StageVerdict::Pass, None),
            Verdict::Deny(finding) => (StageVerdict::Deny, Some((Effect::Deny, finding))),
            Verdict::WouldDeny(finding) => (StageVerdict::WouldDeny, Some((Effect::Deny, finding))),
            Verdict::Ask(finding) => (StageVerdict::Ask, Some((Effect::Ask, finding))),
            Verdict::Allow(finding) => (StageVerdict::Allow, Some((Effect::Allow, finding))),
        };
        let decision = finding.map(|(effect, finding)| finding.clone().decision(effect, self));
        let (rule, location, note) = match decision {
            Some(decision) => (
                Some(decision.rule),
                decision.location.map(|location| location.to_string()),
                decision.reason,
            ),
            None => (None, None, None),
        };
        StageReport { stage: stage.as_str(), verdict, rule, location, note }
    }
}

/// Returns the checks of content for an access.
fn content_stages(access: Access) -> Option<[&'static str; 2]> {
    match access {
        Access::Read => Some(["files.maxReadSize", "files.binary.read"]),
        Access::Write => Some(["files.maxWriteSize", "files.binary.write"]),
        Access::List | Access::Remove => None,
    }
}

fn open(stage: &'static str, note: &str) -> StageReport {
    let note = Some(note.to_owned());
    StageReport { stage, verdict: StageVerdict::Open, rule: None, location: None, note }
}
