//! Searches for files by name and lines by content among 20,000 files, as one call of
//! a tool of a running server, against `fd` and `rg` as whole processes.
//!
//! Ours asks the policy about every entry and records its disclosures; theirs
//! print. `PORTCULLIS_FD` and `PORTCULLIS_RG` name them if they have other
//! names (Debian's name of the first is `fdfind`).
#![expect(clippy::disallowed_methods, reason = "makes a tree behind the gateway's back")]

use std::{
    cell::Cell,
    fmt::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    Outcome,
    client::{Server, check, children_spent},
    mcp::PLAIN,
    measure::{Bound, interleave, nanoseconds, report},
    world::World,
};

const DIRECTORIES: usize = 400;
const FILES: usize = 50;
/// Number of files, of which one has the line that is looked for.
const RARE: usize = 100;
const ROUNDS: usize = 41;

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let root = world.root().join("tree");
    plant(&root)?;
    let plain = world.base().join("plain.toml");
    std::fs::write(&plain, PLAIN)?;
    let fd = std::env::var_os("PORTCULLIS_FD").unwrap_or_else(|| "fdfind".into());
    let rg = std::env::var_os("PORTCULLIS_RG").unwrap_or_else(|| "rg".into());
    let found = DIRECTORIES * FILES / RARE;
    let mut fd_call = Command::new(&fd);
    fd_call.args(["--no-ignore", "--hidden", "--glob", "*needle.rs"]).current_dir(&root);
    let mut rg_call = Command::new(&rg);
    rg_call.args(["--no-ignore", "--hidden", "-n", "fn needle_[0-9]+", "."]).current_dir(&root);
    let glob = json!({ "pattern": "**/*needle.rs" });
    let grep = json!({ "pattern": "fn needle_[0-9]+", "maxResults": 1000 });
    for (rules, policy) in [("", plain.to_string_lossy().as_ref()), (" with 49 rules", "default")] {
        let command = world.command(&["mcp", "--name", "w", "--policy", policy]);
        let mut server = Server::start(command)?;
        let mut beside = |subject: &str,
                          arguments: &Value,
                          other: &mut Command,
                          name: &str,
                          bound: f64| {
            let (ours, theirs) = (Cell::new(0.0), Cell::new(0.0));
            let pair = interleave(
                ROUNDS,
                || {
                    let before = server.spent()?;
                    let time = call(&mut server, subject, arguments, found)?;
                    ours.set(ours.get() + server.spent()? - before);
                    Ok(time)
                },
                || {
                    let before = children_spent()?;
                    let time = whole(other, found)?;
                    theirs.set(theirs.get() + children_spent()? - before);
                    Ok(time)
                },
            )?;
            let rounds = ROUNDS as f64 * 1e6;
            let details = format!(
                "{:.1} ms, `{name}` {:.1} ms; processor time {:.1} ms, `{name}` {:.1} ms: {:.2}",
                pair.ours.median() / 1e6,
                pair.bare.median() / 1e6,
                ours.get() / rounds,
                theirs.get() / rounds,
                ours.get() / theirs.get(),
            );
            let unit = format!("× {name}{rules}");
            report(subject, pair.ratio.median(), &unit, Bound::AtMost(bound), &details);
            Outcome::Ok(())
        };
        beside("glob", &glob, &mut fd_call, "fd", 1.0)?;
        beside("grep", &grep, &mut rg_call, "rg", 1.2)?;
        server.end()?;
    }
    Ok(())
}

/// Makes one call of a tool, which must name that many files.
fn call(server: &mut Server, tool: &str, arguments: &Value, found: usize) -> Outcome<f64> {
    let request = server.request(&format!("workspace__w__{tool}"), arguments);
    let begun = Instant::now();
    server.send(&request)?;
    let reply = server.receive()?;
    let time = nanoseconds(begun.elapsed());
    check(reply, 0)?;
    match reply.matches("needle.rs").count() < found {
        true => Err(format!("a wrong reply: {reply:.300}").into()),
        false => Ok(time),
    }
}

/// Runs a program once, which must print that many lines.
fn whole(command: &mut Command, lines: usize) -> Outcome<f64> {
    let begun = Instant::now();
    let output = command.stderr(Stdio::inherit()).output()?;
    let time = nanoseconds(begun.elapsed());
    match output.stdout.iter().filter(|byte| **byte == b'\n').count() == lines {
        true => Ok(time),
        false => Err(format!("{command:?} found something else").into()),
    }
}

/// Source files of two to four KiB.
fn plant(root: &Path) -> Outcome<()> {
    for directory in 0..DIRECTORIES {
        let at = root.join(format!("part_{:02}/module_{directory:03}", directory % 20));
        std::fs::create_dir_all(&at)?;
        for file in 0..FILES {
            let number = directory * FILES + file;
            let rare = number.is_multiple_of(RARE);
            let mut text = String::new();
            for line in 0..40 + number % 40 {
                writeln!(text, "    let value_{line} = compute({number}, \"some text\");")?;
            }
            if rare {
                writeln!(text, "fn needle_{number}() {{}}")?;
            }
            let name = if rare { "needle" } else { "plain" };
            std::fs::write(at.join(format!("file_{file:02}_{name}.rs")), text)?;
        }
    }
    Ok(())
}
