//! The private git repository of a mount: the workspace as the policy shows it, as one commit.
//!
//! Programs in the sandbox do not see the workspace's own repository, because its history contains
//! what the policy hides. Before the first program of a scratch location runs, git creates another
//! repository there, in the sandbox, from the files that the mount shows.

use std::{
    ffi::OsString,
    os::fd::AsFd as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::sys::signalfd::SignalFd;

use crate::{
    app::{
        failure::Failure,
        git::{private, session::GitSession, workspace::History},
        opened::Opened,
    },
    cli::{gateway_options::GatewayOptions, launch_failure::explain},
    model::AgentName,
    policy::Scratch,
    sandbox::PendingAgent,
};

/// Gives the agent's home an identity for commits, unless it has a git configuration. Without one
/// git refuses to commit.
const IDENTITY: &str = r#"
[ -e "$HOME/.gitconfig" ] || [ -e "${XDG_CONFIG_HOME:-$HOME/.config}/git/config" ] ||
    printf '[user]\n\tname = agent\n\temail = agent@localhost\n' >"$HOME/.gitconfig"
"#;

/// Creates the repository, unless it exists, and notes the branches with which the session, `$2`,
/// begins in the workspace `$1`. An incomplete one is created anew. The agent can change these
/// notes: they only determine which commits are offered for an import, each of which is decided.
/// Noting may take `$3` seconds, because an agent can leave any number of refs, and commits of any
/// size.
///
/// With a commit `$4` its pack is the standard input, and the one commit is based on it.
///
/// Git does not read the home's configuration, which the agent can change. That of the repository
/// is the agent's, too: no protocol is allowed by which git would start a program that it names, as
/// to fetch an object that is missing.
///
/// Git compares only size and time of a file: inode numbers differ in each mount.
const SCRIPT: &str = r#"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_DEFAULT_HASH=sha1
export GIT_ALLOW_PROTOCOL= GIT_NO_LAZY_FETCH=1
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
    begin "$2" "$3"
    case $? in
        0) exit 0 ;;
        # Killed, or by `timeout`.
        137) exit 7 ;;
    esac
    timeout -s KILL "$3" git for-each-ref --count=1 >/dev/null && exit 8
    exit 5
fi
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
    -m "Files that the policy shows at the start of the session" \
    -m "Git fails to check out another version of a file that the policy does not let be written.
Have it do so outside of the workspace: git worktree add ~/NAME COMMIT" || exit
begin "$2" "$3" && rm .git/portcullis-unfinished && exit $made
"#;
/// The script's exit code if the repository exists.
const EXISTS: i32 = 0;
/// The exit code if there is no git.
const NO_GIT: i32 = 3;
/// The exit code if the repository was created.
const CREATED: i32 = 4;
/// The exit code if the branches of the repository cannot be read.
const BRANCHES_UNREADABLE: i32 = 5;
/// The exit code if the repository was created without the history that it should have.
const CREATED_WITHOUT_HISTORY: i32 = 6;
/// The exit code if noting the branches took too long.
const BRANCHES_TIMEOUT: i32 = 7;
/// The exit code if the branches can be read, but not noted.
const BRANCHES_NOT_STORED: i32 = 8;

/// Timeout for noting the branches with which a session begins.
const NOTE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest and the shortest timeout for counting the commits of a session.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which the user gets the reason of a slow start.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);

/// Prepares git for programs that have repositories of their own: their identity and, if the
/// workspace has a repository, theirs. The agent may change the workspace and `writable`. Returns
/// false if that takes longer than `limit`. The workspace is added to `unoffered` if a warning says
/// that commits are not offered for an import.
///
/// # Errors
/// When it was interrupted, or the sandbox is gone.
pub(in crate::cli) fn prepare(
    pending: &PendingAgent,
    (opened, writable): (&Opened, &[PathBuf]),
    (agent, session): (&AgentName, &str),
    (signals, limit): (&SignalFd, Option<Duration>),
    unoffered: &mut Vec<PathBuf>,
) -> Result<bool, Failure> {
    let has_own = opened.policy.scratch().is_some_and(Scratch::repositories);
    if !pending.report.mount || !has_own {
        return Ok(true);
    }
    let is_private = rustix::fs::lstat(opened.workspace.root().join(".git")).is_ok();
    let script = format!("{IDENTITY}{}", if is_private { SCRIPT } else { "" });
    let mut command: Vec<OsString> = ["/bin/sh", "-c", &script, "sh"].map(OsString::from).into();
    // Noting must not use up the command's own time.
    let note_timeout = limit.map_or(NOTE_TIMEOUT, |limit| NOTE_TIMEOUT.min(limit / 2));
    let seconds = note_timeout.as_secs_f32().to_string();
    let history = if is_private { history(opened, writable) } else { None };
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
    if is_private
        && let Some(BRANCHES_UNREADABLE | BRANCHES_TIMEOUT | BRANCHES_NOT_STORED) = prepared
    {
        unoffered.push(opened.workspace.root().to_owned());
    }
    match prepared {
        Some(_) if !is_private => {}
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
        Some(code @ (BRANCHES_UNREADABLE | BRANCHES_TIMEOUT)) => {
            let time = match code {
                BRANCHES_TIMEOUT => format!(" in {seconds} s"),
                _ => String::new(),
            };
            errln!(
                "portcullis: warning: commits of this session will not be offered for an import: the \
                 branches of the programs' own git repository could not be read{time}; \
                 `{exec} -- sh -c 'chmod -R u+rwX .git; rm -rf .git'` removes it with all its \
                 commits, and the next start makes another one"
            );
        }
        Some(BRANCHES_NOT_STORED) => errln!(
            "portcullis: warning: commits of this session will not be offered for an import: git \
             cannot write to the programs' own git repository (is the disk full?)"
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
fn history(opened: &Opened, writable: &[PathBuf]) -> Option<History> {
    if !opened.policy.scratch().is_some_and(Scratch::history) {
        return None;
    }
    let history = History::pack(opened.workspace.root(), writable, &opened.state_path);
    history.unwrap_or_else(|failure| {
        let reason = failure.message();
        errln!("portcullis: warning: the programs' git repository has no history: {reason}");
        None
    })
}

/// Returns the command that imports the commits of an ended session, if they can be imported and it
/// made any, or if their number is unknown. The session's `start` record has the number `record`.
/// Those of `unoffered` workspaces cannot. The count ends at `end`, plus a few seconds.
pub(in crate::cli) fn import(
    opened: &Opened,
    record: u64,
    unoffered: &[PathBuf],
    end: Option<Instant>,
) -> Option<String> {
    let (root, state) = (opened.workspace.root(), &opened.state_path);
    if unoffered.iter().any(|path| path == root) {
        return None;
    }
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    let limit = left.unwrap_or(COUNT_TIMEOUT).clamp(MIN_COUNT_TIMEOUT, COUNT_TIMEOUT);
    let count = || -> Result<_, Failure> {
        let Some(begun) = GitSession::at(opened, record)? else { return Ok(None) };
        let commits = private::count(&begun.place, &begun.session, root, state, limit)?;
        Ok(Some((begun.session, commits)))
    };
    let session = match count() {
        Ok(None | Some((_, Some(0)))) => return None,
        Ok(Some((session, Some(_)))) => session,
        Ok(Some((session, None))) => {
            errln!(
                "portcullis: warning: commits of the session were not counted: git could not read \
                 the programs' own repository, or not in {} s",
                limit.as_secs()
            );
            session
        }
        Err(failure) => {
            let reason = failure.message();
            errln!("portcullis: note: commits of the session could not be looked for: {reason}");
            return None;
        }
    };
    Some(GatewayOptions::of(opened).command(format_args!("git import --session {session}")))
}
