//! `portcullis backup diff`: the changes since a backup was made.
//!
//! Both sides are read through the gateway, as the policy allows.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use portcullis_audit::Receipt;
use serde_json::{Value, json};

use super::entries::{finish, named, unsuitable};
use crate::{
    app::{failure::Failure, options::Common, output::colours},
    cli::{local_gateway::LocalGateway, render},
    gateway::{
        Backup, BackupError, BackupKind, BackupNodeKind, CONTEXT, Content, Entry, EntryKind, Error,
        ErrorKind, Recalled, Refusal, Request, unified_diff,
    },
    model::{
        Encoding, LineRange, WorkspacePath,
        request::{List, Read, Recall},
    },
};

/// Compare a backup with the current content
///
/// Prints a unified diff; of a tree the paths that differ: `M` changed, `D` no
/// longer there, `A` not there before, `?` not to be read under this policy.
/// Targets of links in a tree are not compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup diff src/main.rs")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// An id, the beginning of one, or a path
    backup: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The result of a comparison.
enum Difference {
    /// Content before and now; `None` if there is no file now.
    Contents(Vec<u8>, Option<Vec<u8>>),
    /// Paths of a tree that differ, with the letter of the kind of difference.
    Paths(BTreeMap<WorkspacePath, char>),
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let local = LocalGateway::open(&args.common)?;
    let receipts = RefCell::new(Vec::new());
    let answer = named(&local, "read", &args.backup).and_then(|entry| {
        let side = SideReader { local: &local, receipts: &receipts };
        let found = match entry.kind {
            BackupKind::Tree => Difference::Paths(side.compare_tree(&entry)?),
            BackupKind::Link => {
                return Err(side.unsuitable("a link has no lines to compare; show it"));
            }
            BackupKind::File | BackupKind::Buffer => {
                let Recalled::Content(before) = side.recall(&entry)? else {
                    return Err(side.unsuitable("the backup has no content"));
                };
                let now = side.read(&entry.path)?.map(|content| content.bytes);
                Difference::Contents(before.bytes, now)
            }
        };
        Ok((entry, found))
    });
    let receipts = receipts.into_inner();
    finish(local, answer, args.json, |(entry, found)| {
        print(args, &entry, &found, &receipts);
        if let (false, Some(last)) = (args.json, receipts.last()) {
            errln!("record {}", render::receipt_text(last));
        }
        Ok(())
    })
}

/// Reads the sides of a comparison through the gateway.
struct SideReader<'a> {
    local: &'a LocalGateway,
    /// The receipts of all its replies.
    receipts: &'a RefCell<Vec<Receipt>>,
}

impl SideReader<'_> {
    fn ask<R: Request>(&self, request: &R) -> Result<R::Output, Error> {
        let answer = self.local.handle(request);
        let receipt = match &answer {
            Ok(reply) => Some(&reply.receipt),
            Err(error) => error.receipt(),
        };
        self.receipts.borrow_mut().extend(receipt.cloned());
        Ok(answer?.output)
    }

    fn refuse(&self, refusal: &Refusal) -> Error {
        self.local.gateway().refuse(self.local.session(), "read", None, refusal)
    }

    /// Refuses to compare a backup of another type.
    fn unsuitable(&self, reason: &str) -> Error {
        self.refuse(&Refusal::Unsuitable(ErrorKind::InvalidInput, reason.to_owned()))
    }

    fn recall(&self, entry: &Backup) -> Result<Recalled, Error> {
        let (path, backup) = (entry.path.clone(), entry.id.to_string());
        self.ask(&Recall { path, backup, encoding: Encoding::Base64 })
    }

    /// Reads the file's current content; `None` if there is no file.
    fn read(&self, path: &WorkspacePath) -> Result<Option<Content>, Error> {
        let (path, range) = (path.clone(), LineRange::default());
        present(self.ask(&Read { path, range, encoding: Encoding::Base64 }))
    }

    /// Lists the entries of a directory; `None` if there is no directory.
    fn list(&self, path: &WorkspacePath) -> Result<Option<Vec<Entry>>, Error> {
        let listed = present(self.ask(&List { path: path.clone() }))?;
        Ok(listed.map(|listed| listed.entries))
    }

    fn compare_tree(&self, entry: &Backup) -> Result<BTreeMap<WorkspacePath, char>, Error> {
        let Recalled::Tree(visible) = self.recall(entry)? else { return Ok(BTreeMap::new()) };
        let damaged = |error: BackupError| self.refuse(&unsuitable(error));
        let mut hashes = BTreeMap::new();
        let mut tree = self.local.gateway().backups().tree(entry).map_err(damaged)?;
        while let Some(node) = tree.next_node().map_err(damaged)? {
            let path = tree.path(&node);
            if let (BackupNodeKind::File, Ok(path)) = (node.kind, path) {
                hashes.insert(path, node.sha256);
            }
        }
        let mut before: BTreeMap<&WorkspacePath, EntryKind> = BTreeMap::new();
        before.extend(visible.entries.iter().map(|entry| (&entry.path, entry.kind)));
        let mut now: BTreeMap<WorkspacePath, EntryKind> = BTreeMap::new();
        let mut changes = BTreeMap::new();
        if self.list(&entry.path)?.is_none() {
            changes.insert(entry.path.clone(), 'D');
            return Ok(changes);
        }
        for node in &visible.entries {
            if node.kind == EntryKind::Directory
                && (node.path == entry.path || now.get(&node.path) == Some(&node.kind))
            {
                let there = self.list(&node.path)?.unwrap_or_default();
                now.extend(there.into_iter().map(|entry| (entry.path, entry.kind)));
            }
            if node.path == entry.path {
                continue;
            }
            let change = match now.get(&node.path) {
                None => Some('D'),
                Some(kind) if *kind != node.kind => Some('M'),
                Some(EntryKind::File) => {
                    let expected = hashes.get(&node.path).copied().flatten();
                    match self.read(&node.path) {
                        Ok(Some(now)) => (Some(now.whole) != expected).then_some('M'),
                        Ok(None) => Some('D'),
                        Err(_) => Some('?'),
                    }
                }
                Some(_) => None,
            };
            changes.extend(change.map(|change| (node.path.clone(), change)));
        }
        let added = now.into_keys().filter(|path| !before.contains_key(path));
        changes.extend(added.map(|path| (path, 'A')));
        Ok(changes)
    }
}

/// Converts the error of a missing entry to `None`.
fn present<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        answer => answer.map(Some),
    }
}

fn print(args: &Args, entry: &Backup, found: &Difference, receipts: &[Receipt]) {
    match found {
        _ if args.json => outjson!(found_json(entry, found, receipts)),
        Difference::Contents(before, now) => match unified(entry, before, now.as_deref()) {
            None => outln!("{}: binary contents differ", entry.path),
            Some(diff) if io::stdout().is_terminal() => {
                let lines = render::diff_lines(&diff, colours());
                lines.iter().for_each(|line| outln!("{line}"));
            }
            Some(diff) => out!("{diff}"),
        },
        Difference::Paths(paths) => {
            paths.iter().for_each(|(path, change)| outln!("{change} {path}"));
        }
    }
}

fn found_json(entry: &Backup, found: &Difference, receipts: &[Receipt]) -> Value {
    let mut object = json!({
        "ok": true,
        "id": entry.id.to_string(),
        "path": entry.path.as_str(),
        "receipts": receipts,
    });
    let fields = match found {
        Difference::Contents(before, now) => json!({
            "same": now.as_ref() == Some(before),
            "missing": now.is_none(),
            "diff": unified(entry, before, now.as_deref()),
        }),
        Difference::Paths(paths) => json!({
            "same": paths.is_empty(),
            "paths": paths
                .iter()
                .map(|(path, change)| json!({ "path": path.as_str(), "change": change }))
                .collect::<Vec<_>>(),
        }),
    };
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}

/// Returns the differences as a unified diff, empty without any; `None` if a side is
/// not text.
fn unified(entry: &Backup, before: &[u8], now: Option<&[u8]>) -> Option<String> {
    let old = str::from_utf8(before).ok().filter(|text| !text.contains('\0'));
    let new = str::from_utf8(now.unwrap_or_default()).ok().filter(|text| !text.contains('\0'));
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        _ if now == Some(before) => return Some(String::new()),
        _ => return None,
    };
    let path = entry.path.to_string();
    let then = format!("a/{path} (backup {})", entry.id);
    let there = if now.is_some() { format!("b/{path}") } else { "/dev/null".to_owned() };
    Some(unified_diff(old, new, (&then, &there), CONTEXT))
}
