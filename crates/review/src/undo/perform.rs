//! Execution of an undo's steps through the gateway.

use std::collections::{BTreeMap, HashMap};

use portcullis_audit::Receipt;
use serde_json::json;

use super::{Action, Error, Preview, Status, Step, preview};
use crate::{
    change::UNDOES,
    gateway::{self, Approver, Changed, Exchange, Gateway, Request, SomeAttributes},
    model::{
        Session,
        request::{Remove, Rename, Restore, SetAttributes},
    },
};

/// Maximum number of records that one record of an undo lists: a record is at most 1 MiB.
const MAX_RECORDS: usize = 50_000;

/// The treatment of steps that conflict or are impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Nothing is done if there is one.
    Refuse,
    /// They are left out, with the steps that depend on them.
    Skip,
    /// Conflicting entries are backed up and replaced; impossible steps are left out.
    Overwrite,
}

/// The result of an undo.
#[derive(Debug, Clone, Default)]
pub struct Performed {
    /// Number of steps taken.
    pub taken: u64,
    /// The receipts of their requests.
    pub receipts: Vec<Receipt>,
    /// The steps left out, with their status.
    pub left_out: Vec<(Step, Status)>,
}

impl Choice {
    /// True if the steps of a preview may be taken.
    pub fn allows(self, preview: &Preview) -> bool {
        self != Self::Refuse
            || preview.count(|s| matches!(s, Status::Conflict(_) | Status::Impossible(_))) == 0
    }
}

/// Takes the steps of a preview in order. Each is compared again just before: a change since the
/// preview is a conflict, too. `approver` asks the operator where a rule requires it.
///
/// # Errors
/// The step that failed, after which nothing more was done. Running the same command again
/// continues there.
pub fn perform(
    gateway: &Gateway,
    session: &Session,
    preview: &Preview,
    choice: Choice,
    approver: &dyn Approver,
    progress: &mut dyn FnMut(),
) -> Result<Performed, Failed> {
    let mut performed = Performed::default();
    // A change that takes several steps counts as undone with the last of them.
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
            false => preview::now(gateway, session, step)
                .map_err(|error| failed(StepError::Look(error), &performed))?,
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
                .map_err(|error| failed(StepError::Gateway(error), &performed))?;
            performed.receipts.push(reply.receipt);
        }
        performed.taken += 1;
    }
    Ok(performed)
}

/// The failure that stopped an undo.
#[derive(Debug, thiserror::Error)]
#[error("`{}`: {error}", .step.path)]
pub struct Failed {
    /// The step that failed.
    pub step: Box<Step>,
    /// The reason.
    pub error: Box<StepError>,
    /// The result before the failure.
    pub performed: Box<Performed>,
}

/// Reasons why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Its paths could not be read.
    #[error(transparent)]
    Look(Error),
    /// The gateway did not carry it out.
    #[error(transparent)]
    Gateway(gateway::Error),
}

/// A request of an undo.
type Undo = Box<dyn Request<Output = Changed>>;

/// Returns the requests to the gateway for a step.
fn requests(gateway: &Gateway, step: &Step, status: &Status) -> Vec<Undo> {
    let path = step.path.clone();
    let remove = |path, recursive| -> Undo { Box::new(Remove { path, recursive }) };
    match &step.action {
        Action::Restore(id) => {
            vec![Box::new(Restore { path, backup: id.to_string(), dry_run: false })]
        }
        Action::Remove => {
            // The directory is a restored tree, or one that conflicts.
            let whole = preview::is_directory(gateway, &path);
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
