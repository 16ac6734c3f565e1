//! `kaji scheduler`: the scheduler alone.

use crate::{Component, ComponentError, api_server::ApiServer};
use kaji_options::component::SchedulerOptions;
use kaji_runtime::{Client, Informers, Selected};
use kaji_scheduler::{Configuration, Metrics};
use tokio::sync::watch;

const NAME: &str = "kube-scheduler";

/// Schedules pods until `stop` turns true.
///
/// # Errors
/// Files and addresses that cannot be used.
pub async fn run(options: SchedulerOptions, stop: watch::Receiver<bool>) -> Result<(), ComponentError> {
    options.warnings.iter().for_each(|warning| tracing::warn!("scheduler configuration: {warning}"));
    let (text, features) = (options.configuration, options.features);
    let configuration = move || Configuration::of_file(text.as_deref(), features);
    // Each term has one of its own.
    configuration()?;
    let server = ApiServer::new(&options.component.connection).await?;
    let client = Client::new(server.transport()?.into_client(), NAME);
    let metrics = Metrics::default();
    let mut component = Component::new(NAME, options.component, client);
    metrics.register(&mut component.metrics);
    server.metrics.register(&mut component.metrics);
    let shared = component.shared.clone();
    component
        .run(stop, move |tasks, ending| {
            let (client, clock) = (shared.client.clone(), shared.clock.clone());
            let informers = Informers::timed(client, Selected::default(), clock);
            match configuration() {
                Ok(configuration) => {
                    let (shared, metrics) = (shared.clone(), metrics.clone());
                    tasks.spawn(kaji_scheduler::run(
                        informers,
                        shared,
                        configuration,
                        metrics,
                        ending.clone(),
                    ));
                }
                // It was read before.
                Err(error) => tracing::error!(%error, "the scheduler does not run"),
            }
        })
        .await
}
