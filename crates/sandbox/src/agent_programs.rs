//! Lookup of a sandbox's programs, and of the files of their installations that the agent may read.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use super::{
    launch_error::LaunchError,
    program_files::{self, AgentAccess, ProgramFiles},
    spec::{Grant, SandboxSpec},
    trusted_paths::TrustError,
};

/// Grants that an agent was given for its programs.
#[derive(Debug, Default)]
pub struct ProgramGrants {
    /// Paths that the agent may read besides.
    pub read: Vec<PathBuf>,
    /// Programs that were passed over, each with the reason: an agent may choose which files they
    /// are.
    pub passed_over: Vec<TrustError>,
}

impl SandboxSpec {
    /// Lets the agent read its program, and those of `others` that are installed, with the
    /// libraries and packages of each, unless it sees them anyway.
    ///
    /// Paths that a workspace or another agent's home leads to are no installation: a repository
    /// would choose what is read.
    ///
    /// # Errors
    /// [`LaunchError`] if its program cannot be found, or its name leads through such a path.
    pub fn read_programs(&mut self, others: &[String]) -> Result<ProgramGrants, LaunchError> {
        let (read, write) = self.grants()?;
        let (reach, withheld) = (self.reach(&read, &write), self.withheld());
        let paths = self.trusted_paths_with(&read, &write);
        let check = |program: &ProgramFiles| {
            let mut looked_up = program.looked_up.iter();
            looked_up.try_for_each(|path| paths.check_way(&"agent's program", path))
        };
        let own = self.find_program(&self.existing_workspaces()?, &reach)?;
        check(&own)?;
        let (mut needs, mut passed_over) = (own.needs, Vec::new());
        let (directory, path) = (current_directory()?, std::env::var_os("PATH"));
        for other in others {
            let installed =
                program_files::find_all(other.as_ref(), path.as_deref(), &directory, &reach);
            for found in installed {
                match check(&found) {
                    Ok(()) => {
                        needs.extend(found.needs);
                        self.links.extend(found.links);
                        break;
                    }
                    Err(error) => passed_over.push(error),
                }
            }
        }
        let missing: Vec<_> = needs.into_iter().filter(|path| !reach.sees(path)).collect();
        let read = program_files::libraries(&missing, &withheld);
        self.read.extend(read.iter().map(|path| Grant { path: path.clone(), required: true }));
        Ok(ProgramGrants { read, passed_over })
    }

    /// Finds the agent's program.
    ///
    /// # Errors
    /// [`LaunchError`] if it cannot be found.
    pub(super) fn find_program(
        &self,
        workspaces: &[PathBuf],
        reach: &AgentAccess,
    ) -> Result<ProgramFiles, LaunchError> {
        let (directory, path) = (current_directory()?, std::env::var_os("PATH"));
        match self.program_in_mount(&directory, workspaces) {
            // A lookup for advice would disclose which files exist.
            Some(path) => Ok(ProgramFiles { path, ..ProgramFiles::default() }),
            None => Ok(program_files::find(&self.program, path.as_deref(), &directory, reach)?),
        }
    }

    /// Returns the program's path if it lies in a workspace and there is to be a mount: the agent
    /// executes the file that it finds there.
    fn program_in_mount(&self, directory: &Path, workspaces: &[PathBuf]) -> Option<PathBuf> {
        let path = directory.join(&self.program);
        let is_plain = path.components().all(|part| part != Component::ParentDir);
        let named = self.program.as_bytes().contains(&b'/') && is_plain;
        let mut roots = workspaces.iter().zip(self.workspaces()).filter(|_| self.mount && named);
        roots.find_map(|(root, (_, alias))| {
            let mut names = [Some(root.as_path()), alias].into_iter().flatten();
            let inside = names.find_map(|name| path.strip_prefix(name).ok());
            inside.map(|inside| root.join(inside))
        })
    }
}

fn current_directory() -> Result<PathBuf, LaunchError> {
    std::env::current_dir().map_err(|e| LaunchError::Io("look up this directory", e))
}
