//! The argument of `--agent-limit`.

use crate::policy::{AgentLimits, MIN_MEMORY, PROCESSES, PROCESSORS, parse_size};

/// Parses a limit, such as `memory=4GiB`.
pub(super) fn parse(text: &str) -> Result<AgentLimits, String> {
    let number = |text: &str, (least, most): (u64, u64)| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("expected a number from {least} to {most}")).map(Some)
    };
    match text.split_once('=') {
        Some(("memory", size)) => match parse_size(size).filter(|size| *size >= MIN_MEMORY) {
            None => Err("expected a size from 64MiB, such as `4GiB`".to_owned()),
            memory => Ok(AgentLimits { memory, ..AgentLimits::default() }),
        },
        Some(("processes", most)) => {
            Ok(AgentLimits { processes: number(most, PROCESSES)?, ..AgentLimits::default() })
        }
        Some(("cpu", most)) => {
            Ok(AgentLimits { cpu: number(most, PROCESSORS)?, ..AgentLimits::default() })
        }
        _ => Err("expected `memory=SIZE`, `processes=NUMBER` or `cpu=NUMBER`".to_owned()),
    }
}

/// Returns the limits in force: the last given value of each, otherwise the
/// policy's.
pub(super) fn in_force(given: &[AgentLimits], policy: AgentLimits) -> AgentLimits {
    given.iter().fold(policy, |limits, given| AgentLimits {
        memory: given.memory.or(limits.memory),
        processes: given.processes.or(limits.processes),
        cpu: given.cpu.or(limits.cpu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_holds_instead_of_the_policys() {
        let policy = AgentLimits { memory: Some(1 << 30), processes: Some(64), cpu: None };
        let given: Vec<_> =
            ["processes=9000", "cpu=2", "cpu=1"].map(|text| parse(text).unwrap()).into();
        let both = AgentLimits { memory: Some(1 << 30), processes: Some(9000), cpu: Some(1) };
        assert_eq!(in_force(&given, policy), both);
        assert_eq!(in_force(&[], policy), policy);
        for wrong in ["processes=1", "cpu=0", "memory=1MiB", "memory=4", "disk=1GiB", "cpu", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
