//! The author's tools: they tell what a policy would do before it does it.
//!
//! All of them ask the policy engine that enforces; none decides anything
//! itself, and none changes a workspace, a log or a policy in force.

mod descriptions;
mod schema;
mod trial;

pub use schema::{SCHEMA_FILE, json_schema};
pub use trial::{Coverage, Ruling, Stage, TestOutcome, TestReport, TestText, run_tests};
