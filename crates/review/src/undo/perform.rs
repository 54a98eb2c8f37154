//! Execution of an undo's steps through the gateway.

use std::collections::{BTreeMap, HashMap};

use portcullis_audit::Receipt;
use serde_json::json;

use super::{Action, Preview, Status, Step, preview, related::StepPaths, state::is_directory};
use crate::{
    change::{STEP_OF, UNDOES},
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

/// The treatment of steps that conflict, are impossible, or fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Nothing is done if a step conflicts or is impossible, and nothing more after one that fails.
    Refuse,
    /// They are left out, with the steps that depend on them.
    Skip,
    /// Conflicting entries are backed up and replaced; the other steps are left out.
    Overwrite,
}

/// The result of an undo, besides the new status of each step.
#[derive(Debug, Clone, Default)]
pub struct Performed {
    /// The receipts of the requests that were carried out.
    pub receipts: Vec<Receipt>,
    /// The failure of the step after which no other one was tried.
    pub stopped: Option<gateway::Error>,
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
        let mut left_out = StepPaths::default();
        for (step, status) in &mut self.steps {
            let depends = left_out.are_related_to(step.paths());
            match status {
                Status::Unchanged | Status::Skipped(_) | Status::Done | Status::Failed(_) => {}
                Status::Ready | Status::Depends if !depends => {}
                Status::Conflict(_) if choice == Choice::Overwrite && !depends => {}
                Status::Conflict(_) if choice != Choice::Overwrite => left_out.add(step.paths()),
                Status::Impossible(_) => left_out.add(step.paths()),
                Status::Ready | Status::Depends | Status::Conflict(_) => {
                    *status = Status::Depends;
                    left_out.add(step.paths());
                }
            }
        }
    }
}

/// Takes the steps of a preview in order, and gives each its new status; one that was not tried
/// keeps its status. Each is compared again just before: a change since the preview is a conflict,
/// too. `approver` asks the operator where a rule requires it.
///
/// After a failure that stopped it, the same command continues there.
pub fn perform(
    gateway: &Gateway,
    session: &Session,
    preview: &mut Preview,
    choice: Choice,
    approver: &dyn Approver,
    progress: &mut dyn FnMut(),
) -> Performed {
    let mut execution = Execution { gateway, session, choice, approver, receipts: Vec::new() };
    // A change that takes several steps counts as undone with the last of them.
    let mut last = HashMap::new();
    for (place, (step, status)) in preview.steps.iter().enumerate() {
        if *status != Status::Unchanged {
            last.extend(step.undoes().map(|record| (record, place)));
        }
    }
    let (mut left_out, mut stopped) = (StepPaths::default(), None);
    for (place, (step, status)) in preview.steps.iter_mut().enumerate() {
        progress();
        if *status == Status::Unchanged {
            continue;
        }
        let records: Records = step.undoes().partition(|record| last.get(record) == Some(&place));
        let taken = match left_out.are_related_to(step.paths()) {
            true => Ok(Status::Depends),
            false => execution.take(step, status, &records),
        };
        let failure = taken.as_ref().err().cloned();
        *status = taken.unwrap_or_else(|error| Status::Failed(error.to_string()));
        // Without a log no other step can be taken.
        let stops = |error: &gateway::Error| {
            choice == Choice::Refuse || error.kind() == ErrorKind::Unavailable
        };
        stopped = failure.filter(stops);
        if stopped.is_some() {
            break;
        }
        if !matches!(status, Status::Done | Status::Unchanged | Status::Skipped(_)) {
            left_out.add(step.paths());
        }
    }
    Performed { receipts: execution.receipts, stopped }
}

/// The records that are undone with a step, and those that later steps finish undoing.
type Records = (Vec<u64>, Vec<u64>);

struct Execution<'a> {
    gateway: &'a Gateway,
    session: &'a Session,
    choice: Choice,
    approver: &'a dyn Approver,
    receipts: Vec<Receipt>,
}

impl Execution<'_> {
    /// Takes a step that was shown with the status `shown`, unless its state now is a reason to leave
    /// it out; returns its new status. The first `records` count as undone with its last request, the
    /// others with a later step.
    fn take(
        &mut self,
        step: &Step,
        shown: &Status,
        records: &Records,
    ) -> Result<Status, gateway::Error> {
        let gateway = self.gateway;
        // Not after the comparison: a directory that appears then is not the entry to remove, and what
        // somebody stores while the step is compared is not what was compared.
        let recursive = is_directory(gateway, &step.path);
        let bases: Result<HashMap<_, _>, WorkspaceError> =
            step.paths().into_iter().map(|path| Ok((path, base(gateway, path)?))).collect();
        let now = preview::now(gateway, self.session, step);
        // Some conflicts can be seen only while no step is taken yet.
        let conflict = match (&now, shown) {
            (Status::Conflict(_), _) => Some(&now),
            (Status::Ready, Status::Conflict(_)) => Some(shown),
            _ => None,
        };
        match (&now, conflict) {
            (_, Some(conflict)) if self.choice != Choice::Overwrite => return Ok(conflict.clone()),
            (Status::Unchanged, _) if matches!(shown, Status::Impossible(_)) => {
                return Ok(shown.clone());
            }
            (Status::Ready | Status::Conflict(_), _) => {}
            _ => return Ok(now),
        }
        // What cannot be looked at was not compared, either.
        let bases = match bases {
            Ok(bases) => bases,
            Err(error) => return Ok(Status::Impossible(error.to_string())),
        };
        let Some(requests) = requests(gateway, step, recursive, conflict.is_some()) else {
            return Ok(Status::Conflict("something else is there now".to_owned()));
        };
        let mut requests = requests.into_iter().peekable();
        while let Some(request) = requests.next() {
            let (mut undone, mut rest) = match requests.peek() {
                None => records.clone(),
                Some(_) => (Vec::new(), step.undoes().collect()),
            };
            undone.truncate(MAX_RECORDS);
            rest.truncate(MAX_RECORDS.saturating_sub(undone.len()));
            let mut facts = BTreeMap::from([(UNDOES.to_owned(), json!(undone))]);
            if !rest.is_empty() {
                facts.insert(STEP_OF.to_owned(), json!(rest));
            }
            let base = bases.get(request.as_operation().path()).copied().unwrap_or(Base::Nothing);
            let reply = gateway.undo(self.session, (&*request, base), &facts, self.approver)?;
            self.receipts.push(reply.receipt);
        }
        Ok(Status::Done)
    }
}

/// Returns the state of a path, on which a request of an undo is based.
fn base(gateway: &Gateway, path: &WorkspacePath) -> Result<Base, WorkspaceError> {
    match gateway.workspace().stat(path) {
        Ok(stat) => Ok(Base::Version(stat.version())),
        Err(WorkspaceError::NotFound | WorkspaceError::NotADirectory) => Ok(Base::Nothing),
        Err(error) => Err(error),
    }
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
