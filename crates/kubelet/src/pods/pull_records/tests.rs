//! What records grant, over restarts, damage, and pulls that were cut off.

use super::*;
use jiff::SignedDuration;
use kaji_meta::time::ManualClock;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const NAME: &str = "r.io/team/app:1";

struct Node {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Node {
    fn new() -> Node {
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        Node { dir: tempfile::tempdir().unwrap(), clock }
    }

    /// As a kubelet finds them that starts.
    fn records(&self) -> PullRecords {
        PullRecords::new(self.dir.path(), self.clock.clone())
    }

    fn files(&self, directory: &str) -> Vec<PathBuf> {
        let directory = self.dir.path().join("image_manager").join(directory);
        let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }
}

fn image(id: &str, tags: &[&str]) -> Image {
    let repo_tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    Image { id: id.to_owned(), repo_tags, ..Image::default() }
}

fn object(name: &str) -> ObjectName {
    ObjectName { namespace: "n".to_owned(), name: name.to_owned(), uid: format!("uid of {name}") }
}

fn of(source: CredentialSource, password: &str) -> Credential {
    Credential { auth: RegistryAuth { password: password.to_owned(), ..RegistryAuth::default() }, source }
}

fn secret(name: &str, password: &str) -> Credential {
    of(CredentialSource::Secret(object(name)), password)
}

fn account(name: &str) -> Credential {
    of(CredentialSource::ServiceAccount(object(name)), "of a plug-in")
}

async fn pull(records: &PullRecords, name: &str, found: &Image, credential: Option<&Credential>) {
    let mut pull = records.begin(name).await.unwrap();
    pull.request();
    pull.record(name, found, credential).await;
}

async fn may(records: &PullRecords, name: &str, found: &Image, credentials: &[Credential]) -> bool {
    match records.access(name, found) {
        Access::Free => true,
        Access::AfterPull => false,
        Access::With(with) => records.allows(name, found, &with, credentials).await,
    }
}

#[tokio::test]
async fn an_image_is_for_pods_that_have_what_it_was_pulled_with() {
    let (node, found) = (Node::new(), image("sha256:a", &[NAME]));
    let records = node.records();
    assert!(may(&records, NAME, &found, &[]).await, "it was loaded");
    pull(&records, NAME, &found, Some(&secret("s", "p"))).await;
    for records in [records, node.records()] {
        for (credentials, allowed) in [
            (vec![], false),
            (vec![secret("other", "q")], false),
            (vec![account("s")], false),
            (vec![of(CredentialSource::Node, "p")], false),
            (vec![secret("other", "q"), secret("s", "p")], true),
            (vec![secret("copy", "p")], true),
        ] {
            assert_eq!(may(&records, NAME, &found, &credentials).await, allowed, "{credentials:?}");
        }
        assert!(!may(&records, "r.io/other/app:1", &found, &[secret("s", "p")]).await, "another repository");
        assert!(may(&records, "r.io/team/app@sha256:1", &found, &[secret("s", "p")]).await);
    }
    // The secret has changed; what it holds now is known from then on.
    let records = node.records();
    assert!(!may(&records, NAME, &found, &[secret("third", "r")]).await);
    assert!(may(&records, NAME, &found, &[secret("s", "r")]).await);
    assert!(may(&node.records(), NAME, &found, &[secret("third", "r")]).await);
    pull(&records, NAME, &found, Some(&account("a"))).await;
    assert!(may(&records, NAME, &found, &[account("a")]).await);
    assert!(!may(&records, NAME, &found, &[account("b"), account("a")]).await, "a pod has one account");
    assert!(may(&records, NAME, &found, &[secret("s", "r")]).await);
    pull(&records, NAME, &found, Some(&of(CredentialSource::Node, "p"))).await;
    assert!(may(&node.records(), NAME, &found, &[]).await, "the node's credentials are for all of its pods");
}

#[tokio::test]
async fn a_damaged_record_grants_nothing_until_the_next_pull() {
    let (node, found) = (Node::new(), image("sha256:a", &[NAME]));
    let records = node.records();
    pull(&records, NAME, &found, None).await;
    let files = node.files("pulled");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((files.len(), mode(&files[0]), mode(files[0].parent().unwrap())), (1, 0o600, 0o700));
    expect_test::expect![[r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"sha256:a","lastUpdatedTime":"2026-01-01T00:00:00Z","credentialMapping":{"r.io/team/app":{"nodePodsAccessible":true,"kubernetesSecrets":[],"kubernetesServiceAccounts":[]}}}"#]]
        .assert_eq(&fs::read_to_string(&files[0]).unwrap());
    let of_another = fs::read_to_string(&files[0]).unwrap().replace("sha256:a", "sha256:b");
    for damage in ["", "{", "[]", "\u{0}", r#"{"imageRef":"sha256:a"}"#, &of_another, &"[".repeat(100_000)] {
        fs::write(&files[0], damage).unwrap();
        assert_eq!(records.access(NAME, &found), Access::AfterPull);
    }
    pull(&records, NAME, &found, None).await;
    assert_eq!(node.records().access(NAME, &found), Access::Free);
    assert!(node.files("pulling").is_empty());
}

#[test]
fn records_of_upstream_s_kubelet_are_read() {
    let (node, found) = (Node::new(), image("sha256:a", &[NAME]));
    let directory = node.dir.path().join("image_manager/pulled");
    fs::create_dir_all(&directory).unwrap();
    let record = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2026-01-01T00:00:00Z","imageRef":"sha256:a","credentialMapping":{"r.io/team/app":{"kubernetesSecrets":[{"uid":"uid of s","namespace":"n","name":"s","credentialHash":"1f"}]}}}"#;
    fs::write(directory.join(files::name("sha256:a")), record).unwrap();
    let Access::With(with) = node.records().access(NAME, &found) else { panic!("it has a record") };
    assert!(with.allows(&[secret("s", "p")]).is_some() && with.allows(&[secret("other", "p")]).is_none());
}

#[tokio::test]
async fn an_image_that_may_have_come_by_a_pull_is_no_loaded_one() {
    let (node, found) = (Node::new(), image("sha256:a", &[NAME, "r.io/team/app:latest"]));
    let records = node.records();
    let mut first = records.begin(NAME).await.unwrap();
    let second = records.begin(NAME).await.unwrap();
    first.request();
    first.fail(&RuntimeError::Internal("no such image".to_owned()));
    assert_eq!(records.access(NAME, &found), Access::AfterPull);
    drop(first);
    assert_eq!(records.access("r.io/team/app@sha256:1", &found), Access::AfterPull, "by another name");
    drop(second);
    assert_eq!(records.access(NAME, &found), Access::Free, "both pulls have failed");
    assert!(node.files("pulling").is_empty());
    let mut cut_off = records.begin(NAME).await.unwrap();
    cut_off.request();
    drop(cut_off);
    let records = node.records();
    assert_eq!(records.access("r.io/team/app:latest", &found), Access::AfterPull);
    for unanswered in
        [RuntimeError::DeadlineExceeded(String::new()), RuntimeError::Unavailable(String::new())]
    {
        let mut pull = records.begin("r.io/slow:1").await.unwrap();
        pull.request();
        pull.fail(&unanswered);
        pull.request();
        pull.fail(&RuntimeError::Internal("another answer, to another request".to_owned()));
        drop(pull);
        let found = image("sha256:b", &["r.io/slow:1"]);
        assert_eq!(records.access("r.io/slow:1", &found), Access::AfterPull, "{unanswered:?}");
        records.prune(&[image("sha256:a", &[NAME])], node.clock.now()).await;
        assert_eq!(records.access("r.io/slow:1", &found), Access::Free);
    }
    drop(records.begin(NAME).await.unwrap());
    assert_eq!(node.records().access(NAME, &found), Access::AfterPull, "a failure proves nothing");
    pull(&records, NAME, &found, None).await;
    assert_eq!(node.records().access(NAME, &found), Access::Free);
    assert!(node.files("pulling").is_empty());
}

#[tokio::test]
async fn records_go_with_their_images() {
    let node = Node::new();
    let records = node.records();
    let (here, gone, new) = (image("here", &[NAME]), image("gone", &[]), image("new", &[]));
    for found in [&here, &gone] {
        pull(&records, NAME, found, None).await;
    }
    let damaged = node.dir.path().join("image_manager/pulled").join(files::name("damaged"));
    fs::write(&damaged, "").unwrap();
    fs::write(damaged.with_extension("tmp"), "").unwrap();
    let mut cut_off = records.begin("r.io/gone:1").await.unwrap();
    cut_off.request();
    drop(cut_off);
    let runs = records.begin("r.io/new:1").await.unwrap();
    node.clock.advance(SignedDuration::from_secs(1));
    let listed = node.clock.now();
    pull(&records, NAME, &new, None).await;
    // An image that comes again after the list, with what is known of it already.
    pull(&records, NAME, &image("again", &[]), None).await;
    node.clock.advance(SignedDuration::from_secs(1));
    let later = node.clock.now();
    pull(&records, NAME, &image("again", &[]), None).await;
    records.prune(&[here.clone(), new.clone()], later).await;
    assert_eq!(records.access(NAME, &image("again", &[])), Access::Free);
    let again = node.dir.path().join("image_manager/pulled").join(files::name("again"));
    assert!(again.exists());
    fs::remove_file(again).unwrap();
    records.prune(&[here], listed).await;
    let names = |files: Vec<PathBuf>| -> BTreeSet<String> {
        files.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(node.files("pulled")), BTreeSet::from(["here", "new"].map(files::name)));
    assert_eq!(names(node.files("pulling")), BTreeSet::from(["r.io/new:1"].map(files::name)));
    drop(runs);
    assert!(node.files("pulling").is_empty());
}

#[test]
fn what_is_kept_of_an_image_is_bounded() {
    let of = |number: usize| secret(&number.to_string(), &number.to_string());
    let mut with = PulledWith::default();
    for number in 0..MOST_SOURCES + 3 {
        assert!(with.add(PulledWith::of(Some(&of(number)))));
    }
    assert_eq!(with.kubernetes_secrets.len(), MOST_SOURCES);
    assert!(with.allows(&[of(2)]).is_none(), "the oldest have to pull again");
    assert!(with.allows(&[of(3)]).is_some() && with.allows(&[of(MOST_SOURCES + 2)]).is_some());
    let mut record = Record::new("sha256:a", Timestamp::UNIX_EPOCH);
    for number in 0..1000 {
        record.add(&number.to_string(), PulledWith::default());
    }
    assert_eq!(record.credential_mapping.len(), 32);
}
