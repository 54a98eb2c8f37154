//! Stand-in until the workspace lands.
/// Stand-in.
#[derive(Debug)]
pub struct Permit(crate::model::WorkspacePath);
impl Permit {
    /// Stand-in.
    pub fn path(&self) -> &crate::model::WorkspacePath {
        &self.0
    }
    /// Stand-in.
    #[cfg(test)]
    pub(crate) fn stand_in(path: &str) -> Self {
        Self(crate::model::WorkspacePath::parse(path).unwrap())
    }
}
