//! The mount as programs see it: a real kernel, a real gateway, real programs.

#![expect(clippy::disallowed_methods, reason = "looks at the workspace from outside")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod asking;
mod attributes;
mod model;
mod naming;
mod races;
mod reading;
mod refusals;
mod reload;
mod repository;
mod rig;
mod scratch;
#[path = "../../../../tests/integration/seeded_random.rs"]
mod seeded_random;
mod stress;
mod suites;
mod waiting;
mod writing;
