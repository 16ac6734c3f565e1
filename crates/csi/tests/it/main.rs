//! Calls of a driver over a socket, as messages with the specification's numbers.

#![allow(clippy::unwrap_used)]

use expect_test::expect;
use kaji_csi::messages as m;
use kaji_csi::registration::{self, PluginInfo, Registrar, RegistrationStatus, highest_supported};
use kaji_csi::{Access, Capabilities, Code, Driver, NodeInfo, access_mode, capability, is_final};
use kaji_grpc::{Router, Status, bind, serve};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What a driver was called with.
type Calls = Arc<Mutex<Vec<m::NodePublishVolumeRequest>>>;

fn driver(calls: Calls) -> Router {
    Router::default()
        .unary(m::GET_INFO, |_: m::Empty| async {
            let segments = BTreeMap::from([("zone".to_owned(), "z".to_owned())]);
            let accessible_topology = Some(m::Topology { segments });
            Ok(m::NodeGetInfoResponse { node_id: "id".into(), max_volumes_per_node: 3, accessible_topology })
        })
        .unary(m::GET_CAPABILITIES, |_: m::Empty| async {
            // 99 is of a later version of the specification.
            let rpc = |kind| m::NodeServiceCapability { rpc: Some(m::Rpc { kind }) };
            Ok(m::NodeGetCapabilitiesResponse { capabilities: [1, 3, 6, 99].map(rpc).to_vec() })
        })
        .unary(m::PUBLISH, move |request: m::NodePublishVolumeRequest| {
            let refused = request.volume_id == "bad";
            calls.lock().unwrap().push(request);
            async move { if refused { Err(Status::not_found("no such volume")) } else { Ok(m::Empty {}) } }
        })
}

#[tokio::test]
async fn a_driver_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("csi.sock");
    let calls = Calls::default();
    let server = tokio::spawn(serve(bind(&socket).unwrap(), driver(calls.clone())));
    let driver = Driver::new("d", socket.to_str().unwrap()).unwrap();
    let topology = BTreeMap::from([("zone".to_owned(), "z".to_owned())]);
    assert_eq!(driver.info().await.unwrap(), NodeInfo { id: "id".into(), most_volumes: 3, topology });
    let capabilities = driver.capabilities().await.unwrap();
    assert_eq!(
        capabilities,
        Capabilities { stage: true, expand: true, mount_group: true, ..Capabilities::default() }
    );
    let access = Access::Mount { fs_type: "ext4".into(), flags: vec!["ro".into()], group: Some(7) };
    let request = m::NodePublishVolumeRequest {
        volume_id: "v".into(),
        target_path: "/t".into(),
        volume_capability: Some(capability(access, access_mode("ReadWriteOnce", capabilities))),
        secrets: BTreeMap::from([("k".to_owned(), "s".to_owned())]),
        ..Default::default()
    };
    driver.publish(request.clone()).await.unwrap();
    assert!(calls.lock().unwrap().contains(&request));
    let error = driver.publish(m::NodePublishVolumeRequest { volume_id: "bad".into(), ..request }).await;
    let error = error.unwrap_err();
    expect!["rpc error: code = NotFound desc = no such volume"].assert_eq(&error.to_string());
    assert!(is_final(&error));
    let error = driver.unpublish("v", "/t").await.unwrap_err();
    assert!(error.code == Code::Unimplemented && is_final(&error));
    server.abort();
    assert!(server.await.unwrap_err().is_cancelled());
    assert!(!is_final(&driver.info().await.unwrap_err()));
}

#[tokio::test]
async fn a_plugin_registers() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("reg.sock");
    let statuses: Arc<Mutex<Vec<RegistrationStatus>>> = Arc::default();
    let seen = statuses.clone();
    let router = Router::default()
        .unary(registration::GET_INFO, |_: registration::Empty| async {
            Ok(PluginInfo { kind: "CSIPlugin".into(), name: "d".into(), ..PluginInfo::default() })
        })
        .unary(registration::NOTIFY, move |status: RegistrationStatus| {
            seen.lock().unwrap().push(status);
            async { Ok(registration::Empty {}) }
        });
    let server = tokio::spawn(serve(bind(&socket).unwrap(), router));
    let registrar = Registrar::new(&socket);
    assert_eq!(registrar.info().await.unwrap().kind, "CSIPlugin");
    registrar.notify(None).await.unwrap();
    registrar.notify(Some("why".into())).await.unwrap();
    let shown: Vec<_> =
        statuses.lock().unwrap().iter().map(|s| (s.plugin_registered, s.error.clone())).collect();
    assert_eq!(shown, [(true, String::new()), (false, "why".to_owned())]);
    server.abort();
}

#[test]
fn selects_the_highest_supported_version() {
    let of = |versions: &[&str]| {
        let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
        highest_supported(&versions).map(|v| v.to_string())
    };
    assert_eq!(of(&["1.0.0", "1.10.0", "1.9.0"]).unwrap(), "1.10.0");
    assert_eq!(of(&["0.3.0", "2.0.0"]).unwrap(), "0.3.0");
    assert!(of(&["2.0.0"]).is_err() && of(&["x"]).is_err() && of(&[]).is_err());
}
