//! All tests by the public interfaces: one binary, a module per transport or
//! topic.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "tests say what went wrong by panicking, and look at the disk behind the gate's back"
)]

mod acp;
mod acp_client;
mod acp_rig;
mod aftermath;
mod aliases;
mod approvals;
mod attacks;
mod audit;
mod audit_alone;
mod authoring;
mod backup;
mod batch;
mod beneath;
mod book;
mod circumstances;
mod common;
mod containers;
mod core_api;
mod courier;
mod crash;
mod crash_race;
mod demo;
mod differential;
mod disk;
mod doctor;
mod doors;
mod egress;
mod fast_agent;
mod fast_agent_confined;
mod fast_agent_editor;
mod faults;
mod files;
mod fs;
mod generate;
mod golden;
mod guests;
mod hammer;
mod inside;
mod layers;
mod ledger;
mod limits;
mod links;
mod lists;
mod log_defects;
mod looking;
mod machine;
mod many;
mod mcp;
mod model;
mod module_graph;
mod oracle;
mod outputs;
mod owner;
mod package;
mod passing;
mod policy;
mod printing;
mod proof;
mod races;
mod random;
mod recovery;
mod refusals;
mod relay;
mod reload;
mod requests;
mod review;
mod sandbox;
mod search;
mod secrets;
mod serve;
mod setup;
mod shipping;
mod signed;
mod signer;
mod start_order;
mod status;
mod tcb;
mod timing;
mod two_gates;
mod typescript;
mod undo;
mod usage;
mod vault;
mod versions;
mod watch;
