//! What changed, of all objects: pages are complete, in order, and end between two revisions.

use kaji_history::{Archive, Attribution, Change, Changes, Limits, Record, Window};
use kaji_meta::fields::Selector;
use proptest::prelude::*;
use std::{path::Path, time::Duration};

const KEYS: [&str; 5] = [
    "/registry/core/configmaps/d/a",
    "/registry/core/secrets/d/a",
    "/registry/apps/deployments/other/a",
    "/registry/core/nodes/n",
    "",
];

fn record(key: &str, revision: u64, size: usize) -> Record {
    let change = if key.is_empty() { Change::Gap } else { Change::Modified };
    let (key, attribution) = (key.to_owned(), Attribution::default());
    Record { revision, time: revision as i64, change, since: 0, key, attribution, value: vec![7; size] }
}

fn open(dir: &Path) -> Archive {
    // Files are finished after 64 KiB, and none is removed.
    let limits = Limits { bytes: 1 << 18, age: Duration::from_secs(1 << 40) };
    Archive::open(dir, limits).unwrap()
}

/// All pages of a window.
fn pages(archive: &Archive, window: &Window) -> Vec<Changes> {
    let (mut found, mut window) = (vec![], window.clone());
    loop {
        let page = archive.changes(window.clone());
        assert!(page.through >= window.after && page.lost.is_empty());
        window.after = page.through;
        let more = page.more;
        found.push(page);
        if !more {
            return found;
        }
    }
}

fn in_namespace(key: &str, namespace: Option<&str>) -> bool {
    key.is_empty() || namespace.is_none_or(|namespace| key.contains(&format!("/{namespace}/")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn pages_have_each_change_once_and_in_order(
        steps in proptest::collection::vec((0..5_usize, 0..9_000_usize, any::<bool>(), 0..8_u8), 1..60),
        limit in 1..7_usize, bytes in 1..30_000_usize, namespace in 0..3_usize, since in 0..30_i64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = open(dir.path());
        let mut written: Vec<Record> = vec![];
        let mut revision = 10;
        for (key, size, together, restart) in steps {
            // A transaction has one revision, and each key once.
            let is_there = written.iter().any(|r: &Record| r.revision == revision && r.key == KEYS[key]);
            let together = together && !is_there && !written.is_empty();
            revision += u64::from(!together);
            let record = record(KEYS[key], revision, size);
            archive.append(std::slice::from_ref(&record), 0).unwrap();
            written.push(record);
            if restart == 0 {
                drop(archive);
                archive = open(dir.path());
            }
        }
        let namespace = [None, Some("d"), Some("other")][namespace];
        let window = Window { namespace: namespace.map(str::to_owned), since, limit, bytes, ..Window::default() };
        let found = pages(&archive, &window);
        prop_assert_eq!(found.last().unwrap().through, revision);
        let mut end = 0;
        for page in &found {
            prop_assert!(page.records.iter().all(|r| r.revision > end && r.revision <= page.through));
            end = page.through;
        }
        let wanted = |r: &&Record| r.time >= since && in_namespace(&r.key, namespace);
        let expected: Vec<Record> = written.iter().filter(wanted).cloned().collect();
        let found: Vec<Record> = found.into_iter().flat_map(|page| page.records).collect();
        // The oldest files go when there is no room; the rest is complete.
        prop_assert!(expected.ends_with(&found));
        let size: usize = written.iter().map(|r| r.value.len() + 200).sum();
        if size < 1 << 18 {
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn objects_are_selected_by_their_fields() {
    let dir = tempfile::tempdir().unwrap();
    let mut archive = open(dir.path());
    let records: Vec<Record> = (1..).zip(KEYS).map(|(revision, key)| record(key, revision, 10)).collect();
    archive.append(&records, 0).unwrap();
    let selected = |selector: &str| {
        let objects = Some(Selector::parse(selector).unwrap());
        let window = Window { objects, limit: 10, bytes: 1 << 20, ..Window::default() };
        archive.changes(window).records.iter().map(|record| record.revision).collect::<Vec<_>>()
    };
    // The gap concerns all objects.
    assert_eq!(selected("object.resource=secrets"), [2, 5]);
    assert_eq!(selected("object.resource!=secrets"), [1, 3, 4, 5]);
    assert_eq!(selected("object.group=apps"), [3, 5]);
    assert_eq!(selected("object.name=a,object.group="), [1, 2, 5]);
}

#[test]
fn a_page_that_selects_nothing_ends_all_the_same() {
    const MIB: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { bytes: 1 << 30, age: Duration::from_secs(1 << 40) };
    let mut archive = Archive::open(dir.path(), limits).unwrap();
    for revision in 1..=80 {
        archive.append(&[record(KEYS[0], revision, MIB)], 0).unwrap();
    }
    let window = Window { namespace: Some("other".into()), limit: 10, bytes: MIB, ..Window::default() };
    let found = pages(&archive, &window);
    assert!(found.iter().all(|page| page.records.is_empty()));
    // A page that begins inside of a file reads over what is before it there.
    assert_eq!(found.iter().map(|page| page.through).collect::<Vec<_>>(), [31, 55, 79, 80]);
}
