//! Takes the steps of an undo, each through the gate.

use std::collections::{BTreeMap, HashMap};

use portcullis_audit::Receipt;
use serde_json::json;

use super::{Action, Error, Preview, Status, Step, look};
use crate::{
    change::UNDOES,
    gateway::{self, Approver, Changed, Exchange, Gateway, Request, SomeAttributes},
    model::{
        Session,
        request::{Remove, Rename, Restore, SetAttributes},
    },
};

/// The most record numbers that one record of an undo repeats: a record is at
/// most a mebibyte.
const MAX_RECORDS: usize = 50_000;

/// What becomes of steps that something stands in the way of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Nothing is done at all while there is one.
    Refuse,
    /// They are left out, with what depends on them.
    Skip,
    /// What is in the way is replaced (it is kept first); what is impossible is
    /// left out.
    Overwrite,
}

/// What an undo did.
#[derive(Debug, Clone, Default)]
pub struct Performed {
    /// Steps taken.
    pub taken: u64,
    /// The receipts of what was done for them.
    pub receipts: Vec<Receipt>,
    /// Steps left out, with why.
    pub left_out: Vec<(Step, Status)>,
}

impl Choice {
    /// Whether the steps of a preview may be taken.
    pub fn allows(self, preview: &Preview) -> bool {
        self != Self::Refuse
            || preview.count(|s| matches!(s, Status::Conflict(_) | Status::Impossible(_))) == 0
    }
}

/// Takes the steps of a preview in their order. Each is looked at again right
/// before: what changed since the preview is a conflict, too. `approver` asks a
/// person where a rule says so.
///
/// # Errors
/// The step that failed, after which nothing more was done: the same command
/// again goes on where this one stopped.
pub fn perform(
    gateway: &Gateway,
    session: &Session,
    preview: &Preview,
    choice: Choice,
    approver: &dyn Approver,
    progress: &mut dyn FnMut(),
) -> Result<Performed, Failed> {
    let mut performed = Performed::default();
    // A change whose undoing takes several steps is undone with the last.
    let mut last = HashMap::new();
    for (place, (step, _)) in preview.steps.iter().enumerate() {
        last.extend(step.records.iter().map(|record| (*record, place)));
    }
    for (place, (step, shown)) in preview.steps.iter().enumerate() {
        progress();
        if *shown == Status::Done {
            continue;
        }
        let failed = |error, performed: &Performed| Failed {
            step: Box::new(step.clone()),
            error: Box::new(error),
            performed: Box::new(performed.clone()),
        };
        let depends = performed.left_out.iter().any(|(other, status)| {
            !matches!(status, Status::Stays(_))
                && step.paths().into_iter().any(|path| other.concerns(path))
        });
        let status = match depends {
            true => Status::Depends,
            false => look::now(gateway, session, step)
                .map_err(|error| failed(Why::Look(error), &performed))?,
        };
        let go = match &status {
            Status::Ready => true,
            Status::Done => continue,
            Status::Conflict(_) => choice == Choice::Overwrite,
            Status::Impossible(_) | Status::Stays(_) | Status::Depends => false,
        };
        if !go {
            performed.left_out.push((step.clone(), status));
            continue;
        }
        let mut requests = requests(gateway, step, &status).into_iter().peekable();
        while let Some(request) = requests.next() {
            let done = |record: &u64| requests.peek().is_none() && last.get(record) == Some(&place);
            let records: Vec<u64> =
                step.records.iter().copied().filter(done).take(MAX_RECORDS).collect();
            let facts = BTreeMap::from([(UNDOES.to_owned(), json!(records))]);
            let reply = gateway
                .undo(session, &*request, &facts, approver)
                .map_err(|error| failed(Why::Gate(error), &performed))?;
            performed.receipts.push(reply.receipt);
        }
        performed.taken += 1;
    }
    Ok(performed)
}

/// The step at which an undo stopped.
#[derive(Debug, thiserror::Error)]
#[error("`{}`: {error}", .step.path)]
pub struct Failed {
    /// The step.
    pub step: Box<Step>,
    /// Why it could not be taken.
    pub error: Box<Why>,
    /// What was done before.
    pub performed: Box<Performed>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// What it is about could not be looked at.
    #[error(transparent)]
    Look(Error),
    /// The gate did not do it.
    #[error(transparent)]
    Gate(gateway::Error),
}

/// A request of an undo.
type Undo = Box<dyn Request<Output = Changed>>;

/// What the gate is asked to do for a step.
fn requests(gateway: &Gateway, step: &Step, status: &Status) -> Vec<Undo> {
    let path = step.path.clone();
    let remove = |path, recursive| -> Undo { Box::new(Remove { path, recursive }) };
    match &step.action {
        Action::Restore(id) => {
            vec![Box::new(Restore { path, backup: id.to_string(), dry_run: false })]
        }
        Action::Remove => {
            // A tree that a restore made, or what came in the way.
            let whole = look::is_directory(gateway, &path);
            vec![remove(path, whole)]
        }
        Action::RemoveDirectory => vec![remove(path, false)],
        Action::SetAttributes(SomeAttributes { mode, modified }) => {
            vec![Box::new(SetAttributes { path, mode: *mode, modified: *modified })]
        }
        Action::Exchange { with } => {
            let rename = Rename { from: with.clone(), to: path, replace: false };
            vec![Box::new(Exchange { rename })]
        }
        Action::Rename { from } => {
            let rename = Box::new(Rename { from: from.clone(), to: path.clone(), replace: false });
            match status {
                Status::Conflict(_) => vec![remove(path, true), rename],
                _ => vec![rename],
            }
        }
    }
}
