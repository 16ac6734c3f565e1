//! Kernel parameters of the network namespace that the calling thread is in.

use crate::NetworkError;
use std::{fs, io, path::PathBuf};

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

/// Whether the kernel has the parameter.
pub fn exists(name: &str) -> bool {
    path(name).exists()
}

/// Sets a parameter unless it has the value already, so that a read-only `/proc/sys` with right values is no failure.
///
/// # Errors
/// Those of the system.
pub fn set(name: &str, value: &str) -> Result<(), NetworkError> {
    let file = path(name);
    let present = fs::read_to_string(&file).map_err(NetworkError::io(name))?;
    if present.trim() == value {
        return Ok(());
    }
    fs::write(&file, value).map_err(NetworkError::io(name))
}

/// The same for a parameter that a kernel may lack.
///
/// # Errors
/// Those of the system, but for an absent parameter.
pub fn set_if_present(name: &str, value: &str) -> Result<(), NetworkError> {
    match set(name, value) {
        Err(NetworkError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
