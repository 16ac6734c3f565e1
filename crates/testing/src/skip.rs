//! Tests that a machine cannot run.
//!
//! Invariant: a skip is reported in a form that scripts count, `SKIPPED NAME: REASON`, on standard output and, since the
//! output of tests that pass is not shown, in the file that `KAJI_TEST_SKIPS` names.

use std::{fs::File, io::Write};

/// Reports that a test did not run, or not all of it, and why. The name has neither blanks nor colons.
pub fn skipped(name: &str, reason: &str) {
    assert!(!name.contains([' ', ':']), "{name:?} is no name");
    let line = format!("SKIPPED {name}: {reason}\n");
    print!("{line}");
    if let Some(path) = std::env::var_os("KAJI_TEST_SKIPS") {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}
