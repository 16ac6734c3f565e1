//! `kaji controller-manager`: the controllers alone.
//!
//! Not here: the type checker of admission policies, which needs the schemas of the server's process, and the service of cluster DNS,
//! which belongs to this program's own nodes. The start says so.

use crate::{Component, ComponentError, accounts::Accounts, api_server::ApiServer, read};
use kaji_auth::authn::SigningKey;
use kaji_controllers::{Authorities, ControllerContext};
use kaji_options::component::{ControllerManagerOptions, SigningFiles};
use kaji_runtime::{Client, ControllerMetrics, Informers, Selected, Shared};
use std::sync::Arc;
use tokio::sync::watch;

const NAME: &str = "kube-controller-manager";

/// Runs the selected controllers until `stop` turns true.
///
/// # Errors
/// Files and addresses that cannot be used.
pub async fn run(
    options: ControllerManagerOptions,
    stop: watch::Receiver<bool>,
) -> Result<(), ComponentError> {
    let server = ApiServer::new(&options.component.connection).await?;
    let own = Client::new(server.transport()?.into_client(), NAME);
    let transport = match options.service_accounts {
        true => server.transport()?.with_accounts(Accounts::new(own.clone()), server.without_credentials()?),
        false => server.transport()?,
    };
    let client = Client::new(transport.into_client(), NAME);
    let config = config(&options, &server)?;
    let metrics = ControllerMetrics::default();
    let mut component = Component::new(NAME, options.component, own);
    metrics.register(&mut component.metrics);
    server.metrics.register(&mut component.metrics);
    let shared = Shared { client, ..component.shared.clone() };
    tracing::info!(server = server.url(), "running controllers for the API server of another process");
    if config.selection.includes(kaji_controllers::POLICY_STATUS) {
        let controller = kaji_controllers::POLICY_STATUS;
        tracing::warn!(
            controller,
            "the controller does not run: it needs the schemas in the process of an API server"
        );
    }
    component
        .run(stop, move |tasks, ending| {
            // What loops of a former term have registered ended with them.
            let (client, clock) = (shared.client.clone(), shared.clock.clone());
            let resync = config.loops.resync(shared.random.clone());
            let informers = Informers::resyncing(client, Selected::default(), clock, metrics.clone(), resync);
            let (shared, config) = (&shared, &config);
            let context = ControllerContext { informers: &informers, shared, config, stop: ending.clone() };
            kaji_controllers::spawn(tasks, &context);
            let mut ending = ending.clone();
            tasks.spawn(async move {
                // The sender outlives the tasks.
                let _ends = ending.wait_for(|ending| *ending).await;
                drop(informers);
            });
        })
        .await
}

fn config(
    options: &ControllerManagerOptions,
    server: &ApiServer,
) -> Result<kaji_controllers::Config, ComponentError> {
    let wrong = |path: &std::path::Path, reason: &dyn std::fmt::Display| ComponentError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let authority = |files: &Option<SigningFiles>| {
        let authority = files.as_ref().map(|files| {
            let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
            let authority = kaji_controllers::Authority::new(&certificate, &key);
            authority.map(Arc::new).map_err(|error| wrong(&files.certificate, &error))
        });
        authority.transpose()
    };
    let token_signer = options
        .token_key
        .as_ref()
        .map(|path| SigningKey::from_pem(&read(path)?).map(Arc::new).map_err(|error| wrong(path, &error)));
    Ok(kaji_controllers::Config {
        root_ca: options.root_ca.as_ref().map_or_else(|| Ok(server.authorities()), read)?,
        selection: options.selection.clone(),
        authorities: Authorities {
            kubelet_serving: authority(&options.signing.kubelet_serving)?,
            kubelet_client: authority(&options.signing.kubelet_client)?,
            client: authority(&options.signing.client)?,
            legacy_unknown: authority(&options.signing.legacy_unknown)?,
        },
        unused_token_period: options.unused_token_period,
        token_signer: token_signer.transpose()?,
        node_ranges: options.node_ranges.clone(),
        // As upstream: the cluster's machines are known to a cloud-controller-manager, or to none.
        cloud: None,
        autoscaler: options.autoscaler.clone(),
        loops: options.loops.clone(),
        features: options.features,
    })
}
