//! `kaji image`: the images of this machine, from the command line.
//!
//! The commands work on the store itself, also while a server uses it: each change is made under the store's lock, and the
//! server reads the index again when it was replaced.

mod progress;

use crate::archive::{ImportOptions, import, load};
use crate::error::{Context, ImageError};
use crate::reference::Reference;
use crate::registry::{Registries, RegistrySource, TokioDelay};
use crate::service::Images;
use crate::store::{ImageRecord, Store};
use clap::{Args, Subcommand};
use kaji_containers::{ImageService, ImageSpec, PullProgress, PullRequest, RegistryAuth};
use kaji_meta::{SystemClock, SystemRandom};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// `kaji image …`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Loads the images of an archive (docker save, OCI layout; may be compressed).
    Load(Load),
    /// Makes an image of a root file system in a tar archive (may be compressed).
    Import(Import),
    /// Lists images.
    #[command(visible_alias = "list")]
    Ls,
    /// Removes names of images, and images with their last name.
    #[command(visible_alias = "remove")]
    Rm(Names),
    /// Pulls an image from its registry.
    Pull(Pull),
}

/// `kaji image load`
#[derive(Debug, Args)]
pub struct Load {
    /// The archive; `-` for standard input.
    file: PathBuf,
    /// The name of the image, for an archive of one image that has none.
    #[arg(long)]
    name: Option<String>,
}

/// `kaji image import`
#[derive(Debug, Args)]
pub struct Import {
    /// The archive; `-` for standard input.
    file: PathBuf,
    /// The name of the image.
    name: String,
    /// The command of containers; once for each word.
    #[arg(long)]
    entrypoint: Vec<String>,
    /// An argument of the command; once for each.
    #[arg(long)]
    cmd: Vec<String>,
    /// An environment variable, NAME=VALUE.
    #[arg(long)]
    env: Vec<String>,
    /// The user that containers run as.
    #[arg(long, default_value = "")]
    user: String,
    /// The directory that containers run in.
    #[arg(long, default_value = "")]
    workdir: String,
}

/// Names or ids of images.
#[derive(Debug, Args)]
pub struct Names {
    /// References, or ids (or unique beginnings of them).
    #[arg(required = true)]
    images: Vec<String>,
}

/// `kaji image pull`
#[derive(Debug, Args)]
pub struct Pull {
    /// The image's reference.
    image: String,
    /// The user of the registry; the password is read from KAJI_REGISTRY_PASSWORD.
    #[arg(long)]
    username: Option<String>,
    /// The password of that user.
    #[arg(long, env = "KAJI_REGISTRY_PASSWORD", hide_env_values = true, hide = true)]
    password: Option<String>,
    /// Mirrors and plain-HTTP registries, in the form of k3s's registries.yaml.
    #[arg(long)]
    registries: Option<PathBuf>,
}

/// Runs a command on the images in a directory. What it has to say goes to `out`.
///
/// # Errors
/// The command failed.
pub async fn run(command: ImageCommand, root: &Path, mut out: impl Write) -> Result<(), ImageError> {
    let store = Arc::new(Store::open(root, Arc::new(SystemClock), Arc::new(SystemRandom))?);
    let text = match command {
        ImageCommand::Pull(pull) => pull_image(store, pull).await?,
        other => crate::pull::blocking(move || local(&store, other)).await?,
    };
    out.write_all(text.as_bytes()).context(|| "failed to write the output".into())
}

fn local(store: &Arc<Store>, command: ImageCommand) -> Result<String, ImageError> {
    match command {
        ImageCommand::Load(Load { file, name }) => {
            let name = name.as_deref().map(Reference::parse).transpose()?;
            Ok(load(store, open(&file)?, name.as_ref())?.iter().map(|image| said("loaded", image)).collect())
        }
        ImageCommand::Import(options) => {
            let name = Reference::parse(&options.name)?;
            let source = BufReader::new(open(&options.file)?);
            let options = ImportOptions {
                env: options.env,
                entrypoint: options.entrypoint,
                cmd: options.cmd,
                user: options.user,
                working_dir: options.workdir,
            };
            Ok(said("imported", &import(store, source, &name, &options)?))
        }
        ImageCommand::Ls => Ok(list(&store.images()?)),
        ImageCommand::Rm(Names { images }) => {
            let mut text = String::new();
            for name in images {
                let what = if store.untag(&name)? { "removed" } else { "untagged" };
                text += &format!("{what} {name}\n");
            }
            Ok(text)
        }
        ImageCommand::Pull(_) => Err(ImageError::Invalid("a pull is not local".into())),
    }
}

async fn pull_image(store: Arc<Store>, pull: Pull) -> Result<String, ImageError> {
    let source = RegistrySource::of(pull.registries.as_deref())?;
    let auth = pull.username.map(|username| RegistryAuth {
        username,
        password: pull.password.unwrap_or_default(),
        ..RegistryAuth::default()
    });
    let images = Images::new(store, Registries::new(source, Arc::new(TokioDelay)));
    let (progress, watched) = watch::channel(PullProgress::default());
    let request = PullRequest {
        image: ImageSpec::from(pull.image.as_str()),
        auth,
        progress: Some(progress),
        ..PullRequest::default()
    };
    let pulled = images.pull_image(request);
    let mut terminal = std::io::stderr();
    let pulled = if terminal.is_terminal() {
        progress::shown(pulled, watched, &mut terminal).await
    } else {
        pulled.await
    };
    // The variants matter to the kubelet; here the text does.
    let name = pulled.map_err(|error| ImageError::Unavailable(error.to_string()))?;
    Ok(format!("pulled {name}\n"))
}

/// A file, or standard input.
fn open(path: &Path) -> Result<File, ImageError> {
    if path.as_os_str() == "-" {
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        return Ok(File::from(input.context(|| "failed to open standard input".into())?));
    }
    File::open(path).on("open", path)
}

fn said(what: &str, image: &ImageRecord) -> String {
    if image.repo_tags.is_empty() {
        return format!("{what} {}\n", image.id);
    }
    image.repo_tags.iter().map(|tag| format!("{what} {tag}\n")).collect()
}

fn list(images: &[ImageRecord]) -> String {
    let mut rows = vec![("IMAGE".to_owned(), "ID".to_owned(), "SIZE".to_owned())];
    for image in images {
        let id = image.id.hex()[..12].to_owned();
        let size = format!("{:.1}MB", image.size as f64 / 1e6);
        let mut names: Vec<String> = image.repo_tags.iter().cloned().collect();
        if names.is_empty() {
            names.extend(image.repo_digests.iter().next().cloned());
        }
        if names.is_empty() {
            names.push("<none>".into());
        }
        rows.extend(names.into_iter().map(|name| (name, id.clone(), size.clone())));
    }
    let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or_default();
    rows.iter().map(|(name, id, size)| format!("{name:width$}  {id:12}  {size}\n")).collect()
}
