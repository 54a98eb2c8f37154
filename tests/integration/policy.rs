//! Policies: what they decide, and what people see of them.

mod commands;
mod documents;
mod enforced;
mod errors;
mod hostile;
mod model;
mod observe;
mod trees;
