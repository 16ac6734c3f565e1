//! Archives: their bytes depend on their files alone.

use super::{Error, Release, layout::File};
use flate2::{Compression, GzBuilder};
use std::{collections::BTreeSet, io::Write};

/// An archive of files below `prefix`, with their directories.
///
/// # Errors
/// For paths that an archive cannot have.
pub fn tar(release: &Release, prefix: &str, files: &[File]) -> Result<Vec<u8>, Error> {
    let path = |file: &File| match prefix {
        "" => file.path.clone(),
        prefix => format!("{prefix}/{}", file.path),
    };
    let directories: BTreeSet<String> = files.iter().flat_map(|file| parents(&path(file))).collect();
    let mut archive = tar::Builder::new(vec![]);
    let header = |kind, mode, size: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(release.time.into());
        header.set_size(size as u64);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    for directory in directories {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        archive.append_data(&mut header, format!("./{directory}/"), &[][..]).map_err(refused)?;
    }
    for file in files {
        if let Some(target) = file.link {
            let mut header = header(tar::EntryType::Symlink, 0o777, 0);
            archive.append_link(&mut header, format!("./{}", path(file)), target).map_err(refused)?;
            continue;
        }
        let mut header = header(tar::EntryType::Regular, file.mode(), file.bytes.len());
        archive.append_data(&mut header, format!("./{}", path(file)), &*file.bytes).map_err(refused)?;
    }
    archive.into_inner().map_err(refused)
}

/// The directories that a path is in, the outermost first.
fn parents(path: &str) -> Vec<String> {
    path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect()
}

/// Compressed, without a time or a name.
///
/// # Errors
/// None that a vector has.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut encoder = GzBuilder::new().mtime(0).write(vec![], Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).map_err(|e| Error::Format("gzip", e.to_string()))
}

fn refused(error: std::io::Error) -> Error {
    Error::Format("tar", error.to_string())
}
