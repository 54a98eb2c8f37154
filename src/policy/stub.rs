#![allow(missing_docs)]
use super::*;
use crate::model::*;
#[derive(Debug)]
pub struct Policy;
#[derive(Clone, Copy)]
pub struct Query<'a> {
    pub agent: &'a AgentName,
    pub operation: OperationKind,
    pub access: Access,
    pub path: &'a WorkspacePath,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    pub kind: ObjectKind,
    pub links: u64,
    pub through_symlink: bool,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
    Missing,
}
pub struct Ret {
    pub versions: u64,
    pub days: u64,
    pub size: u64,
}
fn a() -> Decision {
    Decision { effect: Effect::Allow, rule: "allowedPaths.read".into(), place: None, reason: None }
}
impl Policy {
    pub fn evaluate(&self, _: &Query<'_>) -> Decision {
        a()
    }
    pub fn evaluate_object(&self, _: &Query<'_>, _: &Object) -> Decision {
        a()
    }
    pub fn evaluate_content(&self, _: &Query<'_>, _: &[u8]) -> Decision {
        a()
    }
    pub fn max_size(&self, _: Access) -> u64 {
        10 << 20
    }
    pub fn name(&self) -> &str {
        "x"
    }
    pub fn version(&self) -> u64 {
        1
    }
    pub fn sha256(&self) -> &str {
        "00"
    }
    pub fn bundle(&self) -> &str {
        ""
    }
    pub fn backups(&self) -> &Ret {
        &Ret { versions: 20, days: 30, size: 1 << 31 }
    }
}
