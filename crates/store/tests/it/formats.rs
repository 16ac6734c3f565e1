//! Data directories of each format, made by a build of its time, open with what was written to them; those of later formats are refused.
use crate::format_content;
use flate2::read::GzDecoder;
use kaji_store::disk::{DiskOptions, DiskStore, check};
use kaji_store::memory::MemoryStore;
use kaji_store::{KeyValue, Range, Store, StoreError, Txn};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Unpacks a directory, in which large files are compressed.
fn unpack(name: &str, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap() {
        let entry = entry.unwrap();
        let (file, name) = (entry.path(), entry.file_name().into_string().unwrap());
        match name.strip_suffix(".gz") {
            Some(plain) => {
                let mut bytes = vec![];
                GzDecoder::new(fs::File::open(file).unwrap()).read_to_end(&mut bytes).unwrap();
                fs::write(to.join(plain), bytes).unwrap();
            }
            None => drop(fs::copy(file, to.join(name)).unwrap()),
        }
    }
}

async fn all(store: &dyn Store) -> Vec<KeyValue> {
    store.range(Range::prefix("/")).await.unwrap().kvs
}

#[tokio::test]
async fn directories_of_all_formats_open_with_what_is_in_them() {
    let expected = MemoryStore::new().unwrap();
    format_content::write(&expected).await;
    for name in ["format-1", "format-2", "format-2-killed"] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        unpack(name, &dir);
        let checkup = check(&dir).unwrap();
        assert_eq!(checkup.damage, [], "{name}");
        let store = DiskStore::open(&dir, DiskOptions::default()).unwrap();
        assert_eq!(all(&store).await, all(&expected).await, "{name}");
        assert_eq!(store.revision().await, expected.revision().await, "{name}");
        assert_eq!(store.compacted(), expected.compacted(), "{name}");
        // It goes on, and has the current format.
        store.txn(Txn::put("/more", "1")).await.unwrap();
        drop(store);
        assert_eq!(fs::read_to_string(dir.join("FORMAT")).unwrap(), "kaji-store 2\n");
        assert_eq!(check(&dir).unwrap().damage, []);
    }
}

#[tokio::test]
async fn a_later_format_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    unpack("format-2", &dir);
    fs::write(dir.join("FORMAT"), "kaji-store 3\n").unwrap();
    let before = fs::read(dir.join("store.redb")).unwrap();
    for error in [DiskStore::open(&dir, DiskOptions::default()).err(), check(&dir).err()] {
        let Some(StoreError::Unavailable(message)) = error else { panic!("{error:?}") };
        assert!(message.contains("format 3") && message.contains("formats 1 to 2"), "{message}");
    }
    assert_eq!(fs::read(dir.join("store.redb")).unwrap(), before);
    assert_eq!(fs::read_to_string(dir.join("FORMAT")).unwrap(), "kaji-store 3\n");
}
