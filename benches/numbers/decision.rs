//! Decisions under a policy of 500 rules, per second on one core.

use std::{fmt::Write as _, hint::black_box};

use portcullis::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{PolicySource, Query, compile},
};

use crate::{
    Outcome,
    measure::{Bound, Series, each, report},
};

const ROUNDS: usize = 400;
const BATCH: u32 = 500;

/// Ordinary paths, one that a rule denies, one that is not ASCII.
const PATHS: [&str; 6] = [
    "src/lib.rs",
    "src/policy/stages/names.rs",
    "packages/web/components/button/index.tsx",
    "docs/guide/Getting-Started.md",
    "src/module250/generated/a/b.rs",
    "tests/données/été.txt",
];

/// `baseline` and 500 rules of the forms that people write.
fn many_rules() -> Result<String, std::fmt::Error> {
    let mut text = String::from(
        "schema = 1\nextends = [\"baseline\"]\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"src/**\"]\n",
    );
    for number in 0..500 {
        let path = match number % 5 {
            0 => format!("src/module{number}/generated/**"),
            1 => format!("**/*.ext{number}"),
            2 => format!("packages/p{number}/**/*.lock"),
            3 => format!("**/build{number}/**"),
            _ => format!("config/name{number}*.toml"),
        };
        write!(text, "[[rules]]\nid = \"r{number}\"\neffect = \"deny\"\n")?;
        write!(text, "operations = [\"write\", \"read\"]\npaths = [\"{path}\"]\n")?;
    }
    Ok(text)
}

pub(crate) fn run() -> Outcome<()> {
    let agent: AgentName = "agent".parse().map_err(|_| "no agent name")?;
    let policy = compile(&PolicySource::from_text("many", &many_rules()?))
        .map_err(|diagnostics| diagnostics.to_string())?;
    let paths =
        PATHS.iter().map(|path| WorkspacePath::parse(path)).collect::<Result<Vec<_>, _>>()?;
    let mut times = vec![Vec::with_capacity(ROUNDS); paths.len()];
    for _ in 0..ROUNDS {
        for (path, times) in paths.iter().zip(&mut times) {
            let (operation, access) = (OperationKind::Read, Access::Read);
            let query = Query { agent: &agent, operation, access, path };
            times.push(each(BATCH, || {
                let _ = black_box(policy.evaluate(black_box(&query)));
                Ok(())
            })?);
        }
    }
    let series: Vec<_> = times.into_iter().map(Series::new).collect();
    let medians: Vec<_> = series.iter().map(Series::median).collect();
    let mean = medians.iter().sum::<f64>() / 6.0;
    let slowest = medians.iter().copied().fold(0.0, f64::max);
    let details = format!(
        "{mean:.0} ns on average over {} paths, {slowest:.0} ns for the slowest ({:.2} million)",
        paths.len(),
        1e3 / slowest
    );
    report("decision", 1e3 / mean, "million a second", Bound::AtLeast(1.0), &details);
    for (path, series) in paths.iter().zip(&series) {
        let (median, quartiles) = (series.median(), series.quartiles(1.0));
        println!("{:10} {median:>8.0} ns ({quartiles}) {path}", "");
    }
    Ok(())
}
