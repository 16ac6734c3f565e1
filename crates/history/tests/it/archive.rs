//! The files: what is written is read back, over finished files and restarts, cut off at any byte, and with damage.

use kaji_history::{Archive, Attribution, Change, Limits, Record};
use kaji_meta::random::{Random, SeededRandom};
use proptest::prelude::*;
use std::{fs, path::Path, time::Duration};

fn record(key: &str, revision: u64, size: usize) -> Record {
    let attribution = Attribution { user: format!("user-{}", revision % 3), ..Attribution::default() };
    // Does not compress, so that files have many blocks.
    let random = SeededRandom::new(revision);
    let value = (0..size).map(|_| random.u64() as u8).collect();
    Record {
        revision,
        time: revision as i64,
        change: Change::Modified,
        since: 0,
        key: key.into(),
        attribution,
        value,
    }
}

/// Files are finished after 64 KiB.
const SMALL: Limits = Limits { bytes: 256 << 10, age: Duration::from_secs(3600) };
const ROOMY: Limits = Limits { bytes: 1 << 40, age: Duration::from_secs(3600) };

fn open(dir: &Path, limits: Limits) -> Archive {
    Archive::open(dir, limits).unwrap()
}

fn revisions(archive: &Archive, key: &str) -> Vec<u64> {
    let found = archive.records(key, 0, usize::MAX, usize::MAX);
    assert!(!found.more && found.lost.is_empty(), "{:?}", found.lost);
    found.records.iter().map(|record| record.revision).collect()
}

fn files(dir: &Path, kind: &str) -> Vec<std::path::PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|e| e == kind)).collect();
    paths.sort();
    paths
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_written_is_read_back(steps in proptest::collection::vec((0..4_u8, 0..9_000_usize, any::<bool>()), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        // Nothing is removed, and files are finished often.
        let limits = Limits { bytes: 1 << 18, age: Duration::from_secs(1 << 40) };
        let mut archive = open(dir.path(), limits);
        let mut written: Vec<Record> = vec![];
        for (revision, (key, size, restart)) in (1..).zip(steps) {
            let record = record(&format!("/registry/core/configmaps/d/{key}"), revision, size);
            archive.append(std::slice::from_ref(&record), 0).unwrap();
            written.push(record);
            if restart {
                drop(archive);
                archive = open(dir.path(), limits);
            }
            prop_assert_eq!(archive.last().unwrap().0, revision);
        }
        let kept: usize = (0..4).map(|key| archive.records(&format!("/registry/core/configmaps/d/{key}"), 0, 1000, usize::MAX).records.len()).sum();
        for key in 0..4 {
            let key = format!("/registry/core/configmaps/d/{key}");
            let expected: Vec<Record> = written.iter().filter(|record| record.key == key).cloned().collect();
            let found = archive.records(&key, 0, usize::MAX, usize::MAX).records;
            // The oldest files go when there is no room; the rest is complete.
            prop_assert!(expected.ends_with(&found));
            if kept == written.len() {
                prop_assert_eq!(&found, &expected);
            }
            // Page by page it is the same.
            let (mut paged, mut after) = (vec![], 0);
            loop {
                let page = archive.records(&key, after, 3, usize::MAX);
                after = page.records.last().map_or(after, |record| record.revision);
                paged.extend(page.records);
                if !page.more {
                    break;
                }
            }
            prop_assert_eq!(paged, found);
        }
        prop_assert!(archive.bytes() <= limits.bytes + (1 << 17));
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_read_up_to_there(sizes in proptest::collection::vec(0..200_usize, 1..20), cut: proptest::sample::Index) {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = open(dir.path(), ROOMY);
        let mut ends = vec![];
        for (revision, size) in (1..).zip(sizes) {
            archive.append(&[record("/registry/core/pods/d/a", revision, size)], 0).unwrap();
            ends.push(archive.bytes());
        }
        drop(archive);
        let path = files(dir.path(), "raw").remove(0);
        let cut = cut.index(*ends.last().unwrap() as usize + 1) as u64;
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let mut archive = open(dir.path(), ROOMY);
        let whole = ends.iter().filter(|end| **end <= cut).count() as u64;
        prop_assert_eq!(revisions(&archive, "/registry/core/pods/d/a"), (1..=whole).collect::<Vec<_>>());
        // It goes on there.
        archive.append(&[record("/registry/core/pods/d/a", 100, 10)], 0).unwrap();
        drop(archive);
        let expected: Vec<u64> = (1..=whole).chain([100]).collect();
        prop_assert_eq!(revisions(&open(dir.path(), ROOMY), "/registry/core/pods/d/a"), expected);
    }
}

/// An archive with three finished files, and its directory.
fn of_three_files() -> (tempfile::TempDir, Archive, u64) {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { bytes: 4 << 20, ..ROOMY };
    let mut archive = open(dir.path(), limits);
    let mut revision = 0;
    while files(dir.path(), "seg").len() < 3 {
        revision += 1;
        let name = if revision % 2 == 0 { "even" } else { "odd" };
        archive.append(&[record(&format!("/registry/core/pods/d/{name}"), revision, 20_000)], 0).unwrap();
    }
    (dir, archive, revision)
}

#[test]
fn a_damaged_block_takes_only_itself_with_it() {
    let (dir, archive, last) = of_three_files();
    let all = archive.records("/registry/core/pods/d/odd", 0, usize::MAX, usize::MAX).records;
    drop(archive);
    let path = files(dir.path(), "seg").remove(1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, bytes).unwrap();
    let mut archive = open(dir.path(), ROOMY);
    let found = archive.records("/registry/core/pods/d/odd", 0, usize::MAX, usize::MAX);
    assert_eq!(found.lost.len(), 1, "{:?}", found.lost);
    assert!(found.lost[0].contains("0000000000000001.seg"), "{:?}", found.lost);
    assert!(found.records.len() < all.len() && found.records.len() > all.len() / 2);
    // A file without its end is left out as a whole, and the rest is there.
    fs::write(&path, b"short").unwrap();
    archive.append(&[record("/registry/core/pods/d/odd", last + 1, 5)], 0).unwrap();
    drop(archive);
    let rest =
        open(dir.path(), ROOMY).records("/registry/core/pods/d/odd", 0, usize::MAX, usize::MAX).records;
    assert!(rest.len() < found.records.len() && rest.last().unwrap().revision == last + 1);
}

#[test]
fn the_limits_of_bytes_and_age_hold() {
    let dir = tempfile::tempdir().unwrap();
    let mut archive = open(dir.path(), SMALL);
    for revision in 1..300 {
        archive.append(&[record("/registry/core/pods/d/a", revision, 5_000)], 0).unwrap();
        assert!(archive.bytes() <= SMALL.bytes + (64 << 10));
    }
    let kept = revisions(&archive, "/registry/core/pods/d/a");
    assert!(kept[0] > 1 && *kept.last().unwrap() == 299);
    assert!(kept.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    // All of it is older than the limit, but for what is not finished.
    archive.tidy(300 + 3_600_001).unwrap();
    assert!(files(dir.path(), "seg").is_empty());
}

#[test]
fn a_purge_removes_one_object_and_leaves_a_record_of_itself() {
    let (dir, mut archive, last) = of_three_files();
    let by = Attribution { user: "ann".into(), ..Attribution::default() };
    let odd = "/registry/core/pods/d/odd";
    let purged = archive.purge(&|key| key == odd, Some(odd), &by, 7).unwrap();
    assert_eq!(purged.records, last.div_ceil(2));
    let even: Vec<u64> = (1..=last).filter(|revision| revision % 2 == 0).collect();
    for archive in [&archive, &open(dir.path(), ROOMY)] {
        let left = archive.records(odd, 0, usize::MAX, usize::MAX).records;
        assert_eq!(
            (left.len(), left[0].change, left[0].attribution.user.as_str()),
            (1, Change::Purged, "ann")
        );
        assert_eq!(revisions(archive, "/registry/core/pods/d/even"), even);
    }
    assert!(files(dir.path(), "old").is_empty());
}

#[test]
fn an_archive_is_erased_as_a_whole() {
    let (dir, archive, _) = of_three_files();
    drop(archive);
    assert!(kaji_history::erase(dir.path()).unwrap());
    assert!(!dir.path().exists() && !kaji_history::erase(dir.path()).unwrap());
    fs::create_dir(dir.path()).unwrap();
}

#[test]
fn a_process_that_ended_between_two_steps_loses_nothing() {
    let (dir, archive, last) = of_three_files();
    drop(archive);
    let segments = files(dir.path(), "seg");
    // In a purge, before the new file was there; and after it was.
    fs::rename(&segments[0], segments[0].with_extension("old")).unwrap();
    fs::copy(&segments[1], segments[1].with_extension("old")).unwrap();
    fs::write(segments[2].with_extension("tmp"), b"half").unwrap();
    let archive = open(dir.path(), ROOMY);
    let odd: Vec<u64> = (1..=last).filter(|revision| revision % 2 == 1).collect();
    assert_eq!(revisions(&archive, "/registry/core/pods/d/odd"), odd);
    assert!(files(dir.path(), "old").is_empty() && files(dir.path(), "tmp").is_empty());
}

#[test]
fn of_more_than_the_limit_at_once_the_newest_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let key = "/registry/core/configmaps/d/a";
    let mut archive = open(dir.path(), SMALL);
    // Two records of a transaction stay together, whatever they are.
    let former = |revision| Record { change: Change::Former, ..record(key, revision, 9_000) };
    let all: Vec<Record> = (1..=100)
        .flat_map(|revision| {
            [
                former(revision),
                record(key, 100 + revision, 9_000),
                record("/registry/core/pods/d/b", 100 + revision, 10),
            ]
        })
        .collect();
    archive.append(&all, 200).unwrap();
    assert!(archive.bytes() <= SMALL.bytes + (1 << 17));
    let (own, other) = (revisions(&archive, key), revisions(&archive, "/registry/core/pods/d/b"));
    assert_eq!(own.last(), Some(&200));
    assert!(other.len() > 5 && own.ends_with(&[199, 100, 200]), "{own:?}");
    let own: Vec<u64> = own.into_iter().filter(|revision| *revision > 100).collect();
    assert_eq!(own, other);
}

#[test]
fn files_that_were_open_to_other_users_are_closed() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut archive = open(dir.path(), SMALL);
    for revision in 1..=20 {
        archive.append(&[record("/registry/core/pods/d/a", revision, 8 << 10)], 0).unwrap();
    }
    drop(archive);
    let all = [files(dir.path(), "seg"), files(dir.path(), "raw")].concat();
    assert!(all.len() > 1);
    for path in &all {
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
    }
    drop(open(dir.path(), SMALL));
    for path in all.iter().filter(|path| path.exists()) {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
}
