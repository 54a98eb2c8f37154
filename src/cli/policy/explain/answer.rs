//! The decision on an operation with all of its parts, and its output.

use std::iter;

use serde_json::{Value, json};

use super::{
    implied::{ImpliedDecisions, ImpliedPart, MOVED, keep},
    search::{Search, is_entrywise},
};
use crate::{
    app::failure::Failure,
    cli::rows::prose,
    gateway::{Follow, LinkDecisions, Resolved, WorkspaceView, decide_name},
    model::{Access, AgentName, Escaped, OperationKind, WorkspacePath},
    policy::{
        Decision, Effect, Explanation, Object, ObjectKind, Policy, Query, SourceLocation,
        StageReport, path_accesses,
    },
};

/// An access to a path with its explanation.
pub(super) struct Answer {
    pub(super) access: Access,
    pub(super) path: WorkspacePath,
    pub(super) explanation: Explanation,
}

/// The decisions on the names and on the entries there.
#[derive(Default)]
pub(super) struct EntryDecisions {
    pub(super) answers: Vec<Answer>,
    pub(super) notes: Vec<String>,
    /// Refusals by the workspace itself.
    pub(super) refused: Vec<Decision>,
    /// The number of answers before the first error of the workspace, after which the gateway decides
    /// no more.
    pub(super) stopped_at: Option<usize>,
}

/// Returns the decision on an operation with all of its parts.
pub(super) fn explained(
    policy: &Policy,
    workspace: WorkspaceView<'_>,
    agent: &AgentName,
    operation: OperationKind,
    path: &WorkspacePath,
    to: Option<&WorkspacePath>,
) -> Result<(Decision, Vec<Answer>, Vec<String>), Failure> {
    const NOTHING: &str = "nothing was asked";
    let entrywise = is_entrywise(operation);
    let EntryDecisions { answers, mut notes, refused, stopped_at } = match entrywise {
        true => Search { policy, workspace, agent, operation }.asked(path),
        false => answers(policy, workspace, agent, operation, path, to),
    };
    notes.extend(iter::once(path).chain(to).filter_map(|path| scratch_note(policy, path)));
    let answered = |answer: &Answer| answer.explanation.decision.clone();
    if entrywise {
        // The record of a search names the first denial, but the last allowance.
        let stricter = |before: Decision, after: Decision| {
            if before.is_deny() { before } else { after.and(before) }
        };
        let decision = answers.iter().map(answered).chain(refused).reduce(stricter);
        return Ok((decision.ok_or_else(|| Failure::new(NOTHING))?, answers, notes));
    }
    let by_name = |access, path| decide_name(policy, &Query { agent, operation, access, path });
    // The gateway decides on all requested names before it looks at anything.
    let requested = path_accesses(operation, path, to);
    let names = requested.into_iter().map(|(access, path)| by_name(access, path));
    let names = names.chain(to.map(|to| policy.evaluate_move_by_name(agent, path, to)));
    let named = names.reduce(Decision::and).ok_or_else(|| Failure::new(NOTHING))?;
    let mut decided = Decided { before: named.clone(), decision: named };
    for answer in answers.iter().take(stopped_at.unwrap_or(answers.len())) {
        decided.add(by_name(answer.access, &answer.path));
        decided.add(answered(answer));
    }
    for refusal in refused {
        decided.add(refusal);
    }
    let implied = ImpliedDecisions { policy, workspace, agent, operation };
    let parts =
        [ImpliedPart::OnTheWay, ImpliedPart::Entries].into_iter().filter(|_| stopped_at.is_none());
    for part in parts {
        if decided.decision.is_deny() {
            break;
        }
        let mut found = None;
        let ended = implied.decide(part, path, to, &mut |location, path, decision| {
            let changes = decided.add(decision.clone());
            // The decision on a name that was asked about is shown already.
            if changes || location != MOVED {
                keep(&mut found, (location, path), decision);
            }
        });
        if let Some((location, decision)) = found {
            notes.push(format!("{location} is {}", sentence(&decision)));
        }
        if let (Err(error), false) = (ended, decided.decision.is_deny()) {
            notes.push(format!("{part}, nothing can be decided: {error}"));
            LinkDecisions::refused(&error).into_iter().for_each(|refusal| _ = decided.add(refusal));
            break;
        }
    }
    let Decided { before, decision } = decided;
    // A denial that does not follow from the requested names reveals what is there, so an agent that
    // may not look learns of it after an approval only. A restore is the operator's request.
    let may_look = |answer: &Answer| {
        policy.labels().of(&answer.path).is_empty() && policy.may_look(agent, &answer.path)
    };
    if decision.is_deny()
        && before.is_ask()
        && operation != OperationKind::Restore
        && !answers.iter().all(may_look)
    {
        notes.push(format!("after an approval it is {}", sentence(&decision)));
        return Ok((before, answers, notes));
    }
    Ok((decision, answers, notes))
}

/// Decisions in the order of the gateway, which stops at the first denial.
struct Decided {
    /// The strictest decision that precedes the denial, if there is one.
    before: Decision,
    decision: Decision,
}

impl Decided {
    /// Adds a decision; returns true if it makes the entire decision stricter.
    fn add(&mut self, next: Decision) -> bool {
        let strictness = |decision: &Decision| (decision.effect(), decision.would_deny());
        if self.decision.is_deny() {
            return false;
        }
        self.before = self.decision.clone();
        self.decision = self.decision.clone().and(next);
        strictness(&self.decision) > strictness(&self.before)
    }
}

/// Returns a note on a path in a scratch directory, where this decision does not apply to programs.
fn scratch_note(policy: &Policy, path: &WorkspacePath) -> Option<String> {
    let scratch = policy.scratch()?;
    let ancestors = path.ancestors();
    let directory = ancestors.iter().chain([path]).find(|path| scratch.matches(path))?;
    let is_repository = directory.file_name().is_some_and(|n| n.eq_ignore_ascii_case(".git"));
    let key = if is_repository { "git" } else { "scratch" };
    Some(format!(
        "{} is a scratch directory (`[{key}]`): in the sandbox, programs read and write there \
         files of their own, which are neither decided on nor recorded",
        directory.named()
    ))
}

/// Makes the same decisions as the gateway: on the names as given, then on the
/// canonical ones with their objects.
pub(super) fn answers(
    policy: &Policy,
    workspace: WorkspaceView<'_>,
    agent: &AgentName,
    operation: OperationKind,
    path: &WorkspacePath,
    to: Option<&WorkspacePath>,
) -> EntryDecisions {
    let follow = match operation {
        OperationKind::Remove | OperationKind::Rename | OperationKind::Restore => Follow::No,
        _ => Follow::Yes,
    };
    let moving = moving(workspace, operation, path);
    let (mut answers, mut notes, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut stopped_at = None;
    for (access, path) in path_accesses(operation, path, to) {
        let explain = |path: &WorkspacePath, resolved: Option<&Resolved>| {
            let query = Query { agent, operation, access, path };
            let moving = moving.filter(|_| access == Access::Write);
            let object = resolved.map(|resolved| there(resolved, moving));
            let explanation = policy.explain(&query, object.as_ref());
            Answer { access, path: path.clone(), explanation }
        };
        let is_asked = policy.evaluate(&Query { agent, operation, access, path }).is_ask();
        let following = LinkDecisions { policy, agent, operation, accesses: &[access], is_asked };
        let mut followed = Vec::new();
        match following.resolve(workspace, path, follow, &mut followed) {
            Ok(resolved) if resolved.path() == path => {
                answers.push(explain(path, Some(&resolved)));
            }
            Ok(resolved) => {
                notes.push(format!("`{path}` leads to `{}`", resolved.path()));
                if operation == OperationKind::Restore {
                    let reason = "a backup is never restored through a link";
                    refused.push(Decision::built_in_denial("restore.links", reason));
                }
                followed.retain(|name| name != resolved.path());
                answers.extend(iter::once(path).chain(&followed).map(|name| explain(name, None)));
                answers.push(explain(resolved.path(), Some(&resolved)));
            }
            Err(error) => {
                notes.push(format!("`{path}` would be refused by the workspace: {error}"));
                answers.extend(iter::once(path).chain(&followed).map(|name| explain(name, None)));
                if stopped_at.is_none() {
                    stopped_at = Some(answers.len());
                    refused.extend(LinkDecisions::refused(&error));
                }
            }
        }
    }
    EntryDecisions { answers, notes, refused, stopped_at }
}

/// Returns the object that a rename moves.
fn moving(
    workspace: WorkspaceView<'_>,
    operation: OperationKind,
    path: &WorkspacePath,
) -> Option<Object> {
    let resolved =
        (operation == OperationKind::Rename).then(|| workspace.resolve(path, Follow::No));
    resolved?.ok().map(|resolved| resolved.object())
}

/// Returns the existing or future object at a path: for a missing one, the moved
/// object.
fn there(resolved: &Resolved, moving: Option<Object>) -> Object {
    match (resolved.object(), moving) {
        (Object { kind: ObjectKind::Missing, through_symlink, .. }, Some(moving)) => {
            Object { through_symlink, links: 1, ..moving }
        }
        (there, _) => there,
    }
}

pub(super) fn print_report(
    policy: &Policy,
    agent: &AgentName,
    operation: OperationKind,
    decision: &Decision,
    answers: &[Answer],
    notes: &[String],
) {
    outln!("{}", prose(&sentence(decision), 4));
    outln!("policy `{}` version {}, agent `{agent}`", policy.name(), policy.version());
    for note in notes {
        outln!("{}", prose(&format!("note: {note}"), 4));
    }
    for answer in answers {
        outln!("\n{operation}: {} {}", answer.access, answer.path);
        for stage in &answer.explanation.stages {
            outln!("{}", prose(&stage_line(stage), 8));
        }
    }
}

/// `denied by `ci` (policy.toml:12): CI changes need a person`
pub(super) fn sentence(decision: &Decision) -> String {
    let (effect, would_deny) = (decision.effect(), decision.would_deny());
    describe(effect, would_deny, decision.rule(), decision.location(), decision.reason())
}

pub(super) fn describe(
    effect: Effect,
    would_deny: bool,
    rule: &str,
    location: Option<&SourceLocation>,
    reason: Option<&str>,
) -> String {
    let verb = if would_deny { "observed only: would be denied" } else { effect.verb() };
    let location = location.map(|location| format!(" ({})", Escaped(&location.to_string())));
    let reason = reason.map(|reason| format!(": {reason}"));
    format!("{verb} by `{rule}`{}{}", location.unwrap_or_default(), reason.unwrap_or_default())
}

pub(super) fn stage_line(stage: &StageReport) -> String {
    let rest: Vec<_> = [&stage.rule, &stage.location, &stage.note]
        .into_iter()
        .flatten()
        .map(|text| Escaped(text).to_string())
        .collect();
    let line = format!("  {:5} {:21} {}", stage.verdict.as_str(), stage.stage, rest.join("  "));
    line.trim_end().to_owned()
}

pub(super) fn report_json(
    policy: &Policy,
    agent: &AgentName,
    operation: OperationKind,
    decision: &Decision,
    answers: &[Answer],
    notes: &[String],
) -> Value {
    let accesses: Vec<_> = answers
        .iter()
        .map(|answer| {
            json!({
                "access": answer.access.as_str(),
                "path": answer.path.relative(),
                "decision": decision_json(&answer.explanation.decision),
                "stages": answer.explanation.stages,
            })
        })
        .collect();
    json!({
        "operation": operation.as_str(),
        "agent": agent.as_str(),
        "policy": {
            "name": policy.name(),
            "version": policy.version(),
            "sha256": policy.sha256(),
        },
        "decision": decision_json(decision),
        "accesses": accesses,
        "notes": notes,
    })
}

pub(super) fn decision_json(decision: &Decision) -> Value {
    json!({
        "effect": decision.effect().as_str(),
        "rule": decision.rule(),
        "file": decision.location().map(|location| &location.file),
        "line": decision.location().map(|location| location.line),
        "reason": decision.reason(),
        "wouldDeny": decision.would_deny(),
    })
}
