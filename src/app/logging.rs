//! Diagnostics of a long-lived gateway: warnings to stderr, more to files in the
//! state directory that rotate daily.
//!
//! They help operators and prove nothing: the audit log does.

use std::path::Path;

use tracing::level_filters::LevelFilter;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{ParseError, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use super::{
    failure::{Context as _, Exit, Failure},
    stderr::Stderr,
};
use crate::app::output::colours_on_stderr;

/// Number of daily files that are retained.
const MAX_FILES: usize = 7;

/// The options of logging.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// The level of the logs in the state directory: error, warn, info, debug, trace, or a filter
    /// such as `portcullis=debug`
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "PORTCULLIS_LOG")]
    pub(crate) log: String,
}

impl Options {
    /// Parses the filter of the option.
    ///
    /// # Errors
    /// When it is invalid.
    pub(crate) fn filter(&self) -> Result<EnvFilter, Failure> {
        let parse = || -> Result<EnvFilter, ParseError> {
            let filter = EnvFilter::builder().parse(&self.log)?;
            // `rmcp` would log messages of clients, with the content of files.
            Ok(filter.add_directive("rmcp=off".parse()?))
        };
        let parsed = match self.misspelt() {
            Some(word) => Err(Failure::new(format_args!(
                "cannot understand `--log {}`: `{word}` is no level",
                self.log
            ))),
            None => parse().or_fail(format_args!("cannot understand `--log {}`", self.log)),
        };
        parsed.map_err(|failure| {
            failure
                .exit(Exit::Usage)
                .help("use error, warn, info, debug, trace, or a filter such as `portcullis=debug`")
        })
    }

    /// Returns a word that is neither a level nor a target of this program: the
    /// filter would accept it as a target that logs nothing.
    fn misspelt(&self) -> Option<&str> {
        let is_own = |word: &str| {
            let rest = word.strip_prefix("portcullis");
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', ':']))
        };
        self.log.split(',').map(str::trim).find(|word| {
            !word.contains(['=', '[', ']']) && word.parse::<LevelFilter>().is_err() && !is_own(word)
        })
    }
}

/// Starts logging for this process, into `logs` in the state directory.
///
/// # Errors
/// When the first file cannot be created.
pub(crate) fn start(options: &Options, state: &Path) -> Result<(), Failure> {
    start_with(options, state, None)
}

/// Starts logging with an additional layer, which has a filter of its own.
///
/// # Errors
/// As [`start`].
pub(crate) fn start_with(
    options: &Options,
    state: &Path,
    more: Option<Box<dyn Layer<Registry> + Send + Sync>>,
) -> Result<(), Failure> {
    let directory = state.join("logs");
    std::fs::DirBuilder::new()
        .recursive(true)
        .create(&directory)
        .or_fail("cannot make the directory of the log files")?;
    let files = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix("portcullis")
        .filename_suffix("log")
        .max_log_files(MAX_FILES)
        .build(directory)
        .or_fail("cannot open the log file")?;
    let to_files = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(std::sync::Mutex::new(files))
        .with_filter(options.filter()?);
    let to_stderr = tracing_subscriber::fmt::layer()
        .without_time()
        .with_target(false)
        .with_ansi(colours_on_stderr())
        .with_writer(|| Stderr)
        .with_filter(
            Targets::new().with_default(LevelFilter::WARN).with_target("rmcp", LevelFilter::OFF),
        );
    tracing_subscriber::registry()
        .with(more)
        .with(to_files)
        .with(to_stderr)
        .try_init()
        .or_fail("cannot start logging")
}

/// Starts logging to stderr only, for a process that can open no files.
///
/// # Errors
/// When `level` is invalid.
pub(crate) fn start_on_stderr(level: &str) -> Result<(), Failure> {
    let options = Options { log: level.to_owned() };
    let to_stderr = tracing_subscriber::fmt::layer()
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_writer(|| Stderr)
        .with_filter(options.filter()?);
    tracing_subscriber::registry().with(to_stderr).try_init().or_fail("cannot start logging")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(log: &str) -> Result<EnvFilter, Failure> {
        Options { log: log.to_owned() }.filter()
    }

    /// It used to be accepted as a target that logs nothing.
    #[test]
    fn a_misspelt_level_is_refused() {
        for log in ["inof", "zzz", "warn,debgu", "portcul"] {
            assert!(filter(log).is_err(), "{log}");
        }
        for log in [
            "info",
            "DEBUG",
            "off",
            "portcullis",
            "portcullis_audit::log",
            "portcullis=debug",
            "warn,portcullis=trace",
            "portcullis[serve]=debug",
        ] {
            assert!(filter(log).is_ok(), "{log}");
        }
    }
}
