//! The engine's modules use each other in the order that the crate's documentation lists, so without circles.

use std::{collections::BTreeSet, fs, path::Path};

/// The modules in order, from the list in `lib.rs`.
fn order(lib: &str) -> Vec<String> {
    let is_item =
        |line: &&str| line.strip_prefix("//! ").is_some_and(|l| l.starts_with(|c: char| c.is_ascii_digit()));
    let names = |line: &str| {
        let names = line.split_once(": ").map_or(line, |(names, _)| names);
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    };
    lib.lines().filter(is_item).flat_map(names).collect()
}

/// The modules of this crate that a source text names by `crate::`, its tests left out.
fn used(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: String = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let name = |text: &str| {
        let name = text.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next();
        name.filter(|name| !name.is_empty()).map(str::to_owned)
    };
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let path = &code[at + "crate::".len()..];
        let Some(list) = path.strip_prefix('{') else {
            found.extend(name(path));
            continue;
        };
        let mut depth = 0;
        let mut start = 0;
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.extend(name(&list[start..i]));
                    start = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// What is wrong with a module that uses others.
fn complaints(order: &[String], module: &str, used: &BTreeSet<String>) -> Vec<String> {
    let rank = |name: &str| order.iter().position(|m| m == name);
    let Some(own) = rank(module) else {
        return vec![format!("{module} is not in the list of modules in lib.rs")];
    };
    let upward = |other: &&String| **other != *module && rank(other).is_some_and(|r| r > own);
    used.iter().filter(upward).map(|other| format!("{module} must not use {other}")).collect()
}

fn check(order: &[String], module: &str, path: &Path, all: &mut Vec<String>) {
    if path.is_dir() {
        for file in fs::read_dir(path).unwrap() {
            check(order, module, &file.unwrap().path(), all);
        }
    } else {
        all.extend(complaints(order, module, &used(&fs::read_to_string(path).unwrap())));
    }
}

#[test]
fn modules_use_only_those_before_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let order = order(&fs::read_to_string(src.join("lib.rs")).unwrap());
    assert!(order.len() > 15, "the list in lib.rs was not found: {order:?}");
    let mut all = vec![];
    for file in fs::read_dir(&src).unwrap() {
        let path = file.unwrap().path();
        let module = path.file_stem().and_then(|s| s.to_str()).unwrap().to_owned();
        if !matches!(module.as_str(), "lib" | "tests") {
            check(&order, &module, &path, &mut all);
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn upward_uses_and_unlisted_modules_are_found() {
    let order: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
    let source = "use crate::{\n    a::{X, Y},\n    c::Z, // crate::b\n};\nfn f() { crate::b::g(); }\n\
        #[cfg(test)]\nmod tests { use crate::d; }";
    let found = used(source);
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(complaints(&order, "b", &found), ["b must not use c"]);
    assert_eq!(complaints(&order, "e", &found), ["e is not in the list of modules in lib.rs"]);
}
