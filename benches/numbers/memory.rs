//! Memory of an idle gateway process.
#![expect(clippy::disallowed_methods, reason = "looks at /proc")]

use std::{path::Path, thread, time::Duration};

use crate::{
    Outcome,
    acp::Run,
    measure::{Bound, report},
    world::World,
};

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let run = Run::start(&world, 0)?;
    thread::sleep(Duration::from_millis(500));
    let broker = run.child.id();
    let gateway = descendant(broker, "gateway-process")?;
    let (of_gateway, of_broker) = (resident(gateway)?, resident(broker)?);
    run.end()?;
    let details = format!("the broker beside it {of_broker:.2} MiB");
    report("memory", of_gateway, "MiB, idle gateway", Bound::AtMost(15.0), &details);
    Ok(())
}

/// The process among those that the broker started whose first argument is `word`.
pub(crate) fn descendant(broker: u32, word: &str) -> Outcome<u32> {
    let children = std::fs::read_to_string(format!("/proc/{broker}/task/{broker}/children"))?;
    for child in children.split_whitespace() {
        let command = std::fs::read(Path::new("/proc").join(child).join("cmdline"))?;
        if command.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes()) {
            return Ok(child.parse()?);
        }
    }
    Err(format!("there is no `{word}`").into())
}

/// Resident memory in MiB.
pub(crate) fn resident(process: u32) -> Outcome<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
