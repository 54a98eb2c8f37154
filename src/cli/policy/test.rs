//! `portcullis policy test`: runs the tests of a policy, and reports their coverage.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use cap_std::fs::Dir;
use serde_json::{Value, json};

use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        policy_loading::{error_json, rendered},
        session::random_id,
    },
    config::{self, PolicyTexts},
    model::Escaped,
    operator_files,
    policy::Policy,
    policy_tools::{OutlineFile, Stage, TestReport, TestText, outline, run_tests},
};

use super::files::policies;

/// Run the tests of policies and show which rules decide no test
///
/// Runs the `[[tests]]` of each policy and those in the files `*.test.toml`
/// beside it. Tests with content, files or steps are carried out by the real
/// gateway in a temporary directory. Exits with 4 when one fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy test mine.toml\n  \
    portcullis policy test --all policies/*.toml\n  \
    portcullis policy test --json mine.toml")]
pub(super) struct Args {
    /// Policy files, names of embedded policies, or `-` for standard input
    #[arg(required = true, value_name = "FILE|NAME", value_hint = clap::ValueHint::FilePath)]
    files: Vec<String>,
    /// Show the tests that pass, too
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let scratch = Scratch::new()?;
    let mut failed = 0;
    let mut results = Vec::new();
    for (number, file) in policies(&args.files)?.into_iter().enumerate() {
        match test(file, &scratch, number) {
            Ok(Tested { report, .. }) => {
                failed += usize::from(report.failed() > 0);
                if args.json {
                    results.push(report_json(file, &report));
                } else {
                    print_report(file, &report, args.all);
                }
            }
            Err(problem) => {
                failed += 1;
                if args.json {
                    results.push(problem.object);
                } else {
                    err!("{}", problem.text);
                }
            }
        }
    }
    if args.json {
        outjson!(json!({ "ok": failed == 0, "policies": results }));
    }
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ if args.json => Err(Failure::silent(Exit::Policy)),
        1 => Err(Failure::new("the tests of a policy failed").exit(Exit::Policy)),
        n => Err(Failure::new(format_args!("the tests of {n} policies failed")).exit(Exit::Policy)),
    }
}

/// A policy with the results of its tests.
pub(super) struct Tested {
    pub(super) policy: Arc<Policy>,
    pub(super) outline: Vec<OutlineFile>,
    pub(super) report: TestReport,
}

/// The reason why a policy could not be tested, for people and for programs.
pub(super) struct Problem {
    pub(super) text: String,
    /// The object that `policy check` prints for such a policy.
    pub(super) object: Value,
}

impl Problem {
    fn load(file: &str, error: &config::Error) -> Self {
        Self { text: rendered(error), object: error_json(file, error) }
    }

    fn new(file: &str, text: String, error: &Value) -> Self {
        let object = json!({ "file": file, "ok": false, "errors": [error], "omitted": 0 });
        Self { text, object }
    }
}

/// Loads a policy and runs its tests; `number` must be unique in `scratch`.
pub(super) fn test(file: &str, scratch: &Scratch, number: usize) -> Result<Tested, Problem> {
    let unusable = |error: config::Error| Problem::load(file, &error);
    let loaded = PolicyTexts::draft(file).map_err(unusable)?;
    let policy = loaded.compile().map_err(unusable)?;
    let outline = outline(loaded.source());
    let beside = config::tests_beside(file).map_err(unusable)?;
    let own =
        outline.first().map(|own| TestText { name: &own.name, text: &own.text, policy: true });
    let beside =
        beside.iter().map(|file| TestText { name: &file.name, text: &file.text, policy: false });
    let texts: Vec<_> = own.into_iter().chain(beside).collect();
    let name = number.to_string();
    let prepared = scratch.dir.create_dir(&name).and_then(|()| scratch.dir.open_dir(&name));
    let dir = prepared.map_err(|error| {
        let message = format!("cannot prepare the tests: {error}");
        Problem::new(file, format!("error: {message}\n"), &json!({ "message": message }))
    })?;
    let stage = Stage { dir: &dir, path: &scratch.path.join(&name) };
    // Tests describe the enforcing mode, so that they need no change when it is set.
    let policy = Arc::new(policy.enforcing());
    let report = run_tests(&policy, &outline, &texts, stage).map_err(|(location, message)| {
        let at = location.to_string();
        let text = format!("error: {}\n --> {}\n", Escaped(&message), Escaped(&at));
        let error = json!({ "file": location.file, "line": location.line, "message": message });
        Problem::new(file, text, &error)
    })?;
    Ok(Tested { policy, outline, report })
}

fn print_report(file: &str, report: &TestReport, all: bool) {
    for test in &report.tests {
        let location = test.location.to_string();
        if test.problems.is_empty() {
            if all {
                let rule = test.actual.as_ref().map(|actual| actual.rule.as_str());
                outln!(
                    "ok    {} {}: {}",
                    Escaped(&location),
                    Escaped(&test.name),
                    rule.unwrap_or_default()
                );
            }
            continue;
        }
        outln!("FAIL  {} {}", Escaped(&location), Escaped(&test.name));
        for problem in &test.problems {
            outln!("        {}", Escaped(problem));
        }
    }
    let (failed, total) = (report.failed(), report.tests.len());
    let file = Escaped(file);
    outln!("{file}: {} of {total} tests passed", total - failed);
    if total == 0 {
        outln!("warning: the policy has no tests, so nothing checks that it does what is meant");
    }
    outln!("{file}: {} of {} rules decided a test", report.covered(), report.coverage.len());
    for rule in report.coverage.iter().filter(|rule| rule.tests == 0) {
        outln!("  no test: {} ({})", Escaped(&rule.rule), Escaped(&rule.location.to_string()));
    }
}

fn report_json(file: &str, report: &TestReport) -> Value {
    let tests: Vec<_> = report
        .tests
        .iter()
        .map(|test| {
            json!({
                "file": test.location.file,
                "line": test.location.line,
                "name": test.name,
                "ok": test.problems.is_empty(),
                "problems": test.problems,
                "effect": test.actual.as_ref().map(|actual| &actual.effect),
                "rule": test.actual.as_ref().map(|actual| &actual.rule),
            })
        })
        .collect();
    let coverage: Vec<_> = report
        .coverage
        .iter()
        .map(|rule| {
            json!({
                "rule": rule.rule,
                "file": rule.location.file,
                "line": rule.location.line,
                "tests": rule.tests,
            })
        })
        .collect();
    let warnings: &[&str] =
        if report.tests.is_empty() { &["the policy has no tests"] } else { &[] };
    json!({
        "file": file,
        "ok": report.failed() == 0,
        "failed": report.failed(),
        "tests": tests,
        "coverage": coverage,
        "warnings": warnings,
    })
}

/// A temporary directory that is removed with its content.
pub(super) struct Scratch {
    path: PathBuf,
    dir: Dir,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt as _;
        let name = format!("portcullis-test-{}", random_id()?);
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .or_fail(format_args!("cannot make the directory `{}`", path.display()))?;
        let dir = operator_files::open_dir(&path).or_fail("cannot open the temporary directory")?;
        Ok(Self { path, dir })
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = operator_files::remove_dir_all(&self.path);
    }
}
