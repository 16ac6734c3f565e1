//! A container image with nothing but the program, for all platforms in one archive: the OCI image layout.

use super::{Error, LICENSE, NAME, Release, SUMMARY, Target, archive, layout::File};
use kaji_meta::text::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The user of the image's programs, as restricted namespaces want one.
const USERS: &str = "root:x:0:0:root:/:/sbin/nologin\nkaji:x:65532:65532:kaji:/:/sbin/nologin\n";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The one layer of a platform's image.
pub struct Layer {
    /// Of the archive before it was compressed.
    diff_id: String,
    compressed: Vec<u8>,
}

/// The layer with a program.
///
/// # Errors
/// When it cannot be written.
pub fn layer(release: &Release, program: &[u8]) -> Result<Layer, Error> {
    let files = [File::new("etc/passwd", USERS), File::program("usr/bin/kaji", program)];
    let archive = archive::tar(release, "", &files)?;
    Ok(Layer { diff_id: digest(&archive), compressed: archive::gzip(&archive)? })
}

/// Writes the archive.
///
/// # Errors
/// When it cannot be written.
pub fn write(release: &Release, layers: &[(Target, Layer)]) -> Result<(), Error> {
    let mut blobs = Blobs::default();
    let mut manifests = vec![];
    for (target, layer) in layers {
        let config = json!({
            "architecture": target.debian, "os": "linux", "created": created(release),
            "config": {
                "User": "65532:65532", "Entrypoint": ["/usr/bin/kaji"], "Env": ["PATH=/usr/bin"], "WorkingDir": "/",
                "Labels": {
                    "org.opencontainers.image.title": NAME, "org.opencontainers.image.description": SUMMARY,
                    "org.opencontainers.image.licenses": LICENSE, "org.opencontainers.image.version": release.version,
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
            "history": [{"created": created(release), "created_by": "cargo xtask package"}],
        });
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": blobs.add(CONFIG, config.to_string().into_bytes()),
            "layers": [blobs.add(LAYER, layer.compressed.clone())],
        });
        let mut manifest = blobs.add(MANIFEST, manifest.to_string().into_bytes());
        manifest["platform"] = json!({"os": "linux", "architecture": target.debian});
        manifests.push(manifest);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let mut image = blobs.add(INDEX, index.to_string().into_bytes());
    image["annotations"] = json!({
        "org.opencontainers.image.ref.name": release.version,
        "io.containerd.image.name": format!("{NAME}:{}", release.version),
    });
    let top = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [image]});
    blobs.files.push(File::new("index.json", top.to_string()));
    blobs.files.push(File::new("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#));
    blobs.files.sort_by(|a, b| a.path.cmp(&b.path));
    release.write(&format!("{NAME}-{}-image.tar", release.version), &archive::tar(release, "", &blobs.files)?)
}

/// What is named by its digest.
#[derive(Default)]
struct Blobs {
    files: Vec<File>,
}

impl Blobs {
    /// Adds a blob; its descriptor.
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let (digest, size) = (digest(&bytes), bytes.len());
        let path = format!("blobs/{}", digest.replace(':', "/"));
        if self.files.iter().all(|file| file.path != path) {
            self.files.push(File::new(path, bytes));
        }
        json!({"mediaType": media_type, "digest": digest, "size": size})
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn created(release: &Release) -> String {
    jiff::Timestamp::from_second(release.time.into()).map_or_else(|_| String::new(), |time| time.to_string())
}
