//! The crate `kaji` is `main`, the commands and wiring: what decides, parses a format or implements a part has a crate of its own.
//!
//! Rules for `crates/kaji/src`: the library, which is all but `main.rs` and the files of commands (`*_command.rs`,
//! `*_commands.rs`, and what is in a folder `*_commands/`), has at most `LIBRARY_LINES` lines in all; no file implements a trait, except those in `IMPLEMENTATIONS`. That
//! the crate needs no library for a format or a protocol is a rule about arrows.

const ROOT: &str = "crates/kaji/src/";

/// Lines of the library. Only lower this.
pub const LIBRARY_LINES: usize = 1_350;

/// Files that implement a trait: a directory that is removed at the end, and the simulation's cluster. Only remove lines here.
const IMPLEMENTATIONS: &[&str] = &["fork_command.rs", "simulation.rs"];

/// What the files of the crate have.
#[derive(Default)]
pub struct Wiring {
    lines: usize,
    implementations: Vec<String>,
}

impl Wiring {
    /// Counts a file, if it is one of the crate.
    pub fn visit(&mut self, path: &str, text: &str) {
        let Some(file) = path.strip_prefix(ROOT) else { return };
        if !is_command(file) {
            self.lines += text.lines().count();
        }
        let implements = |line: &str| line.trim_start().starts_with("impl") && line.contains(" for ");
        if text.lines().any(implements) {
            self.implementations.push(file.to_owned());
        }
    }

    /// What breaks the rules.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = vec![];
        if self.lines > LIBRARY_LINES {
            complaints.push(format!(
                "the library in {ROOT} has {} lines, more than {LIBRARY_LINES}: it is wiring; logic has a crate of its own",
                self.lines
            ));
        }
        let unlisted = self.implementations.iter().filter(|file| !IMPLEMENTATIONS.contains(&file.as_str()));
        complaints.extend(
            unlisted.map(|file| format!("{ROOT}{file} implements a trait: that belongs to another crate")),
        );
        complaints
    }

    /// Files that are listed as implementing a trait, and do not.
    pub fn needless(&self) -> Vec<String> {
        let listed = IMPLEMENTATIONS.iter().filter(|file| !self.implementations.iter().any(|f| f == *file));
        listed
            .map(|file| format!("{ROOT}{file} implements no trait: remove it from xtask/src/tidy/wiring.rs"))
            .collect()
    }
}

fn is_command(file: &str) -> bool {
    let in_folder = file.split_once('/').is_some_and(|(folder, _)| folder.ends_with("_commands"));
    in_folder || file == "main.rs" || file.ends_with("_command.rs") || file.ends_with("_commands.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_library_but_neither_commands_nor_other_crates() {
        let mut wiring = Wiring::default();
        for (path, lines) in [
            ("crates/kaji/src/start.rs", LIBRARY_LINES),
            ("crates/kaji/src/main.rs", 1),
            ("crates/kaji/src/why_command.rs", 1),
            ("crates/kaji/src/node_commands.rs", 1),
            ("crates/kaji/src/node_commands/a.rs", 1),
            ("crates/kaji/tests/it/a.rs", 1),
            ("crates/storage/src/lib.rs", 1),
        ] {
            wiring.visit(path, &"//\n".repeat(lines));
        }
        assert_eq!(wiring.complaints(), [""; 0]);
        wiring.visit("crates/kaji/src/start/a.rs", "//\n");
        assert_eq!(wiring.complaints().len(), 1);
    }

    #[test]
    fn rejects_implementations_of_traits_and_needless_exceptions() {
        let mut wiring = Wiring::default();
        wiring.visit("crates/kaji/src/a.rs", "impl A {}\n// impl of it for b\n");
        assert_eq!((wiring.complaints().len(), wiring.needless().len()), (0, IMPLEMENTATIONS.len()));
        for file in IMPLEMENTATIONS {
            wiring.visit(&format!("{ROOT}{file}"), "    impl<T> A for B<T> {\n");
        }
        assert_eq!((wiring.complaints().len(), wiring.needless().len()), (0, 0));
        wiring.visit("crates/kaji/src/a.rs", "impl fmt::Display for A {}\n");
        assert_eq!(
            wiring.complaints(),
            ["crates/kaji/src/a.rs implements a trait: that belongs to another crate"]
        );
    }
}
