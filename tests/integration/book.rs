//! The book in `docs/`: its summary, its links, and its commands.

mod agents;
mod commands;
mod links;
mod page;
