//! The configurations of sandboxes, in a file each: a container is created with that of its sandbox, and a runtime does not give
//! it back.
//!
//! Invariants: a file is whole or absent, and written before its sandbox is made; a sandbox is known by its pod's uid and its
//! attempt, since the runtime makes its id later.

use kaji_containers::{PodSandboxConfig, PodSandboxMetadata};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

/// The directory of configurations.
pub struct Configurations {
    directory: PathBuf,
}

/// The name of a sandbox's file; uids are made of few kinds of characters, and others must lead nowhere.
fn name(sandbox: &PodSandboxMetadata) -> io::Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if sandbox.uid.is_empty() || sandbox.uid.len() > 200 || !sandbox.uid.chars().all(plain) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("invalid pod uid {:?}", sandbox.uid),
        ));
    }
    Ok(format!("{}.{}.json", sandbox.uid, sandbox.attempt))
}

impl Configurations {
    /// Makes the directory.
    pub fn open(directory: PathBuf) -> io::Result<Configurations> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Configurations { directory })
    }

    /// Keeps a configuration.
    pub fn write(&self, config: &PodSandboxConfig) -> io::Result<()> {
        let path = self.directory.join(name(&config.metadata)?);
        let unfinished = path.with_extension("new");
        let mut file =
            fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        io::Write::write_all(&mut file, &serde_json::to_vec(config)?)?;
        fs::rename(&unfinished, &path)
    }

    /// The configuration of a sandbox, if it is kept.
    pub fn read(&self, sandbox: &PodSandboxMetadata) -> io::Result<Option<PodSandboxConfig>> {
        match fs::read(self.directory.join(name(sandbox)?)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets a sandbox.
    pub fn remove(&self, sandbox: &PodSandboxMetadata) -> io::Result<()> {
        match fs::remove_file(self.directory.join(name(sandbox)?)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Forgets all sandboxes that are not among these.
    pub fn keep(&self, sandboxes: &[PodSandboxMetadata]) -> io::Result<()> {
        let kept: HashSet<String> = sandboxes.iter().filter_map(|sandbox| name(sandbox).ok()).collect();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if !kept.contains(&*entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(uid: &str, attempt: u32) -> PodSandboxConfig {
        let metadata = PodSandboxMetadata { uid: uid.into(), attempt, ..Default::default() };
        PodSandboxConfig { metadata, hostname: format!("h{attempt}"), ..Default::default() }
    }

    #[test]
    fn what_is_written_is_read_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let all = Configurations::open(directory.path().join("sandboxes")).unwrap();
        let (first, second) = (config("u-1", 0), config("u-1", 1));
        all.write(&first).unwrap();
        all.write(&second).unwrap();
        assert_eq!(all.read(&second.metadata).unwrap(), Some(second.clone()));
        all.keep(std::slice::from_ref(&second.metadata)).unwrap();
        assert_eq!(all.read(&first.metadata).unwrap(), None);
        all.remove(&second.metadata).unwrap();
        all.remove(&second.metadata).unwrap();
        assert_eq!(all.read(&second.metadata).unwrap(), None);
    }

    #[test]
    fn a_uid_is_no_path() {
        let directory = tempfile::tempdir().unwrap();
        let all = Configurations::open(directory.path().to_owned()).unwrap();
        for uid in ["", "../x", "a/b", "a\0"] {
            assert!(all.write(&config(uid, 0)).is_err(), "{uid:?}");
        }
    }
}
