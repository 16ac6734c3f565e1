//! Mount options as `mount` takes them: what is a flag of the kernel, and what goes to the file system.

use rustix::mount::MountFlags;

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Of the mount.
    pub flags: MountFlags,
    /// Comma-separated, for the file system.
    pub data: String,
}

/// Options of `mount` that are flags. What ends in `false` takes a flag away.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
];

impl MountOptions {
    /// Of a list, each item of which may hold several.
    #[must_use]
    pub fn parse(options: &[String]) -> MountOptions {
        let mut parsed = MountOptions { flags: MountFlags::empty(), data: String::new() };
        let words = options.iter().flat_map(|o| o.split(',')).map(str::trim);
        for word in words.filter(|w| !w.is_empty() && *w != "defaults") {
            match FLAGS.iter().find(|(name, ..)| *name == word) {
                Some((_, flag, set)) => parsed.flags.set(*flag, *set),
                None => {
                    if !parsed.data.is_empty() {
                        parsed.data.push(',');
                    }
                    parsed.data.push_str(word);
                }
            }
        }
        parsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_flags_or_the_file_systems() {
        let options = ["ro,noatime".to_owned(), "vers=4.1".to_owned(), "hard".to_owned(), "atime".to_owned()];
        let parsed = MountOptions::parse(&options);
        assert_eq!((parsed.flags, parsed.data.as_str()), (MountFlags::RDONLY, "vers=4.1,hard"));
    }
}
