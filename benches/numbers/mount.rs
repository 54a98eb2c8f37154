//! Files in the mount of `portcullis exec` against the same files with nothing between.
//!
//! One workload runs in the sandbox, the other one on a copy outside of it; they take turns.
//! `PORTCULLIS_RG` names ripgrep if it has another name.
#![expect(clippy::disallowed_methods, reason = "makes a tree behind the gateway's back")]

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use portcullis::gateway::Client;

use crate::{
    Outcome,
    measure::{Bound, Pair, each, interleave, nanoseconds, report},
    mount_workload::{DIRECTORIES, PER_DIRECTORY, module},
    overwrite,
    workload::{self, Workload},
    world::{self, FILES, World},
};

const ROUNDS: usize = 61;
/// Rounds that begin with a new mount, and those of whole programs.
const FEW: usize = 9;

pub(crate) fn run() -> Outcome<()> {
    let world = prepare()?;
    let mut native = start_native(&world)?;
    let files = f64::from(DIRECTORIES * PER_DIRECTORY);
    let pair = interleave(
        FEW,
        || {
            let mut mounted = start_mounted(&world)?;
            let time = mounted.time("tree")?;
            mounted.end()?;
            Ok(time / files)
        },
        || Ok(native.time("tree")? / files),
    )?;
    tell("first pass", &pair, "a file", 12.0);

    let mut mounted = start_mounted(&world)?;
    for (subject, word, part, bound) in [
        ("warm pass", "tree", files, 5.0),
        ("opens", "open", 1.0, 10.0),
        ("stat", "stat", 1.0, 1.3),
    ] {
        let round = |workload: &mut Workload| Ok(workload.time(word)? / part);
        // The first one warms up.
        round(&mut mounted)?;
        round(&mut native)?;
        let pair = interleave(ROUNDS, || round(&mut mounted), || round(&mut native))?;
        tell(subject, &pair, "each", bound);
    }
    programs(&mut mounted, &mut native, "rg", "rg", 5.0)?;
    mounted.end()?;

    starts(&world, "exec")?;
    // From now on a private one is made at the start, which reads every file.
    repository(&world)?;
    let mut mounted = start_mounted(&world)?;
    programs(&mut mounted, &mut native, "git", "git", 2.5)?;
    native.end()?;
    overwrites(&mut mounted)?;
    mounted.end()?;
    starts(&world, "exec, git")
}

/// A workspace, a copy of it outside, and this program beside them.
fn prepare() -> Outcome<World> {
    let world = World::new()?;
    let root = world.root();
    for directory in 0..DIRECTORIES {
        for file in 0..PER_DIRECTORY {
            let path = root.join(module(directory, file));
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, world::text((directory * PER_DIRECTORY + file).try_into()?))?;
        }
    }
    done(Command::new("cp").arg("--archive").arg(&root).arg(world.base().join("native")))?;
    // Files that were changed just now have to be read anew by both.
    std::thread::sleep(std::time::Duration::from_secs(2));
    Ok(world)
}

/// Makes the copy outside a repository, and then the workspace.
fn repository(world: &World) -> Outcome<()> {
    let native = world.base().join("native");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(&native).args(["-c", "user.name=n", "-c", "user.email=n@localhost"]);
        done(command.args(arguments).stdout(Stdio::null()))
    };
    git(&["init", "--quiet"])?;
    git(&["add", "."])?;
    git(&["commit", "--quiet", "--message", "all"])?;
    done(Command::new("cp").arg("--archive").arg(native.join(".git")).arg(world.root()))
}

fn done(command: &mut Command) -> Outcome<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// A workload on the copy outside.
fn start_native(world: &World) -> Outcome<Workload> {
    let mut command = Command::new(workload::program(world)?);
    Workload::start(command.arg("files").arg(world.base().join("native")), "stat")
}

/// A workload in the mount.
fn start_mounted(world: &World) -> Outcome<Workload> {
    let program = workload::program(world)?;
    let mut command = world.command(&["exec", "--quiet", "--policy", "default"]);
    command.arg("--agent-read").arg(world.base().join("programs"));
    if let Some(directory) = Path::new(&ripgrep()).parent().filter(|at| at.is_absolute()) {
        command.arg("--agent-read").arg(directory);
    }
    if let Some(name) = std::env::var_os("PORTCULLIS_RG") {
        command.env("PORTCULLIS_RG", name).args(["--agent-env", "PORTCULLIS_RG"]);
    }
    Workload::start(command.arg("--").arg(program).arg("files").arg(world.root()), "stat")
}

pub(crate) fn ripgrep() -> std::ffi::OsString {
    std::env::var_os("PORTCULLIS_RG").unwrap_or_else(|| "rg".into())
}

fn programs(
    mounted: &mut Workload,
    native: &mut Workload,
    subject: &str,
    word: &str,
    bound: f64,
) -> Outcome<()> {
    // The program may not be there.
    let first = match native.time(word).and_then(|_| mounted.time(word)) {
        Ok(first) => first,
        Err(error) => {
            println!("{subject:<10} not measured: {error}");
            return Ok(());
        }
    };
    let pair = interleave(2 * FEW + 1, || mounted.time(word), || native.time(word))?;
    tell(subject, &pair, &format!("(first {:.1} ms)", first / 1e6), bound);
    Ok(())
}

/// Overwrites through the mount, and by the gateway itself in this process.
fn overwrites(mounted: &mut Workload) -> Outcome<()> {
    let world = World::new()?;
    let (gateway, session) = (world.gateway()?, world::session()?);
    let mut number = 0;
    let mut own = || {
        each(1, || {
            number += 1;
            gateway.handle(&session, &overwrite::write(number)?, Client::default())?;
            Ok(())
        })
    };
    interleave(FILES, || mounted.time("overwrite"), &mut own)?;
    let pair = interleave(4 * FILES, || mounted.time("overwrite"), &mut own)?;
    tell("overwrite", &pair, "each, by a write of the gateway's own", 1.25);
    gateway.stop(&session)?;
    Ok(())
}

/// Measures the start of a command, beside that in a sandbox without a mount.
/// Starts of `exec` relative to those of `run`.
fn starts(world: &World, subject: &str) -> Outcome<()> {
    let start = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        let begun = Instant::now();
        done(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        Ok(nanoseconds(begun.elapsed()))
    };
    let pair = interleave(
        2 * FEW + 1,
        || start(&["exec", "--quiet", "--", "true"]),
        || start(&["run", "--no-mount", "--", "true"]),
    )?;
    let more = (pair.ours.median() - pair.bare.median()) / 1e6;
    let details = format!(
        "exec {:.0} ms ({}), run {:.0} ms ({})",
        pair.ours.median() / 1e6,
        pair.ours.quartiles(1e6),
        pair.bare.median() / 1e6,
        pair.bare.quartiles(1e6)
    );
    report(subject, more, "ms over `run`", Bound::AtMost(40.0), &details);
    Ok(())
}

fn tell(subject: &str, pair: &Pair, what: &str, bound: f64) {
    let details = format!(
        "quartiles {}; {:.2} and {:.2} µs {what}",
        pair.ratio.quartiles(1.0),
        pair.ours.median() / 1e3,
        pair.bare.median() / 1e3
    );
    report(subject, pair.ratio.median(), "× without a mount", Bound::AtMost(bound), &details);
}
