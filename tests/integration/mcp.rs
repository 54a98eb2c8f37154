//! The MCP transport: `portcullis mcp` on its stdin and stdout.

mod asking;
mod golden;
mod hostile;
mod ids;
mod lines;
mod peers;
mod reference;
mod resources;
mod rig;
mod searches;
mod workspace;
