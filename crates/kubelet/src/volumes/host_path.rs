//! hostPath volumes: whether a path of the node is what its type says, and creating it where the type asks for that.
//! Source: upstream's `hostpath`.

use crate::pods::core::HostPathVolumeSource;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Checks a path.
///
/// # Errors
/// The end of a `FailedMount` text.
pub(super) fn check(source: &HostPathVolumeSource) -> Result<(), String> {
    let path = Path::new(&source.path);
    if source.path.split('/').any(|part| part == "..") {
        return Err(format!("path {} must not contain '..'", source.path));
    }
    let found = std::fs::metadata(path).ok().map(|m| m.file_type());
    let wrong = |what: &str| Err(format!("hostPath type check failed: {} is not a {what}", source.path));
    match source.type_.as_deref().unwrap_or_default() {
        "" => Ok(()),
        "DirectoryOrCreate" => match found {
            None => {
                std::fs::create_dir_all(path).map_err(|e| format!("{}: {e}", source.path))?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
                    .map_err(|e| e.to_string())
            }
            Some(kind) if kind.is_dir() => Ok(()),
            Some(_) => wrong("directory"),
        },
        "FileOrCreate" => match found {
            None => {
                let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o644).open(path);
                file.map(drop).map_err(|e| format!("{}: {e}", source.path))
            }
            Some(kind) if kind.is_file() => Ok(()),
            Some(_) => wrong("file"),
        },
        kind => {
            let (holds, what): (fn(&std::fs::FileType) -> bool, _) = match kind {
                "Directory" => (std::fs::FileType::is_dir, "directory"),
                "File" => (std::fs::FileType::is_file, "file"),
                "Socket" => (FileTypeExt::is_socket, "socket file"),
                "CharDevice" => (FileTypeExt::is_char_device, "character device"),
                "BlockDevice" => (FileTypeExt::is_block_device, "block device"),
                _ => return Err(format!("{kind} is an invalid volume type")),
            };
            if found.is_some_and(|f| holds(&f)) { Ok(()) } else { wrong(what) }
        }
    }
}
