//! Brings an image, from its manifest and configuration, into the store: layers that are missing, then the record.

use crate::digest::Digest;
use crate::error::ImageError;
use crate::layer::Expected;
use crate::manifest::{Configuration, Platform};
use crate::store::{ImageRecord, Store};
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

/// How often layers are unpacked anew that another process removed as garbage before the image named them.
pub(crate) const ATTEMPTS: usize = 3;

/// The documents and names of an image.
#[derive(Clone)]
pub(crate) struct NewImage {
    pub manifest: Vec<u8>,
    pub config: Vec<u8>,
    pub repo_tags: BTreeSet<String>,
    pub repo_digests: BTreeSet<String>,
}

/// Chain ids of a stack of layers, the lowest first.
pub(crate) fn chains(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chains: Vec<Digest> = vec![];
    for diff_id in diff_ids {
        chains.push(Digest::chain(chains.last(), diff_id));
    }
    chains
}

/// Whether an image is for this machine.
///
/// # Errors
/// [`ImageError::Invalid`] if it is not. Images that name no platform may be for any.
pub(crate) fn check_platform(configuration: &Configuration) -> Result<(), ImageError> {
    let (image, machine) = (&configuration.platform, Platform::machine());
    if image.architecture.is_empty() || machine.rank(image).is_some() {
        return Ok(());
    }
    Err(ImageError::Invalid(format!(
        "image is for {}/{}{}, not for this machine",
        image.os, image.architecture, image.variant
    )))
}

/// Adds the record of an image after its layers.
pub(crate) fn record(
    store: &Store,
    image: &NewImage,
    configuration: &Configuration,
) -> Result<ImageRecord, ImageError> {
    let layers = chains(&configuration.diff_ids);
    let record = ImageRecord {
        id: Digest::of(&image.config),
        manifest: Digest::of(&image.manifest),
        repo_tags: image.repo_tags.clone(),
        repo_digests: image.repo_digests.clone(),
        size: layers.iter().map(|chain| store.layer_size(chain)).sum(),
        layers,
        config: configuration.config.clone(),
        pinned: false,
        added_nanos: i64::try_from(store.clock.now().as_nanosecond()).unwrap_or(i64::MAX),
    };
    store.add(record.clone(), [&image.manifest, &image.config])?;
    Ok(record)
}

/// Unpacks the layers that are missing, one after the other, and adds the image.
pub(crate) fn install<'a>(
    store: &Arc<Store>,
    image: &NewImage,
    open: impl Fn(usize) -> Result<(Box<dyn Read + 'a>, Option<Digest>), ImageError>,
) -> Result<ImageRecord, ImageError> {
    let configuration = Configuration::parse(&image.config)?;
    check_platform(&configuration)?;
    let chains = chains(&configuration.diff_ids);
    let _making: Vec<_> = chains.iter().map(|chain| store.making(chain)).collect();
    let mut attempt = 1;
    loop {
        for (at, chain) in chains.iter().enumerate() {
            if !store.has_layer(chain) {
                let (source, blob) = open(at)?;
                let expected = Expected { blob, diff_id: Some(configuration.diff_ids[at].clone()) };
                store.seal(store.unpack(source, &expected)?, &chains[..at])?;
            }
        }
        match record(store, image, &configuration) {
            Err(ImageError::NotFound(_)) if attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}
