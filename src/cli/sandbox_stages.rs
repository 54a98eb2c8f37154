//! The hidden command line of the stages of an agent's sandbox. It is not for
//! people: each stage expects a channel as its standard input.

use std::process::ExitCode;

use crate::sandbox::{PROGRAM_COMMAND, STAGE_COMMAND, Stage, run_program};

/// Becomes a confined program, if this process was started as one.
pub(crate) fn run_if_program() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != PROGRAM_COMMAND {
        return None;
    }
    let parent = arguments.next().and_then(|number| number.to_str()?.parse().ok());
    match (parent, arguments.next().as_ref().and_then(|order| order.to_str())) {
        (Some(parent), Some(order)) => Some(run_program(parent, order)),
        _ => Some(ExitCode::from(2)),
    }
}

/// Runs a stage, if this process was started as one.
pub(crate) fn run_if_stage() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != STAGE_COMMAND {
        return None;
    }
    let stage = arguments.next().and_then(|word| Stage::parse(word.to_str()?));
    let parent = arguments.next().and_then(|number| number.to_str()?.parse().ok());
    match (stage, parent) {
        (Some(stage), Some(parent)) => Some(stage.run(parent)),
        _ => Some(ExitCode::from(2)),
    }
}
