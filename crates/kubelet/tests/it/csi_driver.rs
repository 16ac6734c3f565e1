//! A CSI driver on a unix socket. Volumes are directories that it makes; calls are kept, failures can be injected.

use kaji_csi::messages as m;
use kaji_grpc::{Code, Router, Status, bind, serve};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

#[derive(Default)]
pub struct DriverState {
    pub calls: Vec<String>,
    /// Codes of failures by the call's name; each is used up by one call.
    pub failures: Vec<(&'static str, Code)>,
    /// Numbers of the specification's capabilities.
    pub capabilities: Vec<i32>,
    pub topology: BTreeMap<String, String>,
}

pub struct CsiDriver {
    pub state: Arc<Mutex<DriverState>>,
    pub socket: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn called(state: &Mutex<DriverState>, name: &'static str, text: String) -> Result<(), Status> {
    let mut state = state.lock().unwrap();
    state.calls.push(format!("{name} {text}").trim_end().to_owned());
    match state.failures.iter().position(|(n, _)| *n == name) {
        Some(index) => Err(Status::new(state.failures.remove(index).1, "injected")),
        None => Ok(()),
    }
}

fn made(path: &str) -> Result<m::Empty, Status> {
    std::fs::create_dir_all(path).map_err(|e| Status::internal(e.to_string()))?;
    Ok(m::Empty {})
}

fn removed(path: &str) -> Result<m::Empty, Status> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Status::internal(error.to_string()))
        }
        _ => Ok(m::Empty {}),
    }
}

fn map(map: &BTreeMap<String, String>) -> String {
    let words: Vec<String> =
        map.iter().map(|(k, v)| format!("{}={v}", k.trim_start_matches("csi.storage.k8s.io/"))).collect();
    format!("{{{}}}", words.join(" "))
}

fn capability(found: Option<&m::VolumeCapability>) -> String {
    let Some(found) = found else { return "none".into() };
    let mode = found.access_mode.map(|a| a.mode()).unwrap_or(m::Mode::Unknown);
    match &found.access_type {
        Some(m::AccessType::Mount(v)) => {
            format!("{mode:?} {} {:?} {}", v.fs_type, v.mount_flags, v.volume_mount_group)
        }
        Some(m::AccessType::Block(_)) => format!("{mode:?} block"),
        None => "no access type".into(),
    }
}

impl CsiDriver {
    /// Serves at a path; paths in calls are shown without `root`.
    pub fn start(socket: &Path, root: &Path, capabilities: &[i32]) -> CsiDriver {
        let state =
            Arc::new(Mutex::new(DriverState { capabilities: capabilities.to_vec(), ..Default::default() }));
        let root = root.display().to_string();
        let short = move |path: &str| path.replace(&root, "");
        let router = Router::default();
        let (s, p) = (state.clone(), short.clone());
        let router = router.unary(m::STAGE, move |r: m::NodeStageVolumeRequest| {
            let text = format!(
                "{} {} {} secrets {} context {} attributes {}",
                r.volume_id,
                p(&r.staging_target_path),
                capability(r.volume_capability.as_ref()),
                map(&r.secrets),
                map(&r.publish_context),
                map(&r.volume_context)
            );
            let done = called(&s, "stage", text).and_then(|()| made(&r.staging_target_path));
            std::future::ready(done)
        });
        let (s, p) = (state.clone(), short.clone());
        let router = router.unary(m::PUBLISH, move |r: m::NodePublishVolumeRequest| {
            let text = format!(
                "{} {} from {:?} {} readonly {} secrets {} attributes {}",
                r.volume_id,
                p(&r.target_path),
                p(&r.staging_target_path),
                capability(r.volume_capability.as_ref()),
                r.readonly,
                map(&r.secrets),
                map(&r.volume_context)
            );
            std::future::ready(called(&s, "publish", text).and_then(|()| made(&r.target_path)))
        });
        let (s, p) = (state.clone(), short.clone());
        let router = router.unary(m::UNPUBLISH, move |r: m::NodeUnpublishVolumeRequest| {
            let done = called(&s, "unpublish", format!("{} {}", r.volume_id, p(&r.target_path)));
            std::future::ready(done.and_then(|()| removed(&r.target_path)))
        });
        let (s, p) = (state.clone(), short.clone());
        let router = router.unary(m::UNSTAGE, move |r: m::NodeUnstageVolumeRequest| {
            let done = called(&s, "unstage", format!("{} {}", r.volume_id, p(&r.staging_target_path)));
            std::future::ready(done.and_then(|()| removed(&r.staging_target_path)))
        });
        let (s, p) = (state.clone(), short);
        let router = router.unary(m::EXPAND, move |r: m::NodeExpandVolumeRequest| {
            let bytes = r.capacity_range.map(|c| c.required_bytes).unwrap_or(0);
            let done = called(&s, "expand", format!("{} {} {bytes}", r.volume_id, p(&r.volume_path)));
            std::future::ready(done.map(|()| m::NodeExpandVolumeResponse { capacity_bytes: bytes }))
        });
        let task = tokio::spawn(serve(bind(socket).unwrap(), about(router, &state)));
        CsiDriver { state, socket: socket.to_owned(), task }
    }

    /// The calls since the last look.
    pub fn calls(&self) -> String {
        std::mem::take(&mut self.state.lock().unwrap().calls).join("\n")
    }

    pub fn fail(&self, call: &'static str, code: Code) {
        self.state.lock().unwrap().failures.push((call, code));
    }
}

fn about(router: Router, state: &Arc<Mutex<DriverState>>) -> Router {
    let (a, b) = (state.clone(), state.clone());
    router
        .unary(m::GET_INFO, move |_: m::Empty| {
            let segments = a.lock().unwrap().topology.clone();
            let answer = m::NodeGetInfoResponse {
                node_id: "id-1".into(),
                max_volumes_per_node: 5,
                accessible_topology: Some(m::Topology { segments }),
            };
            std::future::ready(called(&a, "info", String::new()).map(|()| answer))
        })
        .unary(m::GET_CAPABILITIES, move |_: m::Empty| {
            let rpc = |kind: &i32| m::NodeServiceCapability { rpc: Some(m::Rpc { kind: *kind }) };
            let capabilities = b.lock().unwrap().capabilities.iter().map(rpc).collect();
            std::future::ready(Ok(m::NodeGetCapabilitiesResponse { capabilities }))
        })
}
