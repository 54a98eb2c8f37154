//! Files that an operator has written somewhere: made beside their name and renamed,
//! so that one is there as a whole or not at all, and never through a link that an
//! agent planted.
#![expect(clippy::disallowed_methods, reason = "the operator names the file")]

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::{
    failure::{Context as _, Failure},
    session::random_id,
};

/// A file that is being written, gone unless it is kept.
pub(crate) struct Fresh {
    named: PathBuf,
    /// Where it is until then; nothing of a device, which is written itself.
    temp: Option<PathBuf>,
    file: File,
}

impl Fresh {
    /// Makes a file that [`Fresh::keep`] gives the name `named`.
    ///
    /// # Errors
    /// When another kind of file has the name, and as the system says.
    pub(crate) fn create(named: &Path) -> Result<Self, Failure> {
        let failed = format!("cannot write `{}`", named.display());
        let mode = match named.symlink_metadata() {
            Ok(old) if old.is_file() => Some(old.permissions().mode() & 0o777),
            // Such as `/dev/null`, which no agent makes.
            Ok(old) if old.file_type().is_char_device() => {
                let file = OpenOptions::new().write(true).open(named).or_fail(failed)?;
                return Ok(Self { named: named.to_owned(), temp: None, file });
            }
            Ok(_other) => {
                return Err(Failure::new(format_args!(
                    "{failed}: it is a link, or no regular file"
                ))
                .help("name the file itself, or another one"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Failure::new(format_args!("{failed}: {error}"))),
        };
        let name = named.file_name().unwrap_or_default().to_string_lossy();
        let temp = named.with_file_name(format!(".{name}.{}", random_id()?));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        mode.into_iter().for_each(|mode| {
            options.mode(mode);
        });
        let file = options.open(&temp).or_fail(failed)?;
        Ok(Self { named: named.to_owned(), temp: Some(temp), file })
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        if let Some(temp) = &self.temp {
            self.file.sync_all()?;
            fs::rename(temp, &self.named)?;
            self.temp = None;
        }
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            // It has no meaning.
            let _removed = fs::remove_file(temp);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_planted_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("precious"), "kept").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("report.html")).unwrap();
        assert!(Fresh::create(&at("report.html")).is_err());
        let fresh = Fresh::create(&at("other.html")).unwrap();
        // Planted after it was looked at.
        std::os::unix::fs::symlink(at("precious"), at("other.html")).unwrap();
        fresh.file().write_all(b"report").unwrap();
        fresh.keep().unwrap();
        assert_eq!(fs::read_to_string(at("precious")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(at("other.html")).unwrap(), "report");
        drop(Fresh::create(&at("third")).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
