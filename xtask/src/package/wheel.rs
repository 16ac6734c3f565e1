//! A wheel that carries the program, for `pip install` and `pipx run`, and the plug-in for pytest: the binary distribution format of Python
//! packages.

use super::{DESCRIPTION, Error, LICENSE, NAME, PLUGIN, Release, SUMMARY, Target, layout::File};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    io::{Cursor, Write as _},
};
use zip::{CompressionMethod, DateTime, ZipWriter, write::SimpleFileOptions};

/// The package with the plug-in for pytest.
const PYTEST: [(&str, &str); 2] = [
    ("kaji_pytest/__init__.py", include_str!("../../../packaging/python/kaji_pytest/__init__.py")),
    ("kaji_pytest/plugin.py", include_str!("../../../packaging/python/kaji_pytest/plugin.py")),
];

/// Wheels have no links: `kubectl why` is a script beside the program.
const WHY: &str = "#!/bin/sh\nexec \"$(dirname \"$0\")/kaji\" why \"$@\"\n";

/// Writes the wheel of a target.
///
/// # Errors
/// When it cannot be written.
pub fn write(release: &Release, target: &Target, program: &[u8]) -> Result<(), Error> {
    let version = release.version;
    let info = format!("{NAME}-{version}.dist-info");
    let metadata = format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\nSummary: {SUMMARY}\nLicense-Expression: {LICENSE}\n\
         Requires-Python: >=3.8\nDescription-Content-Type: text/plain\n\n{DESCRIPTION}\n"
    );
    let mut tags = String::new();
    for platform in target.wheel.split('.') {
        // Writing to a string does not fail.
        let _ = writeln!(tags, "Tag: py3-none-{platform}");
    }
    let mut files = vec![
        File::program(format!("{NAME}-{version}.data/scripts/{NAME}"), program),
        File::program(format!("{NAME}-{version}.data/scripts/{PLUGIN}"), WHY),
        File::new(format!("{info}/METADATA"), metadata),
        File::new(
            format!("{info}/WHEEL"),
            format!("Wheel-Version: 1.0\nGenerator: kaji xtask\nRoot-Is-Purelib: false\n{tags}"),
        ),
        // pytest loads it wherever it is installed.
        File::new(format!("{info}/entry_points.txt"), "[pytest11]\nkaji = kaji_pytest.plugin\n"),
    ];
    files.extend(PYTEST.map(|(path, text)| File::new(path, text)));
    let mut record = String::new();
    for File { path, bytes, .. } in &files {
        let _ = writeln!(
            record,
            "{path},sha256={},{}",
            URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)),
            bytes.len()
        );
    }
    let _ = writeln!(record, "{info}/RECORD,,");
    files.push(File::new(format!("{info}/RECORD"), record));
    let bytes = zip(&files).map_err(|e| Error::Format("wheel", e.to_string()))?;
    release.write(&format!("{NAME}-{version}-py3-none-{}.whl", target.wheel), &bytes)
}

fn zip(files: &[File]) -> zip::result::ZipResult<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(vec![]));
    for file in files {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            // The format's first moment.
            .last_modified_time(DateTime::default())
            .unix_permissions(file.mode());
        archive.start_file(&*file.path, options)?;
        archive.write_all(&file.bytes)?;
    }
    archive.finish().map(Cursor::into_inner)
}
