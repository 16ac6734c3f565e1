//! The tree is accepted, and each rule is broken on purpose: in a small tree that is accepted before.

use super::*;
use expect_test::{Expect, expect};
use serde_json::json;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn accepts_the_tree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    assert_eq!(check(root).unwrap(), Vec::<String>::new());
}

#[test]
fn rejects_long_files_and_mod_files_that_are_no_exceptions() {
    let mut findings = Findings::default();
    findings.places.visit("", &Source::default());
    let before = findings.mod_files.len() + findings.too_long.len();
    findings.rust("crates/new/src/a/mod.rs", &"//!\n".repeat(MOST_LINES));
    findings.rust("crates/new/src/long.rs", &"//!\n".repeat(MOST_LINES + 1));
    assert_eq!(before, 0);
    assert_eq!(
        (findings.mod_files, findings.too_long),
        (vec!["crates/new".into()], vec!["crates/new/src/long.rs".into()])
    );
    let found = ["a".to_owned()];
    assert_eq!(exceptions(&found, &["a"], "x"), [""; 0]);
    assert_eq!(exceptions(&found, &[], "x").len(), 1);
    assert_eq!(exceptions(&[], &["a"], "x").len(), 1);
}

#[test]
fn rejects_limits_that_differ() {
    let clippy = "too-many-lines-threshold = 70\n";
    assert_eq!(limits(clippy, "Files have at most 600 lines,\n  functions at most 70."), [""; 0]);
    assert_eq!(limits(clippy, "Files have at most 600 lines, functions at most 80.").len(), 1);
    assert_eq!(limits("", "Files have at most 600 lines, functions at most 70.").len(), 1);
}

/// A directory of this test, removed at its end.
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Tree {
    /// The smallest tree without complaints.
    fn good() -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kaji-tidy-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let tree = Tree(std::env::temp_dir().join(name));
        for dir in ["examples", "fuzz", "xtask", "docs"] {
            fs::create_dir_all(tree.0.join(dir)).unwrap();
        }
        tree.write("clippy.toml", "too-many-lines-threshold = 70\n");
        tree.write("CONTRIBUTING.md", "Files have at most 600 lines, functions at most 70.\n");
        tree.write("ARCHITECTURE.md", &arrows::tests::good_page());
        for (name, ceiling) in places::CEILINGS {
            for i in 0..*ceiling {
                tree.write(&format!("crates/a/src/{name}{i}.rs"), &format!("//! A.\nstruct {name};\n"));
            }
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn complaints(&self) -> Vec<String> {
        files_of(&self.0).unwrap().complaints(&[], &[])
    }
}

/// The complaints about a tree in which one file has another text.
fn broken(path: &str, text: &str, want: Expect) {
    let tree = Tree::good();
    assert_eq!(tree.complaints(), [""; 0]);
    tree.write(path, text);
    want.assert_eq(&tree.complaints().join("\n"));
}

#[test]
fn complains_about_each_rule_that_a_file_breaks() {
    let rust = |text: &str| format!("//! A.\n{text}\n");
    let a = "crates/a/src/new.rs";
    broken(a, "fn f() {}\n", expect!["crates/a/src/new.rs does not open with //!"]);
    broken("xtask/src/new.rs", "", expect!["xtask/src/new.rs does not open with //!"]);
    // Spelt so that this file has none of them.
    for leftover in [["todo", "!("], ["dbg", "!("], ["unimplemented", "!("]].map(|parts| parts.concat()) {
        let tree = Tree::good();
        tree.write(a, &rust(&format!("fn f() {{ {leftover}) }}")));
        assert_eq!(tree.complaints(), [format!("{a} holds {leftover}")]);
    }
    broken(a, &rust("fn f() { let _ = unsafe { g() }; }"), expect!["crates/a/src/new.rs holds unsafe code"]);
    broken(a, &rust("// it is not unsafe\nfn f() { g(\"unsafe\") }"), expect![""]);
    broken(a, &rust(&"\n".repeat(MOST_LINES)), expect!["crates/a/src/new.rs has more than 600 lines"]);
    let select = rust("fn f() { tokio::select! { () = a => {} } }");
    let at = "crates/runtime/src/new.rs";
    broken(at, &select, expect!["crates/runtime/src/new.rs has a select! without biased;"]);
    broken("crates/a/src/b/mod.rs", &rust(""), expect!["crates/a has a mod.rs"]);
}

#[test]
fn complains_about_logic_in_the_crate_of_the_program() {
    let long = format!("//! A.\n{}", "//\n".repeat(MOST_LINES - 1));
    let tree = Tree::good();
    for i in 0..wiring::LIBRARY_LINES.div_ceil(MOST_LINES) {
        tree.write(&format!("crates/kaji/src/a{i}.rs"), &long);
    }
    let found = tree.complaints();
    assert!(found.len() == 1 && found[0].starts_with("the library in crates/kaji/src/ has "), "{found:?}");
    broken(
        "crates/kaji/src/new.rs",
        "//! A.\nimpl Store for A {}\n",
        expect!["crates/kaji/src/new.rs implements a trait: that belongs to another crate"],
    );
    let package = json!({"name": "kaji", "dependencies": [{"name": "prost", "kind": null}, {"name": "prost", "kind": "dev"}]});
    let complaints = arrows::complaints(&json!({"packages": [package]}));
    expect!["kaji must not depend on prost"].assert_eq(&complaints.join("\n"));
}

#[test]
fn complains_about_each_rule_of_words_that_is_broken() {
    // The words are put together, so that this file has none of them.
    let word = ["who", "ever"].concat();
    let a = "crates/a/src/new.rs";
    broken(
        a,
        &format!("//! For {word} asks.\n"),
        expect![[
            r#"crates/a/src/new.rs:1 has the banned word "whoever"; CONTRIBUTING.md says what to write"#
        ]],
    );
    broken(
        "docs/new.md",
        &format!("# A\n\nFor {word} asks.\n"),
        expect![[r#"docs/new.md:3 has the banned word "whoever"; CONTRIBUTING.md says what to write"#]],
    );
    broken(
        "tests/new/walk.sh",
        &format!("#!/bin/bash\ntrue\n# For {word} asks.\n"),
        expect![[r#"tests/new/walk.sh:3 has the banned word "whoever"; CONTRIBUTING.md says what to write"#]],
    );
    for (path, text) in [
        ("tests/new/README.md", format!("# A\n\nFor {word} asks.\n")),
        ("docs/how-to/new.md", format!("# A\n\nFor {word} asks.\n")),
        ("examples/new.yaml", format!("a: b\n\n# For {word} asks.\n")),
        ("tests/new/walk.mjs", format!("f();\n\n// For {word} asks.\n")),
        ("tests/new/pause.c", format!("f();\n\n// For {word} asks.\n")),
        (a, format!("//! A.\n\n#[error(\"for {word}\")]\nstruct E;\n")),
    ] {
        let tree = Tree::good();
        tree.write(path, &text);
        let complaint = format!("{path}:3 has the banned word {word:?}; CONTRIBUTING.md says what to write");
        assert_eq!(tree.complaints(), [complaint]);
    }
}

#[test]
fn complains_about_each_rule_of_pages_that_is_broken() {
    broken(
        "docs/new.md",
        "# A\n\n```\ncrates/no\n```\nin `crates/a/src/` and `crates/a/src/gone.rs`\n",
        expect!["docs/new.md names crates/a/src/gone.rs, which does not exist"],
    );
    for path in [".ci/gone", "fuzz/gone", "packaging/gone", "tests/gone.sh"] {
        let tree = Tree::good();
        tree.write("docs/new.md", &format!("# A\n\nin `{path}`\n"));
        assert_eq!(tree.complaints(), [format!("docs/new.md names {path}, which does not exist")]);
    }
    broken(
        "docs/new.md",
        "# A\n\n[a](new.md#a), [b](#b), [c](https://c.example/d), ![d](../CONTRIBUTING.md), [e](how-to/gone.md#e)\n",
        expect!["docs/new.md links to how-to/gone.md, which does not exist"],
    );
    broken(
        "docs/security.md",
        "| promise | default | held by |\n|---|---|---|\n| `no` | `neither` | a: `complaints`, `rejects_it` (`a.rs`) |\n",
        expect![
            "docs/security.md names the function complaints, which does not exist\ndocs/security.md names the function rejects_it, which does not exist"
        ],
    );
    broken(
        "clippy.toml",
        "too-many-lines-threshold = 80\n",
        expect![[r#"CONTRIBUTING.md does not say "Files have at most 600 lines, functions at most 80""#]],
    );
    broken(
        "ARCHITECTURE.md",
        &format!("{}\n| a thing | `CronJob::serves_v1` in `a.rs` |\n", arrows::tests::good_page()),
        expect!["ARCHITECTURE.md names the function serves_v1, which does not exist"],
    );
    let tree = Tree::good();
    tree.write("crates/a/src/new.rs", "//! A.\nfn serves_it() {}\n");
    tree.write("ARCHITECTURE.md", &format!("{}\n`Gone::serves_it`\n", arrows::tests::good_page()));
    assert_eq!(tree.complaints(), ["ARCHITECTURE.md names the type Gone, which does not exist"]);
    broken(
        "clippy.toml",
        "",
        expect![[r#"CONTRIBUTING.md does not say "Files have at most 600 lines, functions at most ?""#]],
    );
    broken(
        "ARCHITECTURE.md",
        &arrows::tests::good_page().replace("\nengine ", "\nmotor "),
        expect![
            "ARCHITECTURE.md lists motor where the order of crates (xtask/src/tidy/arrows.rs) has engine"
        ],
    );
}

#[test]
fn complains_about_a_kind_a_controller_and_plugins_in_one_more_file() {
    for (name, ceiling) in places::CEILINGS {
        let tree = Tree::good();
        tree.write("crates/b/src/more.rs", &format!("//! B.\nfn f() {{ g(\"{name}\") }}\n"));
        let found = tree.complaints();
        let want = format!("{} files name {name}, at most {ceiling} may: ", ceiling + 1);
        assert!(found.len() == 1 && found[0].starts_with(&want), "{found:?}");
    }
}

#[test]
fn complains_about_a_crate_that_depends_on_one_above_it() {
    let package = |name: &str, on: &str| json!({"name": name, "dependencies": [{"name": on, "kind": null}]});
    let bad = json!({"packages": [package("kaji-meta", "kaji-engine"), package("kaji-engine", "kaji-meta")]});
    expect!["kaji-meta must not depend on kaji-engine"].assert_eq(&arrows::complaints(&bad).join("\n"));
}
