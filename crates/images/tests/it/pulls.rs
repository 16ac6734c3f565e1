//! Pulls from a registry that has faults.

use crate::registry_server::Server;
use crate::samples::{config, gzip, layer, names, store};
use expect_test::expect;
use futures_util::future::{BoxFuture, join};
use kaji_containers::{
    ImageRootfs, ImageService, ImageSpec, PullProgress, PullRequest, RegistryAuth, RuntimeError,
};
use kaji_images::Images;
use kaji_images::digest::Digest;
use kaji_images::registry::{Delay, Registries, RegistrySource};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Does not wait.
struct NoDelay;

impl Delay for NoDelay {
    fn wait(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

struct Node {
    directory: tempfile::TempDir,
    images: Images,
    server: Server,
    layers: Vec<Vec<u8>>,
    digest: Digest,
}

impl Node {
    /// A registry with an image of two layers, and a node.
    async fn start() -> Node {
        let server = Server::start().await;
        let archives = [layer("base", &vec![7; 20_000]), layer("top", b"top")];
        // Without compression, so that there is something to be cut off.
        let layers = vec![archives[0].clone(), gzip(&archives[1])];
        let digest = server.add("team/app", "v1", &config(&archives), &layers);
        let directory = tempfile::tempdir().unwrap();
        let registries = Registries::new(RegistrySource::default(), Arc::new(NoDelay));
        let images = Images::new(store(&directory.path().join("images")), registries);
        Node { directory, images, server, layers, digest }
    }

    fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.server.address)
    }

    async fn pull(&self, name: &str, auth: Option<RegistryAuth>) -> Result<String, RuntimeError> {
        let image = ImageSpec::from(self.name(name).as_str());
        self.images.pull_image(PullRequest { image, auth, ..PullRequest::default() }).await
    }

    fn blob(&self, layer: usize) -> String {
        format!("team/app/blobs/{}", Digest::of(&self.layers[layer]))
    }

    /// An error without the address.
    fn shown(&self, error: &RuntimeError) -> String {
        error.to_string().replace(&self.server.address.to_string(), "HOST")
    }
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_by_digest() {
    let node = Node::start().await;
    let (progress, watched) = watch::channel(PullProgress::default());
    let image = ImageSpec::from(node.name("team/app:v1").as_str());
    let request = PullRequest { image: image.clone(), progress: Some(progress), ..PullRequest::default() };
    let id = node.images.pull_image(request).await.unwrap();
    assert_eq!(id, node.name(&format!("team/app@{}", node.digest)));
    let total: u64 = node.layers.iter().map(|layer| layer.len() as u64).sum();
    assert_eq!(*watched.borrow(), PullProgress { received: total, total, unpacked_layers: 2, layers: 2 });
    let found = node.images.lease(&image, "c1").await.unwrap();
    assert_eq!(std::fs::read(found.layers[1].join("base")).unwrap(), vec![7; 20_000]);
    let status = node.images.image_status(&image).await.unwrap().unwrap();
    assert_eq!((status.uid, status.username.as_str(), status.repo_digests), (Some(12), "", vec![id.clone()]));
    assert_eq!(node.pull(&format!("team/app@{}", node.digest), None).await.unwrap(), id);
    assert_eq!(node.server.count("/blobs/"), 4, "two layers once, the configuration twice");
    assert!(node.images.filesystems().await.unwrap().images[0].used_bytes >= 20_000);
    node.images.remove_image(&image).await.unwrap();
    node.images.remove_image(&image).await.unwrap();
    assert!(node.images.image_status(&image).await.unwrap().is_none());
    assert!(matches!(node.images.resolve(&image).await, Err(RuntimeError::ImageNotPresent(_))));
    assert!(found.layers[0].is_dir());
}

#[tokio::test]
async fn a_download_that_breaks_is_resumed() {
    for without_ranges in [false, true] {
        let node = Node::start().await;
        {
            let mut state = node.server.state.lock().unwrap();
            state.cut.insert(node.blob(0), 5000);
            state.unavailable = 2;
            state.without_ranges = without_ranges;
        }
        node.pull("team/app:v1", None).await.unwrap();
        assert_eq!(node.server.count("bytes=5000-"), 1);
    }
}

#[tokio::test]
async fn concurrent_pulls_share_downloads() {
    let node = Node::start().await;
    let (a, b) = join(node.pull("team/app:v1", None), node.pull("team/app:v1", None)).await;
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(node.server.count(&node.blob(0)), 1);
}

#[tokio::test]
async fn content_with_another_digest_is_refused_and_leaves_nothing() {
    let node = Node::start().await;
    {
        let mut state = node.server.state.lock().unwrap();
        let (blob, evil) = (node.blob(0), layer("base", &vec![8; 20_000]));
        state.content.get_mut(&blob).unwrap().1 = evil;
    }
    let error = node.pull("team/app:v1", None).await.unwrap_err();
    assert!(matches!(error, RuntimeError::SignatureValidationFailed(_)), "{error}");
    let root = node.directory.path().join("images");
    assert!(node.images.list_images().await.unwrap().is_empty());
    node.images.store().sweep().unwrap();
    assert_eq!(names(&root.join("layers")), ["empty"]);
}

#[tokio::test]
async fn credentials_are_for_the_registry_only() {
    let node = Node::start().await;
    let other = Server::start().await;
    {
        let mut state = node.server.state.lock().unwrap();
        state.login = Some("Basic dXNlcjpwYXNz".into());
        state.redirect = Some(other.address);
        other.state.lock().unwrap().content.clone_from(&state.content);
    }
    let error = node.pull("team/app:v1", None).await.unwrap_err();
    expect![[r#"failed to pull and unpack image "HOST/team/app:v1": failed to resolve reference "HOST/team/app:v1": failed to authorize: failed to fetch anonymous token: unexpected status from GET request to http://HOST/token?service=test&scope=repository%3Ateam%2Fapp%3Apull: 401 Unauthorized"#]]
    .assert_eq(&node.shown(&error));
    let auth = RegistryAuth { username: "user".into(), password: "pass".into(), ..RegistryAuth::default() };
    node.pull("team/app:v1", Some(auth)).await.unwrap();
    let state = other.state.lock().unwrap();
    assert!(
        state.seen.len() >= 3 && state.seen.iter().all(|seen| !seen.contains("Be") && !seen.contains("Ba"))
    );
}

#[tokio::test]
async fn errors_are_those_of_containerd() {
    let node = Node::start().await;
    let missing = node.pull("team/none:v1", None).await.unwrap_err();
    assert!(missing.is_not_found());
    expect![[r#"failed to pull and unpack image "HOST/team/none:v1": failed to resolve reference "HOST/team/none:v1": HOST/team/none:v1: not found"#]]
    .assert_eq(&node.shown(&missing));
    node.server.state.lock().unwrap().unavailable = 100;
    let down = node.pull("team/app:v1", None).await.unwrap_err();
    assert!(matches!(down, RuntimeError::RegistryUnavailable(_)));
    expect![[r#"failed to pull and unpack image "HOST/team/app:v1": failed to resolve reference "HOST/team/app:v1": unexpected status from GET request to http://HOST/v2/team/app/manifests/v1: 503 Service Unavailable"#]]
    .assert_eq(&node.shown(&down));
    let invalid =
        node.images.pull_image(PullRequest { image: "UPPER".into(), ..PullRequest::default() }).await;
    assert!(matches!(invalid, Err(RuntimeError::InvalidArgument(_))));
}

#[tokio::test]
async fn each_pull_reads_the_file_of_registries_anew() {
    let node = Node::start().await;
    let file = node.directory.path().join("registries.yaml");
    std::fs::write(
        &file,
        format!("mirrors: {{registry.example: {{endpoint: ['{}']}}}}", node.server.address),
    )
    .unwrap();
    let registries = Registries::new(RegistrySource::of(Some(&file)).unwrap(), Arc::new(NoDelay));
    let images = Images::new(store(&node.directory.path().join("mirrored")), registries);
    let pull = || {
        let image = ImageSpec::from("registry.example/team/app:v1");
        images.pull_image(PullRequest { image, ..PullRequest::default() })
    };
    assert_eq!(pull().await.unwrap(), format!("registry.example/team/app@{}", node.digest));
    std::fs::write(&file, "mirrors: {registry.example: {endpoint: 7}}").unwrap();
    let asked = node.server.count("");
    let error = pull().await.unwrap_err().to_string();
    assert!(error.contains(&format!("registries: {}: ", file.display())), "{error}");
    std::fs::remove_file(&file).unwrap();
    let error = pull().await.unwrap_err().to_string();
    assert!(error.contains(&format!("registries: {}: ", file.display())), "{error}");
    assert_eq!(node.server.count(""), asked, "no registry is asked past a file that cannot be used");
}
