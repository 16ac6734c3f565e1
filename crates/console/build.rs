//! Compresses the console's files, once, and writes the table of them.
//!
//! Invariant: the table and what it includes depend on the contents of `web` and `vendor` alone.

use flate2::{Compression, write::GzEncoder};
use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo names no OUT_DIR")?);
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo names no CARGO_MANIFEST_DIR")?);
    let mut table = String::from("static FILES: &[File] = &[\n");
    let mut all = ring::digest::Context::new(&ring::digest::SHA256);
    for dir in ["vendor", "web"] {
        println!("cargo::rerun-if-changed={}", root.join(dir).display());
        for path in files(&root.join(dir))? {
            let bytes = fs::read(&path)?;
            let name = path.strip_prefix(&root)?.to_string_lossy().into_owned();
            all.update(name.as_bytes());
            all.update(&bytes);
            if name.ends_with("NOTICE") {
                continue;
            }
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&bytes)?;
            let packed = out.join(format!("{}.gz", name.replace('/', "_")));
            fs::write(&packed, encoder.finish()?)?;
            let digest = hex(ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref());
            writeln!(
                table,
                "File {{ path: {name:?}, etag: \"\\\"{digest}\\\"\", gzip: include_bytes!({packed:?}) }},"
            )?;
        }
    }
    writeln!(
        table,
        "];\n/// Of all files together.\nconst DIGEST: &str = {:?};",
        hex(all.finish().as_ref())
    )?;
    fs::write(out.join("files.rs"), table)?;
    Ok(())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let mut found = vec![];
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
