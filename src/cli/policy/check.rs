//! `portcullis policy check`: checks that a policy loads and passes its tests, and
//! warns of misleading text.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    files::policies,
    lint::{self, Located},
};
use crate::{
    app::{
        failure::{Exit, Failure},
        policy_loading::{error_json, extended_tests, rendered, warn_of_observing},
    },
    cli::render::counted,
    config::{self, PolicyTexts},
    model::Escaped,
    policy::Policy,
    policy_tools::outline,
};

/// Check policy files and run their tests; exits with 4 when one fails
///
/// Warns, too, where a policy protects less than its text suggests; `policy lint`
/// finds more.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy check mine.toml\n  \
    portcullis policy check policies/*.toml\n  \
    git show main:mine.toml | portcullis policy check -")]
pub(super) struct Args {
    /// Policy files, names of embedded policies, or `-` for standard input
    #[arg(required = true, value_name = "FILE|NAME", value_hint = clap::ValueHint::FilePath)]
    files: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let files = policies(&args.files)?;
    let results: Vec<_> = files.into_iter().map(|file| (file, check(file))).collect();
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    if args.json {
        let policies: Vec<_> =
            results.iter().map(|(file, result)| result_json(file, result)).collect();
        outjson!(json!({ "ok": failed == 0, "policies": policies }));
    } else {
        for (file, result) in &results {
            match result {
                Ok(Checked { policy, warnings }) => {
                    outln!(
                        "{}: ok, policy `{}` version {}, {} passed{}, sha256 {}",
                        Escaped(file),
                        policy.name(),
                        policy.version(),
                        counted(policy.own_tests() as u64, "test"),
                        extended_tests(policy),
                        policy.sha256(),
                    );
                    warn_of_observing(policy);
                    lint::render(warnings, |text| err!("{text}\n"));
                }
                Err(error) => err!("{}", rendered(error)),
            }
        }
    }
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        return Err(Failure::silent(Exit::Policy));
    }
    let which = if results.len() == 1 {
        "the policy does not load".to_owned()
    } else {
        format!("{failed} of {} policies do not load", results.len())
    };
    Err(Failure::new(which).exit(Exit::Policy))
}

/// A policy that loads and whose tests pass.
struct Checked {
    policy: Policy,
    /// Findings where it protects less than its text suggests.
    warnings: Vec<Located>,
}

fn check(file: &str) -> Result<Checked, config::Error> {
    let texts = PolicyTexts::draft(file)?;
    let policy = texts.compile()?;
    let warnings = lint::misleading(&policy, &outline(texts.source()));
    Ok(Checked { policy, warnings })
}

fn result_json(file: &str, result: &Result<Checked, config::Error>) -> Value {
    match result {
        Ok(Checked { policy, warnings }) => json!({
            "file": file,
            "ok": true,
            "name": policy.name(),
            "version": policy.version(),
            "mode": policy.mode().as_str(),
            "tests": policy.tests(),
            "ownTests": policy.own_tests(),
            "sha256": policy.sha256(),
            "warnings": lint::findings_json(warnings),
        }),
        Err(error) => error_json(file, error),
    }
}
