//! The branches of a private repository, as git lists them, and the commits between them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io::Write as _,
};

use super::{
    import::BRANCH,
    processes::{MAX_BRANCHES, MAX_COMMITS},
};
use crate::{
    app::{
        failure::Failure,
        git::{Running, private},
    },
    cli::import_report::Branch,
    git::{Commit, Error, ObjectId, Source, check_branch},
};

/// The maximum of bytes of a list of refs, and of one of commits.
const MAX_REFS: u64 = 4 << 20;
const MAX_LIST: u64 = 2 << 20;
/// The reason why a branch is left out that git cannot list.
const DAMAGED: &str = "a commit of it cannot be read";
/// The reason why a branch is left out whose name conflicts with another ref.
pub(super) const CONFLICT: &str =
    "another ref of this import or of an earlier one is a directory of it, or lies in it";

/// The branches of a repository that the session moved, and their new commits.
#[derive(Debug)]
pub(super) struct Moved {
    /// The current commits of the branches.
    pub(super) branches: BTreeMap<String, ObjectId>,
    /// Branches whose names are not imported, with the reason.
    pub(super) refused: Vec<(String, &'static str)>,
    /// A commit with which the session began.
    pub(super) start: Option<ObjectId>,
    /// The commits, parents first.
    pub(super) commits: Vec<ObjectId>,
}

fn unreadable(what: &str, exec: &str) -> Failure {
    Failure::new(format_args!("cannot read the {what} of the agent's repository")).help(
        format_args!("`{exec} -- git fsck` may say more; the repository is the agent's to damage"),
    )
}

fn too_many_commits() -> Failure {
    Failure::new(format_args!("the session has more than {MAX_COMMITS} commits"))
}

/// Returns the names of refs of earlier imports of the session.
pub(super) fn existing(process: Running) -> Result<BTreeSet<String>, Failure> {
    let output = process.finish(|_| Ok(()), MAX_REFS).ok_or_else(|| {
        Failure::new("cannot read the refs of the workspace's repository")
            .help("`git fsck` may say what is wrong with it")
    })?;
    let names = parsed(&output, "").map(|(name, _)| name);
    Ok(names.collect())
}

/// Parses a list of `git for-each-ref`; each name must begin with `prefix`, which is removed. A
/// name that is not UTF-8 cannot be imported.
fn parsed(output: &[u8], prefix: &str) -> impl Iterator<Item = (String, ObjectId)> {
    let parse = move |line: &[u8]| {
        let line = str::from_utf8(line).ok()?;
        let (commit, name) = line.split_once(' ')?;
        Some((name.strip_prefix(prefix)?.to_owned(), ObjectId::parse(commit)?))
    };
    output.split(|byte| *byte == b'\n').filter_map(parse)
}

/// Reads the refs that `git for-each-ref` lists.
fn refs(process: Running, prefix: &str, exec: &str) -> Result<BTreeMap<String, ObjectId>, Failure> {
    let output =
        process.finish(|_| Ok(()), MAX_REFS).ok_or_else(|| unreadable("branches", exec))?;
    let mut found = BTreeMap::new();
    for (name, commit) in parsed(&output, prefix) {
        found.insert(name, commit);
        if found.len() > MAX_BRANCHES {
            return Err(Failure::new(format_args!(
                "the agent's repository has more than {MAX_BRANCHES} branches"
            ))
            .help(format_args!("`{exec} -- git branch -D NAME…` removes branches there")));
        }
    }
    Ok(found)
}

/// Returns the branches that the session moved; `None` if it did not begin in this repository.
/// `exec` is the command line that runs a program in it.
pub(super) fn moved(
    (branches, starts, commits): (Running, Running, [Running; 2]),
    objects: &mut dyn Source,
    (session, exec): (&str, &str),
) -> Result<Option<Moved>, Failure> {
    let starts = refs(starts, &format!("{}/", private::starts(session)), exec)?;
    if starts.is_empty() {
        return Ok(None);
    }
    let begun: HashSet<_> = starts.values().collect();
    let (mut moved, mut refused) = (BTreeMap::new(), Vec::new());
    for (name, commit) in refs(branches, "refs/heads/", exec)? {
        match check_branch(&name) {
            _ if begun.contains(&commit) => {}
            Ok(()) => drop(moved.insert(name, commit)),
            Err(reason) => refused.push((name, reason)),
        }
    }
    let [list, again] = commits;
    let commits = match listed(list, &moved, &starts) {
        Some(commits) => commits,
        None => {
            // A commit that git cannot read ends the list of all branches.
            let mut history = ReadableHistory { objects, begun, parents: HashMap::new() };
            let damaged = moved.extract_if(.., |_, tip| history.is_damaged(tip));
            refused.extend(damaged.map(|(name, _)| (name, DAMAGED)));
            if history.parents.len() > MAX_COMMITS {
                return Err(too_many_commits());
            }
            listed(again, &moved, &starts).ok_or_else(|| unreadable("commits", exec))?
        }
    };
    if commits.len() > MAX_COMMITS {
        return Err(too_many_commits());
    }
    // The branch that was created for the agent, otherwise any.
    let start = starts.get(BRANCH).or_else(|| starts.values().next()).cloned();
    Ok(Some(Moved { branches: moved, refused, start, commits }))
}

/// Lists the commits of branches that the starts do not contain; `None` if git fails.
fn listed(
    process: Running,
    moved: &BTreeMap<String, ObjectId>,
    starts: &BTreeMap<String, ObjectId>,
) -> Option<Vec<ObjectId>> {
    let tips = moved.values().map(|tip| format!("{tip}\n"));
    let input: String = tips.chain(starts.values().map(|start| format!("^{start}\n"))).collect();
    let output = process.finish(|pipe| pipe.write_all(input.as_bytes()), MAX_LIST)?;
    str::from_utf8(&output).ok()?.lines().map(ObjectId::parse).collect()
}

/// The commits of a repository in which some cannot be read.
struct ReadableHistory<'a> {
    objects: &'a mut dyn Source,
    /// The commits with which the session began.
    begun: HashSet<&'a ObjectId>,
    /// The parents of commits that were read; `None` for an unreadable commit.
    parents: HashMap<ObjectId, Option<Vec<ObjectId>>>,
}

impl ReadableHistory<'_> {
    /// Returns true if the history of this commit since the beginning of the session contains an
    /// unreadable commit.
    fn is_damaged(&mut self, tip: &ObjectId) -> bool {
        let (mut open, mut seen) = (vec![tip.clone()], HashSet::new());
        while let Some(commit) = open.pop() {
            if self.begun.contains(&commit) || seen.contains(&commit) {
                continue;
            }
            // More commits, of all branches together, are not imported in any case.
            if self.parents.len() > MAX_COMMITS {
                return true;
            }
            if !self.parents.contains_key(&commit) {
                let parents = match Commit::read(self.objects, &commit) {
                    Ok(read) => Some(read.parents),
                    // Git may be able to read it; the import refuses it separately.
                    Err(Error::Malformed(_) | Error::TooLarge { .. }) => Some(Vec::new()),
                    Err(_) => None,
                };
                self.parents.insert(commit.clone(), parents);
            }
            match self.parents.get(&commit) {
                Some(Some(parents)) => open.extend(parents.iter().cloned()),
                _ => return true,
            }
            seen.insert(commit);
        }
        false
    }
}

/// Removes and returns the branches that git cannot store beside others of these, or beside those
/// of earlier imports: of `a` and `a/b`, one would be a directory of the other.
pub(super) fn take_conflicts(
    branches: &mut Vec<Branch>,
    mut taken: BTreeSet<String>,
) -> Vec<Branch> {
    let conflicts = branches.extract_if(.., |branch| {
        let name = &branch.reference;
        let beneath = format!("{name}/");
        let above = name.match_indices('/').filter_map(|(at, _)| name.get(..at));
        let is_in_the_way = above.into_iter().any(|above| taken.contains(above))
            || taken.range(beneath.clone()..).next().is_some_and(|next| next.starts_with(&beneath));
        if !is_in_the_way {
            taken.insert(name.clone());
        }
        is_in_the_way
    });
    conflicts.collect()
}
