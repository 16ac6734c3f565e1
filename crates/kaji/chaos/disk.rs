//! A disk that fails on demand, and that loses power: what was written since the last fsync is lost sector by sector, or not.
//!
//! Invariants: what was synced is never lost; nothing is acknowledged once the power is off, since every operation waits from then on
//! for the end of the process. How much is lost follows from a seed.

use kaji_meta::{Random, SeededRandom};
use kaji_store::disk::Fault;
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// What a disk writes as a whole, or not at all.
const SECTOR: u64 = 512;
/// The system's numbers of errors.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// What the disk does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// What it is asked for.
    #[default]
    Good,
    /// Writes fail.
    WriteError,
    /// Half of a write is done, and the write fails.
    ShortWrite,
    /// It is full.
    Full,
    /// An fsync fails.
    SyncError,
    /// An fsync takes so long.
    Slow(Duration),
}

/// A file as it was when it was last synced, where it differs from that.
#[derive(Debug)]
struct Unsynced {
    file: File,
    len: u64,
    /// By number; shorter than a sector at the end of the file.
    sectors: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    /// By device and inode: names change.
    files: HashMap<(u64, u64), Unsynced>,
    off: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct FaultyDisk(Mutex<State>);

impl FaultyDisk {
    /// From now on the disk is like this.
    pub fn set(&self, mode: Mode) {
        self.lock().mode = mode;
    }

    /// Takes the power away. What is not synced is lost in part; nothing that waits for the disk goes on afterwards.
    ///
    /// # Errors
    /// Those of the file system, which leave files as they are.
    pub fn lose_power(&self, seed: u64) -> io::Result<()> {
        let (mut state, random) = (self.lock(), SeededRandom::new(seed));
        state.off = true;
        state.files.drain().try_for_each(|(_, unsynced)| unsynced.lose(&random))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, while there is power.
    fn powered(&self) -> MutexGuard<'_, State> {
        loop {
            let state = self.lock();
            if !state.off {
                return state;
            }
            drop(state);
            thread::park();
        }
    }
}

impl State {
    /// Notes what a part of a file is before it changes.
    fn note(&mut self, file: &File, from: u64, to: u64) -> io::Result<()> {
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.files.entry(id) {
            vacant.insert(Unsynced {
                file: file.try_clone()?,
                len: metadata.len(),
                sectors: BTreeMap::new(),
            });
        }
        let Some(unsynced) = self.files.get_mut(&id) else { return Ok(()) };
        for sector in from / SECTOR..to.div_ceil(SECTOR) {
            if !unsynced.sectors.contains_key(&sector) {
                let at = sector * SECTOR;
                // What lies behind the end that was synced was not there.
                let len = unsynced.len.min(metadata.len()).saturating_sub(at).min(SECTOR);
                let mut former = vec![0; usize::try_from(len).unwrap_or(0)];
                file.read_exact_at(&mut former, at)?;
                unsynced.sectors.insert(sector, former);
            }
        }
        Ok(())
    }
}

impl Unsynced {
    fn lose(self, random: &SeededRandom) -> io::Result<()> {
        let now = self.file.metadata()?.len();
        let coin = || random.u64() & 1 == 0;
        // A new length is there as a whole or not at all.
        let len = if now != self.len && coin() { self.len } else { now };
        self.file.set_len(len)?;
        for (sector, mut former) in self.sectors {
            let at = sector * SECTOR;
            let restored = now < len && at + SECTOR > now;
            if at >= len || !(restored || coin()) {
                continue;
            }
            let end = SECTOR.min(len - at);
            former.resize(usize::try_from(end).unwrap_or(0), 0);
            self.file.write_all_at(&former, at)?;
        }
        self.file.sync_all()
    }
}

impl Fault for FaultyDisk {
    fn on_write(&self, _: u64, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn on_sync(&self) -> io::Result<()> {
        let mode = self.powered().mode;
        match mode {
            Mode::SyncError => Err(io::Error::from_raw_os_error(EIO)),
            Mode::Slow(time) => {
                thread::sleep(time);
                drop(self.powered());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn free(&self) -> Option<u64> {
        (self.lock().mode == Mode::Full).then_some(0)
    }

    fn before_write(&self, file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.powered();
        match state.mode {
            Mode::WriteError => return Err(io::Error::from_raw_os_error(EIO)),
            Mode::Full => return Err(io::Error::from_raw_os_error(ENOSPC)),
            _ => {}
        }
        state.note(file, offset, offset + data.len() as u64)?;
        if state.mode == Mode::ShortWrite {
            file.write_all_at(&data[..data.len() / 2], offset)?;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(())
    }

    fn before_resize(&self, file: &File, len: u64) -> io::Result<()> {
        let mut state = self.powered();
        if state.mode == Mode::Full && len > file.metadata()?.len() {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        let now = file.metadata()?.len();
        state.note(file, len.min(now), now)
    }

    fn synced(&self, file: &File) {
        let mut state = self.powered();
        if let Ok(metadata) = file.metadata() {
            state.files.remove(&(metadata.dev(), metadata.ino()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, sync::Arc};

    /// A file with 4 sectors of `a` that are synced, and 4 of `b` over the last two and behind them.
    fn written(disk: &FaultyDisk) -> (tempfile::TempDir, File) {
        let temp = tempfile::tempdir().unwrap();
        let file =
            File::options().read(true).write(true).create_new(true).open(temp.path().join("f")).unwrap();
        disk.before_write(&file, 0, &[b'a'; 2048]).unwrap();
        file.write_all_at(&[b'a'; 2048], 0).unwrap();
        disk.synced(&file);
        disk.before_write(&file, 1024, &[b'b'; 2048]).unwrap();
        file.write_all_at(&[b'b'; 2048], 1024).unwrap();
        (temp, file)
    }

    #[test]
    fn what_is_not_synced_is_lost_by_sectors() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let disk = FaultyDisk::default();
            let (temp, _file) = written(&disk);
            disk.lose_power(seed).unwrap();
            let bytes = fs::read(temp.path().join("f")).unwrap();
            assert!(bytes[..1024].iter().all(|byte| *byte == b'a'));
            let sectors: String = bytes
                .chunks(512)
                .map(|sector| {
                    assert!(sector.iter().all(|byte| *byte == sector[0]));
                    if sector[0] == 0 { '0' } else { char::from(sector[0]) }
                })
                .collect();
            assert!(sectors.len() == 4 || sectors.len() == 6, "{sectors}");
            seen.insert(sectors);
        }
        assert!(seen.contains("aaaa") && seen.contains("aabbbb") && seen.contains("aaab0b"), "{seen:?}");
    }

    #[test]
    fn what_is_synced_stays() {
        let disk = FaultyDisk::default();
        let (temp, file) = written(&disk);
        disk.synced(&file);
        disk.lose_power(1).unwrap();
        assert_eq!(fs::read(temp.path().join("f")).unwrap(), [vec![b'a'; 1024], vec![b'b'; 2048]].concat());
    }

    #[test]
    fn a_shorter_file_is_there_as_a_whole_or_not_at_all() {
        let mut lens = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let disk = FaultyDisk::default();
            let (temp, file) = written(&disk);
            disk.synced(&file);
            disk.before_resize(&file, 100).unwrap();
            file.set_len(100).unwrap();
            disk.lose_power(seed).unwrap();
            let bytes = fs::read(temp.path().join("f")).unwrap();
            assert!(bytes.len() == 100 || bytes == [vec![b'a'; 1024], vec![b'b'; 2048]].concat());
            lens.insert(bytes.len());
        }
        assert_eq!(lens.into_iter().collect::<Vec<_>>(), [100, 3072]);
    }

    #[test]
    fn faults_are_what_the_disk_says() {
        let disk = FaultyDisk::default();
        let (temp, file) = written(&disk);
        let code = |outcome: io::Result<()>| outcome.err().and_then(|error| error.raw_os_error());
        for (mode, write, sync) in [
            (Mode::WriteError, Some(EIO), None),
            (Mode::Full, Some(ENOSPC), None),
            (Mode::SyncError, None, Some(EIO)),
            (Mode::Slow(Duration::ZERO), None, None),
            (Mode::Good, None, None),
        ] {
            disk.set(mode);
            assert_eq!((code(disk.before_write(&file, 0, b"x")), code(disk.on_sync())), (write, sync));
            assert_eq!(disk.free(), (mode == Mode::Full).then_some(0));
        }
        disk.set(Mode::ShortWrite);
        assert_eq!(code(disk.before_write(&file, 0, b"xyxy")), Some(EIO));
        assert_eq!(&fs::read(temp.path().join("f")).unwrap()[..4], b"xyaa");
    }

    #[test]
    fn nothing_goes_on_without_power() {
        let disk = Arc::new(FaultyDisk::default());
        disk.lose_power(1).unwrap();
        let (other, (sender, receiver)) = (disk.clone(), std::sync::mpsc::channel());
        // It ends with the tests' process.
        thread::spawn(move || sender.send(other.on_sync().is_ok()));
        assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err());
    }
}
