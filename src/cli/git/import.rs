//! `portcullis git import`: imports the commits of a session into the operator's repository.
//!
//! The objects of the private repository are read through confined processes and verified. Each
//! commit's difference is decided and replayed onto the commit with which the session began; the
//! results are recorded before confined processes write them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io::Write as _,
    process::ExitCode,
};

use serde_json::{Value, json};

use super::{
    decide::ImportAuthorizer,
    processes::{NAMESPACE, Processes, Writing},
    refs::{self, Moved},
    sessions,
};
use crate::{
    app::{
        bootstrap::Profile,
        failure::{Context as _, Exit, Failure},
        git::session::{GitSession, PolicyIdentity},
        opened::Opened,
        options::Common,
    },
    cli::{
        confirmation,
        import_report::{Branch, Report},
        local_gateway::LocalGateway,
        render,
        rows::fitted,
    },
    git::{Begin, Commit, Object, ObjectId, Outcome, Replay, Source, write_pack},
    model::Escaped,
};

/// The output limit of the process that updates refs, which prints nothing.
const MAX_OUTPUT: u64 = 4096;
/// The branch of a private repository that is created for the agent.
pub(super) const BRANCH: &str = "main";

/// Import the commits of a session into the workspace's repository
///
/// Each commit is replayed onto the commit that was checked out when the session began. Every
/// path that it changes is decided on as a write under the policy in force, and secrets stand in
/// place of their placeholders again; otherwise the commit is refused, with the reason. Branches
/// of the agent become refs beneath refs/portcullis/SESSION/, and nothing else in the repository
/// changes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The exit code is 1 where a commit or a branch was refused.\n\nExamples:\n  \
    portcullis git import                      the newest session\n  \
    portcullis git import --session 5f2c --dry-run\n  \
    portcullis git import --list\n  \
    git log -p -m HEAD..refs/portcullis/SESSION/main\n  \
    git reset refs/portcullis/SESSION/main     takes it over; the files are there already"
)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// The session: the beginning of its identifier, or the id of one of its ACP sessions; `last`
    /// is the newest one
    #[arg(long, value_name = "ID", default_value = "last", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    session: String,
    /// List the sessions that had a private repository
    #[arg(long, conflicts_with_all = ["session", "yes", "dry_run"])]
    list: bool,
    /// Import without a question; needed without a terminal, and with --json
    #[arg(short, long)]
    yes: bool,
    /// Decide and report, and import nothing
    #[arg(long, conflicts_with_all = ["yes", "adopt"])]
    dry_run: bool,
    /// Print one JSON object; with --list, one a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.list {
        return list(args);
    }
    let (local, (begun, processes, changed_before)) =
        LocalGateway::open_after(&args.common, |opened| {
            let (begun, earlier) = sessions::find(opened, &args.session)?;
            warn_of_policy(&begun.policy, &PolicyIdentity::of(&opened.policy));
            let agent = begun.agent.parse().or_fail("cannot name the agent")?;
            let changed_before = begun.changed_before(opened, earlier)?;
            let processes = Processes::start(opened, &begun, !args.dry_run)?;
            let facts = json!({ "session": begun.session, "dryRun": args.dry_run });
            let facts = BTreeMap::from([("import".to_owned(), facts)]);
            // The repository of a linked work tree lies outside of the workspace.
            let further = processes.ours.refs_directory().or_fail("cannot open the refs")?;
            let profile = Profile { further, ..Profile::default() };
            Ok(((agent, facts), profile, (begun, processes, changed_before)))
        })?;
    let code = import(args, &local, (begun, &changed_before), processes);
    // The first error says more.
    let closed = local.close();
    let code = code?;
    closed.map(|()| code)
}

/// Warns if the session began under another policy than that in force, which decides: commits that
/// were made past the mount were decided by neither.
fn warn_of_policy(begun: &PolicyIdentity, now: &PolicyIdentity) {
    if begun == now {
        return;
    }
    let name = |policy: &PolicyIdentity| {
        let name = policy.name.as_ref();
        name.map_or_else(|| "not recorded".to_owned(), |name| format!("`{}`", Escaped(name)))
    };
    match (name(begun), name(now)) {
        (was, is) if was == is => errln!(
            "portcullis: warning: the policy {is} has changed since the session began; the policy in \
             force decides"
        ),
        (was, is) => errln!(
            "portcullis: warning: the session began under the policy {was}, and the policy in force is \
             {is}, which decides; `--policy` names another one"
        ),
    }
}

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let opened = Opened::open(&args.common)?;
    for begun in GitSession::all(&opened)? {
        let GitSession { session, agent, time, commit, .. } = begun;
        if args.json {
            let commit = commit.to_string();
            outjson!(json!({ "session": session, "agent": agent, "start": time, "base": commit }));
        } else {
            let time = render::time(&time);
            let line = format!("{time}  {}  {}", Escaped(&session), Escaped(&agent));
            outln!("{}", fitted(&line, false));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn import(
    args: &Args,
    local: &LocalGateway,
    (begun, changed_before): (GitSession, &HashMap<String, String>),
    processes: Processes,
) -> Result<ExitCode, Failure> {
    let Processes { theirs, ours, known, workshop: _workshop } = processes;
    let earlier: HashSet<ObjectId> = known.values().cloned().collect();
    let mut found = None;
    let exec = local.options().command(format_args!("exec --agent {}", begun.agent));
    for one in theirs {
        let (lists, mut objects) = ((one.branches, one.starts, one.commits), one.objects);
        if let Some(moved) = refs::moved(lists, &mut objects, (&begun.session, &exec))? {
            found = Some((moved, objects));
            break;
        }
    }
    let (moved, mut theirs) = found.ok_or_else(|| {
        Failure::new("the private repository of the session is missing, or does not contain the commit at which it began")
            .help("the scratch directories of the agent are its own: the agent may have removed it")
    })?;
    let (mut operators, existing) = (ours.objects, refs::existing(ours.refs)?);
    let sources: (&mut dyn Source, &mut dyn Source) = (&mut theirs, &mut operators);
    let (report, objects) =
        replay((local, changed_before), begun, (moved, known, existing), sources)?;
    let head = ours.head.as_ref().map(|head| &head.commit);
    let advice = head.and_then(|head| advice(head, &report, &earlier, &mut operators));
    drop((theirs, operators));
    if !args.json {
        report.print();
    }
    let mut imported = false;
    if report.branches.is_empty() {
        if !args.json && !report.refuses() {
            outln!("the session made no commits");
        }
    } else if let Some(writing) = ours.writing {
        confirmation::require(args.yes, "import them?")?;
        record(local, &report)?;
        write(local, &report, &objects, writing)?;
        imported = true;
    }
    if args.json {
        outjson!(report.object(imported));
    } else if imported && let Some(advice) = advice {
        errln!("{advice}");
    }
    Ok(if report.refuses() { Exit::Failure.into() } else { ExitCode::SUCCESS })
}

/// Returns how to take over a branch: that with which the session began, which is created for the
/// agent, otherwise any.
fn advice(
    head: &ObjectId,
    report: &Report,
    earlier: &HashSet<ObjectId>,
    operators: &mut dyn Source,
) -> Option<String> {
    let created = report.branches.iter().find(|branch| branch.name == BRANCH);
    let branch = created.or(report.branches.first())?;
    let reference = Escaped(&branch.reference);
    // The files are in the workspace already, and a merge would not replace them.
    let (take, note) = match descends(&branch.commit, head, report, (earlier, operators)) {
        true => ("reset", ""),
        false => (
            "merge",
            "\n  note: the branch does not have all commits of HEAD, and a reset would drop these",
        ),
    };
    // Without `-m` git displays no change that a merge makes.
    Some(format!("  next: git log -p -m HEAD..{reference}; git {take} {reference}{note}"))
}

/// Returns true if the imported commits lead from `tip` to `head`. Commits of the operator's are
/// not followed.
fn descends(
    tip: &ObjectId,
    head: &ObjectId,
    report: &Report,
    (earlier, operators): (&HashSet<ObjectId>, &mut dyn Source),
) -> bool {
    let imported = report.replayed.iter().filter_map(|one| match &one.outcome {
        Outcome::Imported { commit, parents, .. } => Some((commit, parents)),
        Outcome::Known { .. } | Outcome::Refused(_) => None,
    });
    let imported: HashMap<_, _> = imported.collect();
    let (mut open, mut seen) = (vec![tip.clone()], HashSet::new());
    while let Some(commit) = open.pop() {
        if commit == *head {
            return true;
        }
        if let Some(parents) = imported.get(&commit) {
            open.extend(parents.iter().filter(|parent| seen.insert((*parent).clone())).cloned());
        } else if earlier.contains(&commit)
            && let Ok(read) = Commit::read(operators, &commit)
        {
            open.extend(read.parents.into_iter().filter(|parent| seen.insert(parent.clone())));
        }
    }
    false
}

/// Replays all commits and determines the ends of the branches.
fn replay<'a>(
    (local, changed_before): (&LocalGateway, &HashMap<String, String>),
    begun: GitSession,
    (moved, known, existing): (Moved, HashMap<ObjectId, ObjectId>, BTreeSet<String>),
    (theirs, operators): (&'a mut dyn Source, &'a mut dyn Source),
) -> Result<(Report, Vec<Object>), Failure> {
    let mut decide = ImportAuthorizer { local, session: &begun.session, changed_before };
    let trailers = vec![
        format!("Portcullis-Session: {}", begun.session),
        format!("Portcullis-Record: {}", begun.record),
    ];
    let listed = moved.commits.iter().cloned().collect();
    let begin = Begin { base: begun.commit.clone(), start: moved.start, listed, known };
    let replay = Replay::new((theirs, operators), begin, trailers);
    let mut replay = replay.or_fail("cannot read the commit with which the session began")?;
    let replayed = moved.commits.iter().map(|commit| replay.commit(commit, &mut decide));
    let replayed: Vec<_> = replayed.collect();
    let parents: BTreeMap<&ObjectId, Option<&ObjectId>> =
        replayed.iter().map(|one| (&one.from, one.parent.as_ref())).collect();
    let mut branches = Vec::new();
    for (name, tip) in &moved.branches {
        let (mut at, mut is_partial) = (tip, false);
        let end = loop {
            match (replay.new_name(at), parents.get(at).copied().flatten()) {
                (Some(commit), _) => break Some(commit),
                (None, Some(parent)) => (at, is_partial) = (parent, true),
                (None, None) => break None,
            }
        };
        // A branch without any commit is unchanged.
        if let Some(commit) = end.filter(|end| *end != begun.commit) {
            let reference = format!("{NAMESPACE}/{}/{name}", begun.session);
            branches.push(Branch { name: name.clone(), reference, commit, is_partial });
        }
    }
    let mut refused = moved.refused;
    for branch in refs::take_conflicts(&mut branches, existing) {
        refused.push((branch.name, refs::CONFLICT));
    }
    let policy = PolicyIdentity::of(&local.gateway().policy());
    Ok((Report { begun, policy, replayed, branches, refused }, replay.into_objects()))
}

/// Records each commit, then the branches, before anything is written.
fn record(local: &LocalGateway, report: &Report) -> Result<(), Failure> {
    let note = |event: &str, facts: Value| {
        let facts = facts.as_object().cloned().unwrap_or_default().into_iter().collect();
        local
            .gateway()
            .note_durably(local.session(), event, facts)
            .or_fail("nothing was imported: it cannot be recorded")
    };
    let session = &report.begun.session;
    for one in &report.replayed {
        let facts = match &one.outcome {
            Outcome::Imported { commit, parents, paths } => json!({
                "importedSession": session,
                "from": one.from.to_string(),
                "commit": commit.to_string(),
                "parents": parents.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "paths": paths,
            }),
            Outcome::Known { .. } | Outcome::Refused(_) => continue,
        };
        note("commit", facts)?;
    }
    let branches = report.branches.iter();
    let branches: serde_json::Map<_, _> = branches
        .map(|branch| (branch.reference.clone(), branch.commit.to_string().into()))
        .collect();
    note("import", json!({ "importedSession": session, "refs": branches }))?;
    Ok(())
}

/// Writes the objects, verifies them by reading them back, and updates the refs.
fn write(
    local: &LocalGateway,
    report: &Report,
    objects: &[Object],
    writing: Writing,
) -> Result<(), Failure> {
    let (unpack, update, mut written, _refs) = writing.parts();
    let format = report.begun.commit.format();
    let unpacked = unpack.finish(|pipe| write_pack(format, objects.iter(), pipe), MAX_OUTPUT);
    unpacked.ok_or_else(|| {
        Failure::new("git did not accept the objects; no ref was moved")
            .help("`git fsck` may say what is wrong with the repository")
    })?;
    for object in objects {
        let most = u64::try_from(object.bytes.len()).unwrap_or(u64::MAX);
        // Another object may have had its name.
        let there = written.read(&object.id, object.kind, most);
        there.or_fail(
            "no ref was moved, because the repository does not have the written objects",
        )?;
    }
    let branches = report.branches.iter();
    let orders: String =
        branches.map(|branch| format!("update {} {}\n", branch.reference, branch.commit)).collect();
    let moved = update.finish(|pipe| pipe.write_all(orders.as_bytes()), MAX_OUTPUT).is_some();
    let facts = json!({ "importedSession": report.begun.session, "moved": moved });
    let facts = facts.as_object().cloned().unwrap_or_default().into_iter().collect();
    local
        .gateway()
        .note_durably(local.session(), "imported", facts)
        .or_fail("cannot record what became of the import")?;
    moved.then_some(()).ok_or_else(|| {
        Failure::new("git did not move the refs; the objects are stored, and no ref names them")
            .help("another process may hold a lock beneath `.git/refs/portcullis`")
    })
}
