//! Whether the kernel enforces AppArmor profiles, and what loads them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where distributions have it.
const PARSERS: [&str; 3] = ["/sbin/apparmor_parser", "/usr/sbin/apparmor_parser", "/usr/bin/apparmor_parser"];

/// Whether AppArmor is enabled and its files are there, below `sys`: `/sys`, but in tests. As `opencontainers/apparmor` tells it.
#[must_use]
pub fn has_apparmor(sys: &Path) -> bool {
    let enabled = fs::read_to_string(sys.join("module/apparmor/parameters/enabled"));
    enabled.is_ok_and(|text| text.starts_with('Y')) && sys.join("kernel/security/apparmor").exists()
}

/// The program that loads profiles, if it is installed.
#[must_use]
pub fn apparmor_parser() -> Option<PathBuf> {
    PARSERS.map(PathBuf::from).into_iter().find(|path| path.exists())
}
