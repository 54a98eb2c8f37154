//! Complete programs in the mount of `portcullis exec` against the same ones on a copy outside of
//! it.
//!
//! `PORTCULLIS_PROGRAMS` names a directory with the sources of ripgrep in `ripgrep`, a package with
//! its lock file in `npm`, and what they need offline: cargo's home in `cargo`, npm's cache in
//! `npm-cache` (filled by an install from the lock file). `rg` and the toolchains are those of the `PATH`.
#![expect(clippy::disallowed_methods, reason = "makes a tree behind the gateway's back")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use crate::{
    Outcome,
    measure::{Bound, interleave, nanoseconds, report},
    workload::{self, Workload},
    world::{self, World},
};

/// A command that is measured.
struct Program {
    subject: &'static str,
    /// The directory of the workspace in which it runs.
    directory: &'static str,
    command: &'static str,
    rounds: usize,
    /// The bound with scratch directories, and without any.
    bounds: [Option<f64>; 2],
}

/// Each runs once before it is measured.
const PROGRAMS: [Program; 5] = [
    Program {
        subject: "build",
        directory: "ripgrep",
        command: "rm -rf target && cargo build --offline --quiet",
        rounds: 5,
        bounds: [Some(1.1), Some(1.3)],
    },
    Program {
        subject: "no change",
        directory: "ripgrep",
        command: "cargo build --offline --quiet",
        rounds: 15,
        bounds: [Some(1.3), None],
    },
    Program {
        subject: "test",
        directory: "ripgrep",
        command: "rm -rf target && cargo test --offline --quiet >/dev/null",
        rounds: 3,
        bounds: [Some(1.1), None],
    },
    Program {
        subject: "npm",
        directory: "npm",
        command: "rm -rf node_modules && npm install --offline --no-audit --no-fund --ignore-scripts \
                  --silent",
        rounds: 5,
        bounds: [Some(1.15), Some(2.5)],
    },
    Program {
        subject: "rg 20,000",
        directory: "many",
        command: "! rg --no-ignore 'surely not there' .",
        rounds: 15,
        bounds: [Some(5.0), None],
    },
];

const MANY: u32 = 20_000;
const PER_DIRECTORY: u32 = 50;

pub(crate) fn run() -> Outcome<()> {
    let programs =
        std::env::var_os("PORTCULLIS_PROGRAMS").ok_or("PORTCULLIS_PROGRAMS is not set")?;
    let programs = fs::canonicalize(programs)?;
    let world = prepare(&programs)?;
    for (scratch, paths) in ["\"target\", \"node_modules\"", ""].into_iter().enumerate() {
        let policy = format!("schema = 1\nextends = [\"default\"]\n[scratch]\npaths = [{paths}]\n");
        fs::write(world.base().join("policy.toml"), policy)?;
        let mut native = Workload::start(&mut native(&world, &programs)?, "true")?;
        let mut mounted = Workload::start(&mut mounted(&world, &programs)?, "true")?;
        for program in &PROGRAMS {
            if let Some(bound) = program.bounds.get(scratch).copied().flatten() {
                measure(program, scratch == 0, bound, &mut mounted, &mut native)?;
            }
        }
        native.end()?;
        mounted.end()?;
    }
    Ok(())
}

fn measure(
    program: &Program,
    has_scratch: bool,
    bound: f64,
    mounted: &mut Workload,
    native: &mut Workload,
) -> Outcome<()> {
    let line = format!("cd {} && {}", program.directory, program.command);
    for workload in [&mut *mounted, &mut *native] {
        workload.time(&line)?;
    }
    let pair = interleave(program.rounds, || mounted.time(&line), || native.time(&line))?;
    let details = format!(
        "quartiles {}; {:.2} and {:.2} s{}",
        pair.ratio.quartiles(1.0),
        pair.ours.median() / 1e9,
        pair.bare.median() / 1e9,
        if has_scratch { "" } else { ", without scratch" }
    );
    let unit = "× without a mount";
    report(program.subject, pair.ratio.median(), unit, Bound::AtMost(bound), &details);
    Ok(())
}

/// A workspace, and a copy of it outside.
fn prepare(programs: &Path) -> Outcome<World> {
    let world = World::new()?;
    let root = world.root();
    for name in ["ripgrep", "npm"] {
        done(Command::new("cp").arg("-r").arg(programs.join(name)).arg(&root))?;
    }
    for number in 0..MANY {
        let directory = root.join(format!("many/part_{:03}", number / PER_DIRECTORY));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("file_{number:05}.rs")), world::text(number.try_into()?))?;
    }
    done(Command::new("cp").arg("-r").arg(&root).arg(world.base().join("native")))?;
    // An agent that root starts runs as another user, and npm writes into its cache.
    done(Command::new("cp").arg("-r").arg(programs.join("npm-cache")).arg(world.base()))?;
    done(Command::new("chmod").args(["-R", "a+rwX"]).arg(world.base().join("npm-cache")))?;
    // Files that were changed just now have to be read anew by both.
    std::thread::sleep(std::time::Duration::from_secs(2));
    Ok(world)
}

fn done(command: &mut Command) -> Outcome<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// The variables that cargo and npm need, the same for both.
fn environment(world: &World, programs: &Path) -> Vec<(&'static str, PathBuf)> {
    let rustup = std::env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    vec![
        ("CARGO_HOME", programs.join("cargo")),
        ("RUSTUP_HOME", rustup.unwrap_or_else(|| home.join(".rustup"))),
        ("npm_config_cache", world.base().join("npm-cache")),
    ]
}

/// A workload on the copy outside, with the variables that a program in the mount has.
fn native(world: &World, programs: &Path) -> Outcome<Command> {
    let mut command = Command::new(workload::program(world)?);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("HOME", world.base().join("home"));
    command.arg("shell").arg(world.base().join("native")).envs(environment(world, programs));
    Ok(command)
}

/// A workload in the mount.
fn mounted(world: &World, programs: &Path) -> Outcome<Command> {
    let program = workload::program(world)?;
    let mut command = world.command(&["exec", "--quiet", "--policy"]);
    command.arg(world.base().join("policy.toml"));
    for (name, value) in environment(world, programs) {
        command.env(name, &value).args(["--agent-env", name, "--agent-read"]).arg(value);
    }
    for name in ["cargo", "npm", "rg"] {
        if let Some(directory) = directory_of(name) {
            command.arg("--agent-read").arg(directory);
        }
    }
    command.arg("--agent-read").arg(world.base().join("programs"));
    command.arg("--agent-write").arg(world.base().join("npm-cache"));
    command.arg("--").arg(program).arg("shell").arg(world.root());
    Ok(command)
}

/// The directory of the `PATH` that has a program.
fn directory_of(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|directory| directory.join(name).is_file())
}

/// Runs each line in a shell in `directory`, in this process's place in the mount or outside of it.
pub(crate) fn shell(directory: &str) -> Outcome<()> {
    std::env::set_current_dir(directory)?;
    workload::serve(|line| {
        let begun = Instant::now();
        let output = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output()?;
        let time = nanoseconds(begun.elapsed());
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
            return Err(format!("{line}: {} {stderr:.400}", output.status).into());
        }
        Ok(time)
    })
}
