//! Watches of a hundred thousand directories: the time until the subscription is
//! ready, its cost, and the time until a change in one of them is sent.
#![expect(clippy::disallowed_methods, reason = "sets directories up behind the gateway's back")]

use std::{
    io::{BufRead as _, BufReader},
    process::{ChildStdout, Stdio},
    time::Instant,
};

use serde_json::Value;

use crate::{
    Outcome,
    measure::{Series, nanoseconds},
    memory::resident,
    world::World,
};

/// Directories, and in how many of them they lie.
const DIRECTORIES: usize = 100_000;
const ABOVE: usize = 100;
/// Changes that are timed.
const CHANGES: usize = 1_000;

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    for above in 0..ABOVE {
        for number in 1..DIRECTORIES / ABOVE {
            std::fs::create_dir_all(world.root().join(format!("w{above}/d{number}")))?;
        }
    }
    let begun = Instant::now();
    let mut command = world.command(&["fs", "watch", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
    let line = next(&mut output)?;
    let stands = begun.elapsed();
    if line.get("ok") != Some(&Value::Bool(true)) {
        return Err(format!("it does not watch: {line}").into());
    }
    let after = resident(child.id())?;
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let name =
            format!("w{}/d{}/f{change}", change % ABOVE, change % (DIRECTORIES / ABOVE - 1) + 1);
        let begun = Instant::now();
        std::fs::create_dir(world.root().join(&name))?;
        while next(&mut output)?.get("path").and_then(Value::as_str) != Some(name.as_str()) {}
        times.push(nanoseconds(begun.elapsed()));
    }
    child.kill()?;
    child.wait()?;
    let times = Series::new(times);
    println!(
        "watch      {DIRECTORIES} directories: stands after {:.2} s, resident {:.1} MiB; a change is \
         told after {:.0} µs (p50), {:.0} µs (p99)",
        stands.as_secs_f64(),
        after,
        times.median() / 1e3,
        times.at(99, 100) / 1e3,
    );
    Ok(())
}

fn next(output: &mut BufReader<ChildStdout>) -> Outcome<Value> {
    let mut line = String::new();
    if output.read_line(&mut line)? == 0 {
        return Err("it ended".into());
    }
    Ok(serde_json::from_str(&line)?)
}
