//! One place for each thing: how many files name a kind, a controller, an admission plugin or a scheduler plugin.
//!
//! A file counts when its identifiers or string literals have the name, in any spelling (`StatefulSet`, `stateful_sets`,
//! `statefulsets`); comments and tests do not count, nor does anything outside `crates/*/src`. A module that is called as the thing
//! and the files in its folder are one place. `CEILINGS` holds today's numbers. A higher number is a complaint, and so is a lower one: then the ceiling is lowered with it.

use super::source::Source;

/// Names with the number of files that may have them. Only lower these.
pub const CEILINGS: &[(&str, usize)] = &[
    // Kinds.
    ("StatefulSet", 6),
    ("CronJob", 6),
    // A controller.
    ("PodGarbageCollector", 2),
    // An admission plugin.
    ("EventRateLimit", 3),
    // A scheduler plugin.
    ("ImageLocality", 2),
];

/// Counts files, one after the other.
#[derive(Default)]
pub struct Places {
    files: Vec<Vec<String>>,
}

impl Places {
    /// Counts a file, if it counts.
    pub fn visit(&mut self, path: &str, source: &Source) {
        self.files.resize(CEILINGS.len(), vec![]);
        if !counts(path) {
            return;
        }
        for ((name, _), files) in CEILINGS.iter().zip(&mut self.files) {
            if names(source, name) {
                files.push(path.to_owned());
            }
        }
    }

    /// What differs from the ceilings.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = vec![];
        for ((name, ceiling), files) in CEILINGS.iter().zip(&self.files) {
            let files = without_submodules(files, name);
            let number = files.len();
            if number > *ceiling {
                let files = files.join(", ");
                complaints.push(format!("{number} files name {name}, at most {ceiling} may: {files}"));
            } else if number < *ceiling {
                complaints.push(format!(
                    "{number} files name {name}: lower its ceiling of {ceiling} (xtask/src/tidy/places.rs)"
                ));
            }
        }
        complaints
    }
}

/// The files without those in the folder of a module that is called as the thing.
fn without_submodules<'a>(files: &'a [String], name: &str) -> Vec<&'a str> {
    let stems = files.iter().filter_map(|file| file.strip_suffix(".rs"));
    let own = |stem: &&str| stem.rsplit('/').next().is_some_and(|last| plain(last).contains(&plain(name)));
    let folders: Vec<String> = stems.filter(own).map(|stem| format!("{stem}/")).collect();
    let files = files.iter().map(String::as_str);
    files.filter(|file| !folders.iter().any(|folder| file.starts_with(folder.as_str()))).collect()
}

/// Whether a file is source of the product. The simulation is not: as tests do, it judges kinds from outside.
fn counts(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    if parts.get(1) == Some(&"sim") {
        return false;
    }
    let test = |part: &&str| matches!(part.trim_end_matches(".rs"), "tests" | "testing");
    matches!(parts.as_slice(), ["crates", _, "src", ..]) && !parts.iter().any(test)
}

/// The text of a name without its style: `StatefulSet` and `stateful_set` are the same.
fn plain(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn names(source: &Source, name: &str) -> bool {
    let name = plain(name);
    let identifiers = source.identifiers.iter().map(|(_, identifier)| identifier);
    identifiers.chain(&source.strings).any(|text| plain(text).contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_sources_but_neither_comments_nor_tests() {
        let mut places = Places::default();
        let code = Source::parse("fn stateful_sets() {}");
        for path in [
            "crates/a/src/b.rs",
            "crates/a/src/tests.rs",
            "crates/a/src/tests/b.rs",
            "crates/a/tests/it/b.rs",
        ] {
            places.visit(path, &code);
        }
        places.visit("crates/a/src/c.rs", &Source::parse("// StatefulSet\n"));
        places.visit("crates/a/src/d.rs", &Source::parse("fn f() { g(\"apps/statefulsets\") }"));
        assert_eq!(places.files[0], ["crates/a/src/b.rs", "crates/a/src/d.rs"]);
    }

    #[test]
    fn counts_a_module_and_its_folder_once() {
        let files = ["apps.rs", "apps/statefulsets.rs", "statefulset.rs", "statefulset/status.rs", "lib.rs"];
        let files = files.map(|file| format!("crates/a/src/{file}"));
        assert_eq!(without_submodules(&files, "StatefulSet"), [0, 1, 2, 4].map(|i| files[i].as_str()));
    }

    #[test]
    fn rejects_more_and_fewer_files_than_the_ceiling() {
        let names = CEILINGS[0].0;
        let file = |i| format!("crates/a/src/b{i}.rs");
        for number in [0, CEILINGS[0].1 + 1] {
            let mut places = Places::default();
            places.visit("", &Source::default());
            for (i, (_, ceiling)) in CEILINGS.iter().enumerate() {
                places.files[i] = (0..*ceiling).map(file).collect();
            }
            assert_eq!(places.complaints(), [""; 0]);
            places.files[0] = (0..number).map(file).collect();
            let complaints = places.complaints();
            assert!(complaints.len() == 1 && complaints[0].contains(names), "{complaints:?}");
        }
    }
}
