//! The branches of a private repository, as git lists them, and the commits between them.

use std::{
    collections::{BTreeMap, HashSet},
    io::Write as _,
};

use super::processes::{MAX_BRANCHES, MAX_COMMITS};
use crate::{
    app::{
        failure::Failure,
        git::{Running, private},
    },
    git::{ObjectId, check_branch},
};

/// The most bytes of a list of refs, and of one of commits.
const MAX_REFS: u64 = 4 << 20;
const MAX_LIST: u64 = 2 << 20;

/// The branches of a repository that the session moved, and the commits that they have since.
#[derive(Debug)]
pub(super) struct Moved {
    /// Where they are now.
    pub(super) branches: BTreeMap<String, ObjectId>,
    /// Those whose names are not imported, with why.
    pub(super) refused: Vec<(String, &'static str)>,
    /// A commit with which the session began.
    pub(super) start: Option<ObjectId>,
    /// The commits, parents first.
    pub(super) commits: Vec<ObjectId>,
}

fn unreadable(what: &str) -> Failure {
    Failure::new(format_args!("cannot read the {what} of the agent's repository"))
        .help("`portcullis exec -- git fsck` may say more; the repository is the agent's to damage")
}

/// Reads what `git for-each-ref` lists.
fn refs(process: Running, prefix: &str) -> Result<BTreeMap<String, ObjectId>, Failure> {
    let output = process.finish(|_| Ok(()), MAX_REFS).ok_or_else(|| unreadable("branches"))?;
    let parse = |line: &[u8]| {
        let line = str::from_utf8(line).ok()?;
        let (commit, name) = line.split_once(' ')?;
        Some((name.strip_prefix(prefix)?.to_owned(), ObjectId::parse(commit)?))
    };
    let mut found = BTreeMap::new();
    for line in output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        // A name that is not UTF-8 is no branch that could be imported.
        if let Some((name, commit)) = parse(line) {
            found.insert(name, commit);
        }
        if found.len() > MAX_BRANCHES {
            return Err(Failure::new(format_args!(
                "the agent's repository has more than {MAX_BRANCHES} branches"
            ))
            .help("`portcullis exec -- git branch -D NAME…` removes branches there"));
        }
    }
    Ok(found)
}

/// What the session moved; `None` if it did not begin in this repository.
pub(super) fn moved(
    (branches, starts, commits): (Running, Running, Running),
    session: &str,
) -> Result<Option<Moved>, Failure> {
    let starts = refs(starts, &format!("{}/", private::starts(session)))?;
    if starts.is_empty() {
        return Ok(None);
    }
    let begun: HashSet<_> = starts.values().collect();
    let (mut moved, mut refused) = (BTreeMap::new(), Vec::new());
    for (name, commit) in refs(branches, "refs/heads/")? {
        match check_branch(&name) {
            _ if begun.contains(&commit) => {}
            Ok(()) => drop(moved.insert(name, commit)),
            Err(why) => refused.push((name, why)),
        }
    }
    let tips = moved.values().map(|tip| format!("{tip}\n"));
    let input: String = tips.chain(starts.values().map(|start| format!("^{start}\n"))).collect();
    let output = commits.finish(|pipe| pipe.write_all(input.as_bytes()), MAX_LIST);
    let output = output.ok_or_else(|| unreadable("commits"))?;
    let lines = str::from_utf8(&output).map_err(|_| unreadable("commits"))?.lines();
    let commits: Option<Vec<_>> = lines.map(ObjectId::parse).collect();
    let commits = commits.ok_or_else(|| unreadable("commits"))?;
    if commits.len() > MAX_COMMITS {
        return Err(Failure::new(format_args!("the session has more than {MAX_COMMITS} commits")));
    }
    // The branch that was made for the agent, or else any.
    let start = starts.get("main").or_else(|| starts.values().next()).cloned();
    Ok(Some(Moved { branches: moved, refused, start, commits }))
}
