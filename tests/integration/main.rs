//! All tests by the public interfaces: one binary, a module per transport or
//! topic.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "tests say what went wrong by panicking, and look at the disk behind the gateway's back"
)]

mod acp;
mod acp_client;
mod acp_rig;
mod aliases;
mod approvals;
mod attached_clients;
mod attacks;
mod audit;
mod audit_alone;
mod audit_log;
mod authoring;
mod backup;
mod backup_store;
mod batch;
mod book;
mod common;
mod concurrent_removal;
mod consistency;
mod containers;
mod core_api;
mod crash;
mod crash_race;
mod demo;
mod denied_names;
mod differential;
mod disk;
mod doctor;
mod egress;
mod environment;
mod fast_agent;
mod fast_agent_confined;
mod fast_agent_editor;
mod faults;
mod files;
mod fs;
mod generate;
mod glossary;
mod golden;
mod layers;
mod limited_machines;
mod limits;
mod links;
mod links_on_the_way;
mod load;
mod log_defects;
mod many_gateways;
mod mcp;
mod model;
mod module_graph;
mod name_lists;
mod output_files;
mod package;
mod policy;
mod printing;
mod proof;
mod races;
mod read_only_state;
mod recovery;
mod refusal_rate;
mod relay;
mod reload;
mod requests;
mod review;
mod sandbox;
mod sandbox_socket;
mod scripted_agent;
mod search;
mod secrets;
mod seeded_random;
mod serve;
mod serve_clients;
mod setup;
mod shipping;
mod signed;
mod signer;
mod start_order;
mod state_owner;
mod status;
mod subtrees;
mod tcb;
mod timing;
mod typescript;
mod undo;
mod usage;
mod versions;
mod watch;
