//! Tests of the tar reader against archives that the tests write byte by byte.

use super::*;
use crate::tar_writer::{TarWriter, entry};
use proptest::prelude::*;

fn read(bytes: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
    let mut reader = TarReader::new(bytes);
    let mut entries = vec![];
    while let Some(entry) = reader.next_entry()? {
        let mut content = vec![];
        reader.read_to_end(&mut content)?;
        entries.push((entry, content));
    }
    Ok(entries)
}

#[test]
fn truncated_and_corrupt_archives_are_errors() {
    let mut writer = TarWriter::new(vec![]);
    writer.append_typed(b'0', "file", b"content").unwrap();
    let whole = writer.finish().unwrap();
    assert_eq!(read(&whole).unwrap().len(), 1);
    assert!(read(&whole[..BLOCK + 3]).is_err());
    assert!(read(&whole[..BLOCK - 3]).is_err());
    let mut corrupt = whole.clone();
    corrupt[0] ^= 1;
    assert!(read(&corrupt).unwrap_err().to_string().contains("checksum"));
    assert_eq!(read(&whole[..2 * BLOCK]).unwrap().len(), 1, "the end may be missing");
}

#[test]
fn sparse_files_are_refused() {
    let mut writer = TarWriter::new(vec![]);
    let pax = crate::tar_writer::record("GNU.sparse.major", b"1");
    writer.append_typed(b'x', "pax", &pax).unwrap();
    writer.append_typed(b'0', "file", b"content").unwrap();
    assert!(read(&writer.finish().unwrap()).unwrap_err().to_string().contains("sparse"));
}

#[test]
fn long_names_of_gnu_and_pax_headers_without_an_entry() {
    let name = "d/".repeat(300) + "f";
    let mut writer = TarWriter::new(vec![]);
    writer.append_typed(b'L', "././@LongLink", format!("{name}\0").as_bytes()).unwrap();
    writer.append_typed(b'0', "short", b"").unwrap();
    assert_eq!(read(&writer.finish().unwrap()).unwrap()[0].0.name, name.as_bytes());
    let mut writer = TarWriter::new(vec![]);
    writer.append_typed(b'L', "././@LongLink", b"x\0").unwrap();
    assert!(read(&writer.finish().unwrap()).is_err());
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        files in proptest::collection::vec(
            ("[a-z/]{1,300}", proptest::collection::vec(any::<u8>(), 0..2000), 0..0o10000_u32, any::<u32>(), any::<i64>()),
            0..6,
        ),
    ) {
        let mut writer = TarWriter::new(vec![]);
        let mut wanted = vec![];
        for (name, content, mode, uid, seconds) in files {
            let name = format!("f{name}f");
            let mut file = entry(&name, EntryKind::Regular);
            (file.mode, file.uid, file.gid, file.mtime) = (mode, uid, uid ^ 7, (seconds / 4, 5));
            file.size = content.len() as u64;
            file.xattrs.insert(b"user.k".to_vec(), content.iter().copied().take(9).chain([1]).collect());
            writer.append(&file, &content).unwrap();
            wanted.push((file, content));
        }
        prop_assert_eq!(read(&writer.finish().unwrap()).unwrap(), wanted);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
        let _ = read(&bytes);
    }
}
