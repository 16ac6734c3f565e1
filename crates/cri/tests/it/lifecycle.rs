//! Sandboxes, containers, figures, events and images.

use crate::fake::{Age, Fake};
use expect_test::{expect, expect_file};
use futures_util::StreamExt;
use kaji_containers::{
    ContainerConfig, ContainerFilter, ContainerMetadata, ContainerRuntime, ContainerState, HugepageLimit,
    ImageService, LinuxResources, NamespaceMode, PodSandboxConfig, PodSandboxFilter, PodSandboxMetadata,
    PodSandboxState, PortMapping, PullRequest, RegistryAuth, ResourceUpdate, RuntimeError, RuntimeEventKind,
    SecurityProfile,
};
use kaji_cri::messages::{ContainerEventResponse, PodSandboxStatus};
use kaji_cri::{Connected, Endpoints};
use std::time::Duration;

fn sandbox(uid: &str) -> PodSandboxConfig {
    let mut config = PodSandboxConfig {
        metadata: PodSandboxMetadata {
            name: "web".into(),
            namespace: "default".into(),
            uid: uid.into(),
            attempt: 2,
        },
        hostname: "web".into(),
        log_directory: "/var/log/pods/default_web_u-1".into(),
        port_mappings: vec![PortMapping { container_port: 80, host_port: 8080, ..Default::default() }],
        labels: [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into(),
        cgroup_parent: "/kubepods/burstable/podu-1".into(),
        runtime_handler: "kata".into(),
        ..Default::default()
    };
    config.dns.servers = vec!["10.96.0.10".into()];
    config.security.namespaces.pid = NamespaceMode::Container;
    config.security.seccomp = SecurityProfile::RuntimeDefault;
    config
}

fn container(image: &str) -> ContainerConfig {
    let mut config = ContainerConfig {
        metadata: ContainerMetadata { name: "c".into(), attempt: 1 },
        image: image.into(),
        command: vec!["/bin/c".into()],
        envs: vec![("A".into(), "1".into())],
        log_path: "c/1.log".into(),
        stop_signal: Some("SIGRTMIN+3".into()),
        ..Default::default()
    };
    config.resources = LinuxResources {
        cpu_shares: 512,
        memory_limit_bytes: 1 << 20,
        hugepage_limits: vec![HugepageLimit { page_size: "2MB".into(), limit: 4 }],
        pids_limit: Some(10),
        ..Default::default()
    };
    config.security.seccomp = SecurityProfile::Localhost("/profiles/a.json".into());
    config.security.run_as_user = Some(0);
    config.security.apparmor = Some(SecurityProfile::Unconfined);
    config
}

#[tokio::test]
async fn what_a_runtime_is_given_says_all_of_a_pod() {
    let fake = Fake::start(Age::New);
    let runtime = fake.runtime().await;
    let id = runtime.run_pod_sandbox(sandbox("u-1")).await.unwrap();
    runtime.create_container(&id, container("sha256:1")).await.unwrap();
    let state = fake.state.lock().unwrap();
    let (run, created) = (&state.run[0], &state.created[0]);
    assert_eq!(created.sandbox_config, run.config);
    assert_eq!(run.runtime_handler, "kata");
    let shown = format!("{:#?}\n{:#?}\n", run.config.as_ref().unwrap(), created.config.as_ref().unwrap());
    expect_file!["snapshots/pod.txt"].assert_eq(&shown);
}

#[tokio::test]
async fn a_pod_lives_and_is_found_again_by_the_next_process() {
    let fake = Fake::start(Age::Old);
    let runtime = fake.runtime().await;
    let id = runtime.run_pod_sandbox(sandbox("u-1")).await.unwrap();
    let status = runtime.pod_sandbox_status(&id).await.unwrap();
    assert_eq!(
        status.addresses,
        ["10.1.0.2".parse::<std::net::IpAddr>().unwrap(), "fd00::2".parse().unwrap()]
    );
    assert_eq!((status.info.state, status.info.metadata.attempt), (PodSandboxState::Ready, 2));
    drop(runtime);

    let runtime = fake.runtime().await;
    let listed = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await.unwrap();
    assert_eq!(listed[0].labels["io.kubernetes.pod.uid"], "u-1");
    let made = runtime.create_container(&id, container("sha256:1")).await.unwrap();
    runtime.start_container(&made).await.unwrap();
    drop(runtime);

    let runtime = fake.runtime().await;
    let status = runtime.container_status(&made).await.unwrap();
    assert_eq!((status.info.state, status.info.sandbox_id.as_str()), (ContainerState::Running, id.as_str()));
    let shown = (status.stop_signal.as_str(), status.image_ref.as_str(), status.info.image_id.as_str());
    assert_eq!(shown, ("SIGTERM", "example.com/a@sha256:2", "example.com/a@sha256:2"));
    let update = ResourceUpdate {
        resources: LinuxResources { cpu_quota: 5000, ..Default::default() },
        ..Default::default()
    };
    runtime.update_container_resources(&made, update).await.unwrap();
    assert_eq!(fake.state.lock().unwrap().updated[0].linux.as_ref().unwrap().cpu_quota, 5000);
    runtime.stop_container(&made, Duration::from_millis(1500)).await.unwrap();
    let listed = runtime.list_containers(ContainerFilter::default()).await.unwrap();
    assert_eq!((listed[0].state, listed[0].image_id.as_str()), (ContainerState::Exited, "sha256:1"));

    assert_eq!(std::fs::read_dir(fake.sandboxes()).unwrap().count(), 1);
    // Once more: what is gone is gone.
    for _ in 0..2 {
        runtime.remove_pod_sandbox(&id).await.unwrap();
    }
    runtime.stop_container("none", Duration::ZERO).await.unwrap();
    runtime.stop_pod_sandbox("none").await.unwrap();
    assert_eq!(std::fs::read_dir(fake.sandboxes()).unwrap().count(), 0);
}

#[tokio::test]
async fn configurations_of_lost_sandboxes_are_forgotten_and_unknown_sandboxes_get_no_container() {
    let fake = Fake::start(Age::New);
    let runtime = fake.runtime().await;
    let id = runtime.run_pod_sandbox(sandbox("u-1")).await.unwrap();
    let lost = fake.state.lock().unwrap().sandboxes.remove(&id).unwrap();
    drop(runtime);
    let runtime = fake.runtime().await;
    assert_eq!(std::fs::read_dir(fake.sandboxes()).unwrap().count(), 0);
    fake.state.lock().unwrap().sandboxes.insert(id.clone(), lost);
    let error = runtime.create_container(&id, container("sha256:1")).await.unwrap_err();
    assert!(matches!(error, RuntimeError::FailedPrecondition(_)), "{error:?}");
    let error = runtime.create_container("none", container("sha256:1")).await.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
}

#[tokio::test]
async fn a_process_that_cannot_be_executed_is_a_failed_start() {
    let fake = Fake::start(Age::New);
    let runtime = fake.runtime().await;
    let id = runtime.run_pod_sandbox(sandbox("u-1")).await.unwrap();
    let made = runtime.create_container(&id, container("broken")).await.unwrap();
    let error = runtime.start_container(&made).await.unwrap_err();
    assert!(matches!(error, RuntimeError::StartFailed(_)), "{error:?}");
    let wrong = ContainerConfig { stop_signal: Some("SIGNOT".into()), ..container("sha256:1") };
    let error = runtime.create_container(&id, wrong).await.unwrap_err();
    assert!(matches!(error, RuntimeError::InvalidArgument(_)), "{error:?}");
}

#[tokio::test]
async fn a_container_that_was_never_started_is_gone_when_it_is_stopped() {
    let fake = Fake::start(Age::Old);
    let runtime = fake.runtime().await;
    let id = runtime.run_pod_sandbox(sandbox("u-1")).await.unwrap();
    let [first, second] = [0; 2].map(|_| container("sha256:1"));
    let never = runtime.create_container(&id, first).await.unwrap();
    let started = runtime.create_container(&id, second).await.unwrap();
    runtime.start_container(&started).await.unwrap();
    for made in [&never, &started] {
        runtime.stop_container(made, Duration::ZERO).await.unwrap();
    }
    let listed = runtime.list_containers(ContainerFilter::default()).await.unwrap();
    let left: Vec<(&str, ContainerState)> =
        listed.iter().map(|info| (info.id.as_str(), info.state)).collect();
    assert_eq!(left, [(started.as_str(), ContainerState::Exited)]);
}

#[tokio::test]
async fn commands_answer_with_output_or_a_timeout() {
    let fake = Fake::start(Age::New);
    let runtime = fake.runtime().await;
    let done = runtime.exec_sync("a", vec!["true".into()], Duration::ZERO).await.unwrap();
    assert_eq!(
        (done.stdout.as_slice(), done.stderr.as_slice(), done.exit_code),
        (&b"out"[..], &b"err"[..], 4)
    );
    let error = runtime.exec_sync("a", vec!["slow".into()], Duration::from_millis(1200)).await.unwrap_err();
    expect![[r#"DeadlineExceeded("rpc error: code = DeadlineExceeded desc = timeout 2s exceeded")"#]]
        .assert_eq(&format!("{error:?}"));
}

#[tokio::test]
async fn the_systemd_cgroup_driver_is_refused_by_either_way_of_saying_so() {
    for age in [Age::Old, Age::New] {
        let fake = Fake::start(age);
        let version = fake.runtime().await.version().await.unwrap();
        assert_eq!((version.name.as_str(), version.version.as_str()), ("containerd", "1.6.20"));
        fake.state.lock().unwrap().systemd = true;
        let Err(error) = Connected::to(&fake.endpoints()).await else { panic!("{age:?}: it is taken") };
        assert!(error.to_string().contains("SystemdCgroup = false"), "{error}");
    }
}

#[tokio::test]
async fn endpoints_that_are_no_sockets_are_refused() {
    for endpoint in ["", "tcp://127.0.0.1:1", "npipe://x", "relative/path"] {
        let endpoints = Endpoints { runtime: endpoint.into(), images: None };
        let Err(error) = Connected::to(&endpoints).await else { panic!("{endpoint}: it is taken") };
        assert!(error.to_string().contains("no unix socket"), "{error}");
    }
}

#[tokio::test]
async fn runtimes_without_events_say_so_and_others_have_them() {
    let old = Fake::start(Age::Old);
    let Err(error) = old.runtime().await.events().await else { panic!("no runtime this old has events") };
    assert!(matches!(error, RuntimeError::Unimplemented(_)), "{error:?}");

    let fake = Fake::start(Age::New);
    let mut events = fake.runtime().await.events().await.unwrap();
    for kind in [1, 3] {
        let metadata = (kind == 1)
            .then(|| kaji_cri::messages::PodSandboxMetadata { uid: "u-1".into(), ..Default::default() });
        let event = ContainerEventResponse {
            container_id: "c1".into(),
            container_event_type: kind,
            created_at: 9,
            pod_sandbox_status: Some(PodSandboxStatus { metadata, ..Default::default() }),
            ..Default::default()
        };
        fake.events.send(event).await.unwrap();
    }
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(
        (event.kind, event.id.as_str(), event.pod_uid.as_str()),
        (RuntimeEventKind::Started, "c1", "u-1")
    );
    let event = events.next().await.unwrap().unwrap();
    assert_eq!((event.kind, event.pod_uid.as_str()), (RuntimeEventKind::Deleted, ""));
    drop(fake);
    // The runtime is gone: an error, and then the end.
    assert!(events.next().await.is_some_and(|event| event.is_err()));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn figures_have_rates_and_come_by_containers_from_older_runtimes() {
    for age in [Age::Old, Age::New] {
        let fake = Fake::start(age);
        let runtime = fake.runtime().await;
        let id = runtime.run_pod_sandbox(sandbox("u-1")).await.unwrap();
        let made = runtime.create_container(&id, container("sha256:1")).await.unwrap();
        runtime.container_status(&made).await.unwrap();
        fake.state.lock().unwrap().cpu = (1_000_000_000, 10_000_000_000);
        let first = runtime.list_pod_sandbox_stats(PodSandboxFilter::default()).await.unwrap();
        assert_eq!(first[0].containers[0].cpu.nano_cores, None);
        fake.state.lock().unwrap().cpu = (2_000_000_000, 14_000_000_000);
        let second = runtime.list_pod_sandbox_stats(PodSandboxFilter::default()).await.unwrap();
        let [pod] = &second[..] else { panic!("{second:?}") };
        let [of_container] = &pod.containers[..] else { panic!("{pod:?}") };
        assert_eq!((pod.pod_uid.as_str(), pod.memory.working_set), ("u-1", 9), "{age:?}");
        assert_eq!((pod.cpu.nano_cores, of_container.cpu.nano_cores), (Some(250_000_000), Some(250_000_000)));
        assert_eq!((of_container.started_at_nanos, of_container.name.as_str()), (7, "c"));
        let interfaces: Vec<&str> =
            pod.network.iter().flat_map(|n| &n.interfaces).map(|i| i.name.as_str()).collect();
        let expected: &[&str] = if age == Age::New { &["eth0", "net1"] } else { &[] };
        assert_eq!(interfaces, expected);
    }
}

#[tokio::test]
async fn images_are_listed_pulled_and_measured() {
    let fake = Fake::start(Age::New);
    let images = fake.images();
    let listed = images.list_images().await.unwrap();
    assert_eq!((listed[0].size, listed[0].uid, listed[0].username.as_str()), (11, Some(5), ""));
    assert!(images.image_status(&"example.com/a:1".into()).await.unwrap().is_some());
    assert!(images.image_status(&"example.com/b:1".into()).await.unwrap().is_none());
    let auth = RegistryAuth { username: "u".into(), password: "p".into(), ..Default::default() };
    let request = |image: &str| PullRequest {
        image: image.into(),
        auth: Some(auth.clone()),
        sandbox: Some(sandbox("u-1")),
        progress: None,
    };
    assert_eq!(images.pull_image(request("example.com/a:1")).await.unwrap(), "sha256:1");
    assert!(images.pull_image(request("example.com/b:1")).await.unwrap_err().is_not_found());
    let pulled = fake.state.lock().unwrap().pulled[0].clone();
    assert_eq!(pulled.auth.unwrap().password, "p");
    assert_eq!(pulled.sandbox_config.unwrap().metadata.unwrap().uid, "u-1");
    let usage = images.filesystems().await.unwrap();
    assert_eq!(
        (usage.images[0].used_bytes, usage.containers[0].mountpoint.as_str()),
        (12, "/var/lib/containerd")
    );
}

#[tokio::test]
async fn pods_ranges_reach_the_runtime() {
    let fake = Fake::start(Age::New);
    let runtime = fake.runtime().await;
    runtime.update_pod_cidrs(vec!["10.1.0.0/24".into(), "fd00::/64".into()]).await.unwrap();
    assert_eq!(fake.state.lock().unwrap().pod_cidr, "10.1.0.0/24,fd00::/64");
    let error = runtime.update_pod_sandbox_resources("a", None, None).await.unwrap_err();
    assert!(matches!(error, RuntimeError::Unimplemented(_)), "{error:?}");
}
