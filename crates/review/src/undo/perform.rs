//! Execution of an undo's steps through the gateway.

use std::collections::{BTreeMap, HashMap};

use portcullis_audit::Receipt;
use serde_json::json;

use super::{Action, Error, Preview, Status, Step, preview, state::is_directory};
use crate::{
    change::UNDOES,
    gateway::{
        self, Approver, Base, Changed, ErrorKind, Exchange, Gateway, Request, SomeAttributes,
        WorkspaceError,
    },
    model::{
        Session, WorkspacePath,
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
    pub done: u64,
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

impl Preview {
    /// Marks the steps that depend on one that `choice` leaves out, which leaves them out, too.
    pub fn choose(&mut self, choice: Choice) {
        let mut left_out: Vec<Step> = Vec::new();
        for (step, status) in &mut self.steps {
            let depends = left_out
                .iter()
                .any(|other| step.paths().into_iter().any(|path| other.concerns(path)));
            match status {
                Status::Unchanged | Status::Skipped(_) => {}
                Status::Ready | Status::Depends if !depends => {}
                Status::Conflict(_) if choice == Choice::Overwrite && !depends => {}
                Status::Conflict(_) if choice != Choice::Overwrite => left_out.push(step.clone()),
                Status::Impossible(_) => left_out.push(step.clone()),
                Status::Ready | Status::Depends | Status::Conflict(_) => {
                    *status = Status::Depends;
                    left_out.push(step.clone());
                }
            }
        }
    }

    /// Returns the steps that `choice` leaves out, as far as the current state says.
    pub fn left_out(&self, choice: Choice) -> Vec<(Step, Status)> {
        let is_left_out = |(_, status): &&(Step, Status)| match status {
            Status::Ready | Status::Unchanged => false,
            Status::Conflict(_) => choice != Choice::Overwrite,
            Status::Impossible(_) | Status::Skipped(_) | Status::Depends => true,
        };
        self.steps.iter().filter(is_left_out).cloned().collect()
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
        last.extend(step.undoes().map(|record| (record, place)));
    }
    'steps: for (place, (step, shown)) in preview.steps.iter().enumerate() {
        progress();
        if *shown == Status::Unchanged {
            continue;
        }
        let failed = |error, performed: &Performed| Failed {
            step: Box::new(step.clone()),
            error: Box::new(error),
            performed: Box::new(performed.clone()),
        };
        let depends = performed.left_out.iter().any(|(other, status)| {
            !matches!(status, Status::Skipped(_))
                && step.paths().into_iter().any(|path| other.concerns(path))
        });
        // Not after the comparison: a directory that appears then is not the entry to remove, and what
        // somebody stores while the step is compared is not what was compared.
        let recursive = is_directory(gateway, &step.path);
        let bases: HashMap<_, _> =
            step.paths().into_iter().map(|path| (path, base(gateway, path))).collect();
        let status = match depends {
            true => Status::Depends,
            false => preview::now(gateway, session, step)
                .map_err(|error| failed(StepError::Look(error), &performed))?,
        };
        // Some conflicts can be seen only while no step is taken yet.
        let conflict = match (&status, shown) {
            (Status::Conflict(_), _) => Some(&status),
            (Status::Ready, Status::Conflict(_)) => Some(shown),
            _ => None,
        };
        let go = match &status {
            _ if conflict.is_some() => choice == Choice::Overwrite,
            Status::Ready | Status::Conflict(_) => true,
            Status::Unchanged if !matches!(shown, Status::Impossible(_)) => continue,
            Status::Unchanged | Status::Impossible(_) | Status::Skipped(_) | Status::Depends => {
                false
            }
        };
        if !go {
            let seen = if status == Status::Unchanged { Some(shown) } else { conflict };
            performed.left_out.push((step.clone(), seen.cloned().unwrap_or(status)));
            continue;
        }
        let Some(requests) = requests(gateway, step, recursive, conflict.is_some()) else {
            let reason = "something else is there now".to_owned();
            performed.left_out.push((step.clone(), Status::Conflict(reason)));
            continue;
        };
        let mut requests = requests.into_iter().peekable();
        while let Some(request) = requests.next() {
            let done = |record: &u64| requests.peek().is_none() && last.get(record) == Some(&place);
            let records: Vec<u64> = step.undoes().filter(done).take(MAX_RECORDS).collect();
            let facts = BTreeMap::from([(UNDOES.to_owned(), json!(records))]);
            let base = bases.get(request.as_operation().path()).copied().unwrap_or_default();
            match gateway.undo(session, (&*request, base), &facts, approver) {
                Ok(reply) => performed.receipts.push(reply.receipt),
                Err(error) if choice == Choice::Skip && is_changed(&error) => {
                    let reason = "it was changed while it was compared".to_owned();
                    performed.left_out.push((step.clone(), Status::Conflict(reason)));
                    continue 'steps;
                }
                Err(error) => return Err(failed(StepError::Gateway(error), &performed)),
            }
        }
        performed.done += 1;
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

/// Returns the state of a path, on which a request of an undo is based.
fn base(gateway: &Gateway, path: &WorkspacePath) -> Base {
    match gateway.workspace().stat(path) {
        Ok(stat) => Base::Version(stat.version()),
        Err(WorkspaceError::NotFound | WorkspaceError::NotADirectory) => Base::Nothing,
        // The comparison tells it.
        Err(_) => Base::Anything,
    }
}

fn is_changed(error: &gateway::Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
}

/// A request of an undo.
type Undo = Box<dyn Request<Output = Changed>>;

/// Returns the requests to the gateway for a step; `None` if its path has another entry than the
/// one whose replacement was confirmed. A removal removes the contents of a directory if
/// `recursive`. `overwrites` is true if a person confirmed a conflict.
fn requests(
    gateway: &Gateway,
    step: &Step,
    recursive: bool,
    overwrites: bool,
) -> Option<Vec<Undo>> {
    let path = step.path.clone();
    let remove = |path, recursive| -> Undo { Box::new(Remove { path, recursive }) };
    Some(match &step.action {
        Action::Restore(id) => {
            vec![Box::new(Restore { path, backup: id.to_string(), dry_run: false })]
        }
        // The directory is a restored tree, or one that conflicts.
        Action::Remove => vec![remove(path, recursive)],
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
            // Without a confirmed conflict the path was free; if it is not, the rename is refused.
            let now = match overwrites {
                true => gateway.workspace().identity(&path),
                false => return Some(vec![rename]),
            };
            match (now, &step.in_the_way) {
                (Err(WorkspaceError::NotFound | WorkspaceError::NotADirectory), _) => vec![rename],
                (Ok(now), Some(shown)) if shown.is_unchanged(&now) => {
                    vec![remove(path, true), rename]
                }
                _ => return None,
            }
        }
    })
}
