//! The private git repository of a mount: the workspace as the policy shows it, as one commit.
//!
//! Programs in the sandbox do not see the workspace's own repository, because its history contains
//! what the policy hides. Before the first program of a scratch location runs, git creates another
//! repository there, in the sandbox, from the files that the mount shows.

use std::{
    ffi::OsString,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use nix::sys::signalfd::SignalFd;

use super::start::explain;
use crate::{
    app::{
        failure::Failure,
        git::{private, workspace::History},
        opened::Opened,
        scratch::ScratchLocation,
    },
    cli::gateway_options::GatewayOptions,
    model::AgentName,
    policy::Scratch,
    sandbox::PendingAgent,
};

/// Creates the repository, unless it exists, and notes the branches with which the session, `$2`,
/// begins in the workspace `$1`. An incomplete one is created anew. The agent can change these
/// notes: they only determine which commits are offered for an import, each of which is decided.
/// Noting may take `$3` seconds, because an agent can leave any number of refs, and commits of any
/// size.
///
/// With a commit `$4` its pack is the standard input, and the one commit is based on it.
///
/// Git compares only size and time of a file: inode numbers differ in each mount.
const SCRIPT: &str = r#"
cd "$1" || exit
command -v git >/dev/null || exit 3
command -v timeout >/dev/null || timeout() { shift 3; "$@"; }
begin() {
    timeout -s KILL "$2" sh -c '
        start="create refs/portcullis/start/$1/%(refname:lstrip=2) %(objectname)"
        git for-each-ref --count=1000 --format="$start" refs/heads |
            git -c core.hooksPath=/dev/null -c core.fsync=none update-ref --stdin' sh "$1"
}
if [ -e .git ] && ! [ -e .git/portcullis-unfinished ]; then
    begin "$2" "$3" && exit 0
    exit 5
fi
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_DEFAULT_HASH=sha1
rm -rf .git && mkdir .git && : >.git/portcullis-unfinished || exit
git init -q -b main || exit
git config core.checkStat minimal && git config core.trustctime false || exit
git config user.name agent && git config user.email agent@localhost || exit
made=4
if [ -n "$4" ]; then
    git index-pack --stdin && git update-ref refs/heads/main "$4" || made=6
fi
git add --all --ignore-errors
git -c user.name=portcullis -c user.email=portcullis@localhost commit -q --allow-empty \
    -m "Files that the policy shows at the start of the session" || exit
begin "$2" "$3" && rm .git/portcullis-unfinished && exit $made
"#;
/// The script's exit code if the repository exists.
const EXISTS: i32 = 0;
/// The exit code if there is no git.
const NO_GIT: i32 = 3;
/// The exit code if the repository was created.
const CREATED: i32 = 4;
/// The exit code if the branches could not be noted.
const BRANCHES_NOT_STORED: i32 = 5;
/// The exit code if the repository was created without the history that it should have.
const CREATED_WITHOUT_HISTORY: i32 = 6;

/// Timeout for noting the branches with which a session begins.
const NOTE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest and the shortest timeout for counting the commits of a session.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which the user is told the reason of a slow start.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);

/// Creates the repository, if the workspace has one and the programs get their own. Returns false
/// if that takes longer than `limit`.
///
/// # Errors
/// When it was interrupted, or the sandbox is gone.
pub(in crate::cli) fn prepare(
    pending: &PendingAgent,
    opened: &Opened,
    (agent, session): (&AgentName, &str),
    (signals, limit): (&SignalFd, Option<Duration>),
) -> Result<bool, Failure> {
    if !pending.report.mount || !is_private(opened) {
        return Ok(true);
    }
    let mut command: Vec<OsString> = ["/bin/sh", "-c", SCRIPT, "sh"].map(OsString::from).into();
    // Noting must not use up the command's own time.
    let note_timeout = limit.map_or(NOTE_TIMEOUT, |limit| NOTE_TIMEOUT.min(limit / 2));
    let seconds = note_timeout.as_secs_f32().to_string();
    let history = history(opened);
    let commit = history.as_ref().map_or("", |history| &history.commit);
    let session = OsString::from(session);
    let root = OsString::from(opened.workspace.root());
    command.extend([root, session, seconds.as_str().into(), commit.into()]);
    let input = history.as_ref().map(|history| history.pack.output.as_fd());
    let (mut is_told, mut is_over) = (false, false);
    let waits = |passed: Duration| {
        if passed > PROGRESS_DELAY && !is_told {
            is_told = true;
            errln!("portcullis: preparing the programs' own git repository ...");
        }
        is_over = limit.is_some_and(|limit| passed > limit);
        !is_over && !matches!(signals.read_signal(), Ok(Some(_)))
    };
    let prepared = pending.prepare(command, input, waits).map_err(explain)?;
    // The scratch location of another agent or policy has another repository.
    let exec = GatewayOptions::of(opened).command(format_args!("exec --agent {agent}"));
    match prepared {
        Some(EXISTS) => {}
        Some(CREATED) if history.is_some() => errln!(
            "portcullis: note: the programs have a git repository of their own: the history of the \
             workspace's, and one commit of what the policy shows"
        ),
        Some(CREATED) => errln!(
            "portcullis: note: the programs have a git repository of their own, with one commit of \
             what the policy shows; the workspace's history stays outside"
        ),
        Some(CREATED_WITHOUT_HISTORY) => errln!(
            "portcullis: warning: the history of the workspace's git repository could not be copied; \
             the programs have one commit of what the policy shows (a shallow or partial clone, and \
             one that borrows objects, have no whole history)"
        ),
        Some(NO_GIT) => errln!(
            "portcullis: note: the programs see no git repository: there is no \
             `git` in the sandbox; name its directory with `--agent-read`"
        ),
        Some(BRANCHES_NOT_STORED) => errln!(
            "portcullis: warning: commits of this session will not be offered for an import: the \
             branches of the programs' own git repository could not be read in {seconds} s; \
             `{exec} -- rm -rf .git` removes it, and the next start makes another one"
        ),
        Some(code) => errln!(
            "portcullis: warning: the programs' own git repository could not be made (exit code {code}); \
             `{exec} -- git init` makes an empty one"
        ),
        None if is_over => return Ok(false),
        None => {
            return Err(Failure::new(
                "a signal stopped the start while the git repository was made",
            ));
        }
    }
    Ok(true)
}

/// Returns the history with which the private repository begins, if the policy allows it.
fn history(opened: &Opened) -> Option<History> {
    if !opened.policy.scratch().is_some_and(Scratch::history) {
        return None;
    }
    let writable = &opened.policy.agent().write;
    let history = History::pack(opened.workspace.root(), writable, &opened.state_path);
    history.unwrap_or_else(|failure| {
        let reason = failure.message();
        errln!("portcullis: warning: the programs' git repository has no history: {reason}");
        None
    })
}

/// Returns true if programs in a mount have a repository of their own, because the workspace has
/// one.
fn is_private(opened: &Opened) -> bool {
    let own = opened.workspace.root().join(".git");
    opened.policy.scratch().is_some_and(|scratch| scratch.repositories())
        && rustix::fs::lstat(&own).is_ok()
}

/// Returns the command that imports the commits of an ended session, if it made any, or if that is
/// unknown. The count ends at `end`, plus a few seconds.
pub(in crate::cli) fn import(
    opened: &Opened,
    agent: &AgentName,
    session: &str,
    end: Option<Instant>,
) -> Option<String> {
    if !is_private(opened) {
        return None;
    }
    let (root, state) = (opened.workspace.root(), &opened.state_path);
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    let limit = left.unwrap_or(COUNT_TIMEOUT).clamp(MIN_COUNT_TIMEOUT, COUNT_TIMEOUT);
    let count = || match ScratchLocation::open(opened, agent)? {
        Some(place) => private::count(&place.path, session, root, state, limit),
        None => Ok(Some(0)),
    };
    match count() {
        Ok(Some(0)) => return None,
        Ok(Some(_)) => {}
        Ok(None) => errln!(
            "portcullis: warning: commits of the session were not counted: git could not read the \
             programs' own repository, or not in {} s",
            limit.as_secs()
        ),
        Err(failure) => {
            let reason = failure.message();
            errln!("portcullis: note: commits of the session could not be looked for: {reason}");
            return None;
        }
    }
    Some(GatewayOptions::of(opened).command(format_args!("git import --session {session}")))
}
