//! The mounts that this process sees, as `/proc/self/mountinfo` lists them. Source: proc_pid_mountinfo(5).
//!
//! Invariant: mounts are in the order of the table, in which the visible one of several on one path is the last.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

const TABLE: &str = "/proc/self/mountinfo";

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is.
    pub point: PathBuf,
    /// The options of the mount: `rw`, `nosuid`.
    pub options: Vec<String>,
    /// Whether mounts below it are propagated to its peers.
    pub is_shared: bool,
    /// The type of the file system: `ext4`.
    pub file_system: String,
    /// What is mounted: a device, or a name that says little.
    pub source: String,
}

impl Mount {
    /// Reads a line; `None` for one without these fields.
    fn parse(line: &str) -> Option<Mount> {
        // The number of optional fields varies; a hyphen ends them.
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(4);
        let point = unescape(fields.next()?);
        let options = fields.next()?.split(',').map(str::to_owned).collect();
        let is_shared = fields.any(|field| field.starts_with("shared:"));
        let mut fields = file_system.split(' ');
        let (file_system, source) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        Some(Mount { point, options, is_shared, file_system, source })
    }
}

/// All mounts of this process's mount namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads the kernel's table.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read() -> io::Result<MountTable> {
        Ok(MountTable::parse(&fs::read_to_string(TABLE)?))
    }

    /// The mounts in the text of a table.
    #[must_use]
    pub fn parse(table: &str) -> MountTable {
        MountTable(table.lines().filter_map(Mount::parse).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The points of those at or below a directory.
    pub fn points_below(&self, directory: &Path) -> Vec<PathBuf> {
        let points = self.iter().map(|mount| &mount.point);
        points.filter(|point| point.starts_with(directory)).cloned().collect()
    }

    /// The visible one of those at a path.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.0.iter().rfind(|mount| mount.point == path)
    }

    /// The one that a path is on.
    #[must_use]
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        let mounts = self.iter().filter(|mount| path.starts_with(&mount.point));
        mounts.max_by_key(|mount| mount.point.components().count())
    }
}

/// A field as a path: `\040` and the like stand for the bytes that would end a field or a line.
fn unescape(field: &str) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        path.extend_from_slice(before.as_bytes());
        let byte = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(byte.unwrap_or(b'\\'));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    path.extend_from_slice(rest.as_bytes());
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
        2 1 8:2 / /var rw,nosuid shared:1 - ext4 /dev/b rw\n\
        3 2 8:3 / /var/my\\040lib rw master:1 - ext4 /dev/c rw\n\
        4 2 0:4 net:[1] /var/x\\134y rw shared:2 master:1 - nsfs nsfs rw\n\
        5 1 8:4 / /var ro - xfs /dev/d rw\n\
        not a line of the table\n";

    #[test]
    fn finds_the_visible_mount_of_a_path() {
        let table = MountTable::parse(MOUNTS);
        let source = |mount: Option<&Mount>| mount.map(|mount| mount.source.clone()).unwrap_or_default();
        let containing = |path: &str| source(table.containing(Path::new(path)));
        assert_eq!(containing("/var/lib/kubelet"), "/dev/d");
        assert_eq!(containing("/var/my lib/x"), "/dev/c");
        assert_eq!(containing("/variable"), "/dev/a");
        assert_eq!(source(table.at(Path::new("/var"))), "/dev/d");
        assert_eq!(table.at(Path::new("/va")), None);
    }

    #[test]
    fn reads_points_options_and_propagation() {
        let table = MountTable::parse(MOUNTS);
        let below = table.points_below(Path::new("/var"));
        assert_eq!(below, ["/var", "/var/my lib", "/var/x\\y", "/var"].map(PathBuf::from));
        let shared: Vec<bool> = table.iter().map(|mount| mount.is_shared).collect();
        assert_eq!(shared, [false, true, false, true, false]);
        assert_eq!(table.iter().nth(1).map(|mount| mount.options.join(" ")).unwrap(), "rw nosuid");
        assert_eq!(table.iter().nth(3).map(|mount| mount.file_system.as_str()), Some("nsfs"));
    }

    #[test]
    fn backslashes_without_octal_digits_stay() {
        assert_eq!(unescape("a\\040b\\"), PathBuf::from("a b\\"));
        assert_eq!(unescape("\\9\\ä\\11"), PathBuf::from("\\9\\ä\\11"));
    }

    #[test]
    fn reads_the_mounts_of_this_process() {
        assert!(MountTable::read().unwrap().containing(Path::new("/proc/self")).is_some());
    }
}
