//! `portcullis approve`: answers pending approvals from a shell.

use std::{
    collections::HashSet,
    io::{self, IsTerminal as _},
    iter,
    os::fd::AsFd as _,
    path::Path,
    process::ExitCode,
    sync::Once,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    announcer::headline,
    confirmation::{self, PersonAnswer},
    gateway_options::log_options,
    rows::{named, stderr_width, stdout_width, wrapped},
};
use crate::{
    app::approval_socket::{self, Choice, Item, Reply, Request},
    app::{
        failure::{Context as _, Exit, Failure},
        options::StateLocation,
        state_directory,
    },
    model::{Escaped, distinct_diff},
};

/// The time between two looks at what waits.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Minimum length of the beginning of an identifier that approves a request unseen: another request
/// may come meanwhile, and must not begin alike by chance.
const MIN_UNSEEN_ID: usize = 4;
/// The timeout of the gateway's question about an approved request that has changed since.
const REPEAT_TIMEOUT: Duration = Duration::from_millis(300);
/// The time between two looks for it.
const REPEAT_INTERVAL: Duration = Duration::from_millis(50);
/// The width of a question where that of the terminal is unknown.
const DEFAULT_WIDTH: usize = 80;
/// The least width of a path in a question.
const MIN_PATH_WIDTH: usize = 9;

/// See and answer the requests that wait for a person
///
/// A rule with `effect = "ask"`, or `[agent] terminal = "ask"`, makes a request wait. Without an ID
/// this shows the requests that wait in the workspace, with what they would change. With one it
/// shows that request as the gateway has it, and asks before it approves exactly that: do not trust
/// what is printed beside a running command, which the command may have printed. Equal requests of
/// one session are shown and answered as one, except with --yes or --json.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis approve --list\n  \
    portcullis approve --watch\n  \
    portcullis approve 3fa9\n  \
    portcullis approve 3fa9c1d2 --session\n  \
    portcullis approve --yes 3fa9c1d2\n  \
    portcullis approve --reject 3fa9c1d2")]
pub(crate) struct Args {
    /// Approve this request; the beginning of its identifier is enough
    #[arg(value_name = "ID", conflicts_with_all = ["list", "reject"])]
    id: Option<String>,
    /// Show the requests that wait; the same as without an ID
    #[arg(long)]
    list: bool,
    /// Show requests as they come, and ask about each, until Ctrl-C or the end of input
    #[arg(long, conflicts_with_all = ["id", "list", "reject", "json"])]
    watch: bool,
    /// Reject this request; the beginning of its identifier is enough
    #[arg(long, value_name = "ID", conflicts_with = "list")]
    reject: Option<String>,
    /// Approve the same operation on the same path, or the same command, for the rest of the
    /// session
    #[arg(long, requires = "id")]
    session: bool,
    /// Approve without showing the request and asking; four characters of its identifier are
    /// enough, if no other request that waits begins so
    #[arg(short, long, requires = "id")]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    location: StateLocation,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let state = args.location.state_directory()?;
    if args.id.iter().chain(&args.reject).any(String::is_empty) {
        return Err(Failure::new("the id of the request is empty")
            .help(listed((args, &state)))
            .exit(Exit::Usage));
    }
    match (&args.id, &args.reject) {
        (Some(id), _) if args.session => approve(args, &state, id, Choice::Session),
        (Some(id), _) => approve(args, &state, id, Choice::Once),
        (None, Some(id)) => reject(args, &state, id),
        (None, None) if args.watch => watch(args, &state),
        (None, None) => list(args, &state),
    }
}

fn send(state: &Path, request: &Request, go_on: impl FnMut(Reply) -> bool) -> Result<(), Failure> {
    if let Some(directory) = state_directory::look(state)? {
        let sent = approval_socket::send(directory.as_fd(), request, go_on);
        return sent.or_fail("cannot ask the gateway");
    }
    static NOTED: Once = Once::new();
    // `--watch` looks again and again.
    NOTED.call_once(|| {
        errln!(
            "portcullis: note: no gateway has ever run with the state directory `{}`; --workspace or \
             --state names another",
            state.display()
        );
    });
    Ok(())
}

/// Approves a request, once the person at the terminal has seen it and agreed.
fn approve(args: &Args, state: &Path, id: &str, choice: Choice) -> Result<ExitCode, Failure> {
    let waiting = waiting(state)?;
    if args.yes {
        if !waiting.iter().any(|item| item.id.starts_with(id)) {
            // Its gateway says what became of it.
            return answer(args, state, id, choice);
        }
        if id.len() < MIN_UNSEEN_ID {
            return Err(Failure::new(format_args!(
                "`{}` is too short to approve a request that is not shown",
                Escaped(id)
            ))
            .help(format_args!("give {MIN_UNSEEN_ID} characters of the identifier at least")));
        }
        let item = one((args, state), &waiting, id)?;
        let answered = answer(args, state, &item.id, choice)?;
        note_asked_again(args, state, item, &waiting);
        return Ok(answered);
    }
    let item = one((args, state), &waiting, id)?;
    if args.json {
        return Err(Failure::new("nothing was approved: with --json nobody is asked")
            .help("give --yes to approve the request without being shown it"));
    }
    let equal = equal(&waiting, item);
    print(item, equal.len());
    confirmation::require(false, &question(item, choice))?;
    let answered = answer_all(args, state, &equal, choice)?;
    note_asked_again(args, state, item, &waiting);
    Ok(answered)
}

/// Says so if a request for the same operation and path waits now, which may be the approved one:
/// the gateway asks again if what the person saw has changed since. `before` is what waited then.
fn note_asked_again(args: &Args, state: &Path, item: &Item, before: &[Item]) {
    if args.json {
        return;
    }
    let is_again = |other: &Item| {
        (&other.session, &other.session_part, &other.operation, &other.asked_path)
            == (&item.session, &item.session_part, &item.operation, &item.asked_path)
            && before.iter().all(|old| old.id != other.id)
    };
    let until = Instant::now() + REPEAT_TIMEOUT;
    while Instant::now() < until {
        // The request is approved, whatever comes of this.
        let Ok(now) = waiting(state) else { return };
        if let Some(again) = now.iter().find(|other| is_again(other)) {
            errln!(
                "portcullis: a request for the same operation and path waits as {}: if what was \
                 approved has changed meanwhile, it was not carried out, and this is it",
                Escaped(&again.id)
            );
            return;
        }
        thread::sleep(REPEAT_INTERVAL);
    }
}

/// Rejects a request and, for a person, those equal to it.
fn reject(args: &Args, state: &Path, id: &str) -> Result<ExitCode, Failure> {
    let waiting = waiting(state)?;
    if !waiting.iter().any(|item| item.id.starts_with(id)) {
        // Its gateway says what became of it.
        return answer(args, state, id, Choice::Reject);
    }
    let item = one((args, state), &waiting, id)?;
    let equal = if args.json { vec![item] } else { equal(&waiting, item) };
    answer_all(args, state, &equal, Choice::Reject)
}

/// Returns the requests that are equal to `item`, which is one of them.
fn equal<'i>(waiting: &'i [Item], item: &Item) -> Vec<&'i Item> {
    waiting.iter().filter(|other| other.is_equal_request(item)).collect()
}

/// Answers equal requests, and reports the first one.
fn answer_all(
    args: &Args,
    state: &Path,
    equal: &[&Item],
    choice: Choice,
) -> Result<ExitCode, Failure> {
    let Some((first, others)) = equal.split_first() else { return Ok(ExitCode::SUCCESS) };
    let answered = answer(args, state, &first.id, choice)?;
    for other in others {
        // One that its sender has withdrawn meanwhile needs no answer.
        let _ = respond(state, &other.id, choice)?;
    }
    Ok(answered)
}

/// Finds the one request whose identifier begins with `id`.
fn one<'i>(of: (&Args, &Path), waiting: &'i [Item], id: &str) -> Result<&'i Item, Failure> {
    let mut found = waiting.iter().filter(|item| item.id.starts_with(id));
    match (found.next(), found.next()) {
        (Some(item), None) => Ok(item),
        (None, _) => Err(not_waiting(of, id)),
        (Some(_), Some(_)) => {
            Err(Failure::new(format_args!("more than one request begins with `{}`", Escaped(id)))
                .help(listed(of)))
        }
    }
}

/// Shows requests as they come, and asks about each.
fn watch(args: &Args, state: &Path) -> Result<ExitCode, Failure> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::new("there is no terminal to ask on")
            .help("`portcullis approve --list --json` is for programs")
            .exit(Exit::Usage));
    }
    errln!("portcullis: waiting for requests; Ctrl-C ends");
    let mut shown = HashSet::new();
    loop {
        let mut fresh = waiting(state)?;
        fresh.retain(|item| !shown.contains(&item.id));
        for item in &fresh {
            if shown.contains(&item.id) {
                continue;
            }
            let equal = equal(&fresh, item);
            shown.extend(equal.iter().map(|item| item.id.clone()));
            print(item, equal.len());
            let Some(choice) = confirmation::choose(&question(item, Choice::Once))? else {
                return Ok(ExitCode::SUCCESS);
            };
            let choice = match choice {
                PersonAnswer::Yes => Choice::Once,
                PersonAnswer::Session => Choice::Session,
                PersonAnswer::No => Choice::Reject,
                PersonAnswer::Later => continue,
            };
            // Another person may have answered meanwhile, or time is over.
            if let Err(failure) = answer_all(args, state, &equal, choice) {
                failure.report(false);
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the pending approvals.
fn waiting(state: &Path) -> Result<Vec<Item>, Failure> {
    let (mut waiting, mut refused) = (Vec::new(), None);
    send(state, &Request::List, |reply| {
        match reply {
            Reply::Waiting(items) => waiting.extend(items),
            Reply::Refused(why) => refused = Some(why),
            Reply::Taken(_) | Reply::Unknown | Reply::Over(_) => {}
        }
        true
    })?;
    if let Some(why) = refused {
        return Err(Failure::new(format_args!("the gateway does not listen: {}", Escaped(&why))));
    }
    Ok(waiting)
}

fn list(args: &Args, state: &Path) -> Result<ExitCode, Failure> {
    let waiting = waiting(state)?;
    if args.json {
        outjson!(json!({ "waiting": waiting }));
    } else if waiting.is_empty() {
        outln!("nothing waits for approval");
    } else {
        for (number, item) in waiting.iter().enumerate() {
            let equal = equal(&waiting, item);
            // The first of equal requests stands for all.
            let earlier = waiting.get(..number).unwrap_or_default();
            if !earlier.iter().any(|other| other.is_equal_request(item)) {
                print(item, equal.len());
            }
        }
        let options = log_options(state, args.location.config.as_deref());
        outln!(
            "\n`portcullis approve ID {options}` asks whether to approve one, `--reject ID` rejects it"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends an answer; returns the reply of the gateway that knows the request.
fn respond(state: &Path, id: &str, choice: Choice) -> Result<Option<Reply>, Failure> {
    let mut answered = None;
    let request = Request::Answer { id: id.to_owned(), answer: choice };
    send(state, &request, |reply| {
        let known = !matches!(reply, Reply::Unknown);
        if known {
            answered = Some(reply);
        }
        !known
    })?;
    Ok(answered)
}

fn answer(args: &Args, state: &Path, id: &str, choice: Choice) -> Result<ExitCode, Failure> {
    match respond(state, id, choice)? {
        Some(Reply::Taken(item)) => {
            let verb = if choice == Choice::Reject { "rejected" } else { "approved" };
            if args.json {
                outjson!(json!({ "ok": true, "result": verb, "request": item }));
            } else {
                let line = format!("{verb}: {}", headline(&item));
                outln!("{}", wrapped(&line, 0, 4, stdout_width()));
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Reply::Over(how)) => Err(Failure::new(format_args!(
            "the request `{}` needs no answer any more: {}",
            Escaped(id),
            Escaped(&how)
        ))),
        Some(Reply::Refused(why)) => {
            let why = format!("the gateway does not listen: {}", Escaped(&why));
            Err(Failure::new(why).exit(Exit::Denied))
        }
        _ => Err(not_waiting((args, state), id)),
    }
}

fn not_waiting(of: (&Args, &Path), id: &str) -> Failure {
    Failure::new(format_args!("no question with the id `{}` waits", Escaped(id))).help(listed(of))
}

/// Returns the help that names the command which lists the requests of the same gateways.
fn listed((args, state): (&Args, &Path)) -> String {
    let options = log_options(state, args.location.config.as_deref());
    format!("`portcullis approve --list {options}` shows what waits")
}

/// Returns the question about a request, in one row if the terminal has room for that: what is
/// printed above it may have scrolled away, and a text that the terminal wraps could look like
/// another question.
fn question(item: &Item, choice: Choice) -> String {
    let scope = if choice == Choice::Session { " for the session" } else { "" };
    let (id, operation) = (Escaped(&item.id), Escaped(&item.operation));
    let asks = |paths: &str| format!("approve {id}: {operation} {paths}{scope}?");
    let paths: Vec<_> = iter::once(&item.path).chain(&item.to).collect();
    let list = |show: &dyn Fn(&str) -> String| {
        paths.iter().map(|path| show(path)).collect::<Vec<_>>().join(" to ")
    };
    let width = stderr_width().unwrap_or(DEFAULT_WIDTH).saturating_sub(" [y/s/n/l] ".len());
    let words = asks(&list(&|_| String::new()));
    let room = width.saturating_sub(words.chars().count()) / paths.len();
    let shown = list(&|path| named(path, room.max(MIN_PATH_WIDTH)));
    wrapped(&asks(&shown), 0, 4, Some(width))
}

/// Prints a pending approval, of which `count` are equal. Only its first line begins at the left
/// edge, so that no text of the agent's looks like another one.
fn print(item: &Item, count: usize) {
    let width = stdout_width();
    let show = |text: &str| outln!("{}", wrapped(text, 2, 6, width));
    let left = item.seconds_left.map(|seconds| format!("  {seconds} s left")).unwrap_or_default();
    let equal = if count > 1 { format!("  {count} equal requests") } else { String::new() };
    outln!("{}{left}{equal}", Escaped(&item.id));
    show(&headline(item));
    for rule in &item.rules {
        let location = rule.location.as_ref().map(|at| format!(" ({at})")).unwrap_or_default();
        let reason = rule.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        show(&format!("rule `{}`{location}{reason}", rule.id));
    }
    // Not `lines`, which drops a carriage return.
    for line in distinct_diff(&item.change, &['\n']).split_terminator('\n') {
        show(line);
    }
}
