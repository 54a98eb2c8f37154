//! A process that works when it is told to and prints how long that took: this program started again,
//! in the sandbox or outside of it.
#![expect(clippy::disallowed_methods, reason = "copies this program")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{Outcome, world::World};

/// The running process. Its tasks and their times are lines of its standard streams.
pub(crate) struct Workload {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Workload {
    /// Starts it and waits until it has done a first task.
    pub(crate) fn start(command: &mut Command, first: &str) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
        let mut workload = Self { child, input, output: BufReader::new(output) };
        workload.time(first)?;
        Ok(workload)
    }

    /// Has it do a task once; returns the time that it prints, in nanoseconds.
    pub(crate) fn time(&mut self, task: &str) -> Outcome<f64> {
        writeln!(self.input, "{task}")?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("the workload ended at `{task}`").into());
        }
        line.trim().parse().map_err(|_| format!("the workload printed at `{task}`: {line}").into())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn end(self) -> Outcome<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the workload ended: {status}").into()) }
    }
}

/// Copies this program where an agent may read it.
pub(crate) fn program(world: &World) -> Outcome<PathBuf> {
    let program = world.base().join("programs/workload");
    if !program.exists() {
        fs::create_dir_all(world.base().join("programs"))?;
        fs::copy(std::env::current_exe()?, &program)?;
    }
    Ok(program)
}

/// Does the tasks on standard input, line by line, and prints the time of each.
pub(crate) fn serve(mut task: impl FnMut(&str) -> Outcome<f64>) -> Outcome<()> {
    for line in std::io::stdin().lock().lines() {
        match task(&line?) {
            Ok(time) => println!("{time:.0}"),
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}
