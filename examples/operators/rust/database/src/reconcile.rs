//! From databases to what they need. Objects that are owned go with their database; the shared entry does not.

use crate::{Bug, Database, DatabaseStatus};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret, Service, ServicePort, ServiceSpec},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::reflector::Store,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    collections::{BTreeMap, hash_map::RandomState},
    fmt::Debug,
    hash::BuildHasher,
};

/// On credentials: the name of the database.
pub const LABEL: &str = "db.example.com/database";
/// The config map that all databases share, in the namespace `default`: the database of each host.
const HOSTS: &str = "database-hosts";

/// Why a database is not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] kube::Error),
    /// The garbage collector is not done.
    #[error("{0} of a former database is not gone yet")]
    Former(String),
}

type Outcome<T = ()> = Result<T, Error>;

/// See the module.
pub struct Reconciler {
    client: Client,
    databases: Store<Database>,
    secrets: Store<Secret>,
    bug: Option<Bug>,
}

impl Reconciler {
    pub fn new(
        client: Client,
        databases: Store<Database>,
        secrets: Store<Secret>,
        bug: Option<Bug>,
    ) -> Reconciler {
        Reconciler { client, databases, secrets, bug }
    }

    /// Makes what there is what all databases need.
    pub async fn reconcile_all(&self) -> Outcome {
        for database in self.databases.state() {
            // What is about to go needs nothing, and could not own anything.
            if database.meta().deletion_timestamp.is_none() {
                self.reconcile(&database).await?;
            }
        }
        match self.bug {
            Some(Bug::MissedState) => Ok(()),
            _ => self.remove_hosts_of_none().await,
        }
    }

    async fn reconcile(&self, database: &Database) -> Outcome {
        // The cache may show one that is gone, or is about to be: what is made for it is collected at once.
        let present = self.api::<Database>(database).get_opt(&database.name_any()).await?;
        let is_present =
            |found: Database| found.uid() == database.uid() && found.meta().deletion_timestamp.is_none();
        if !present.is_some_and(is_present) {
            return Ok(());
        }
        self.credentials(database).await?;
        if self.bug == Some(Bug::CrashBetweenWrites) {
            let (settings, service) = (settings(database), service(database));
            if !self.is_there(database, &settings).await? && !self.is_there(database, &service).await? {
                self.create(database, &settings).await?;
                self.create(database, &service).await?;
            }
        } else {
            self.ensure(database, &settings(database)).await?;
            self.ensure(database, &service(database)).await?;
        }
        self.register(database).await?;
        self.report(database).await
    }

    /// The database is gone; what it owned goes after it.
    pub async fn deleted(&self, database: &Database) {
        if self.bug == Some(Bug::MissedState)
            && let Err(error) = self.patch_hosts(&database.spec.host, None).await
        {
            tracing::warn!(%error, "the host stays");
        }
    }

    fn api<K>(&self, database: &Database) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &database.namespace().unwrap_or_default())
    }

    async fn ensure<K>(&self, database: &Database, wanted: &K) -> Outcome
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
        K::DynamicType: Default,
    {
        match self.is_there(database, wanted).await? {
            true => Ok(()),
            false => self.create(database, wanted).await,
        }
    }

    /// Whether an object of the database is there.
    async fn is_there<K>(&self, database: &Database, wanted: &K) -> Outcome<bool>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let name = wanted.name_any();
        match self.api::<K>(database).get_opt(&name).await? {
            Some(object) if is_owned(&object, database) => Ok(true),
            Some(_) => Err(Error::Former(name)),
            None => Ok(false),
        }
    }

    /// Creates an object. That the database has it already is as well.
    async fn create<K>(&self, database: &Database, object: &K) -> Outcome
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
        K::DynamicType: Default,
    {
        match self.api::<K>(database).create(&PostParams::default(), object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.is_there(database, object).await.map(drop)
            }
            outcome => Ok(outcome.map(drop)?),
        }
    }

    async fn credentials(&self, database: &Database) -> Outcome {
        let name = database.name_any();
        let is_its =
            |secret: &Secret| secret.labels().get(LABEL) == Some(&name) && is_owned(secret, database);
        if self.secrets.state().iter().any(|secret| is_its(secret)) {
            return Ok(());
        }
        let mut metadata = owned(database, &format!("{name}-credentials"));
        metadata.labels = Some([(LABEL.to_owned(), name.clone())].into());
        if self.bug == Some(Bug::StaleRead) {
            metadata.generate_name = Some(format!("{name}-credentials-"));
            metadata.name = None;
        }
        let password = format!("{:x}", RandomState::new().hash_one(&name));
        let data = [("password".to_owned(), ByteString(password.into_bytes()))].into();
        let secret = Secret { metadata, data: Some(data), ..Secret::default() };
        self.create(database, &secret).await
    }

    fn hosts(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn read_hosts(&self) -> Outcome<BTreeMap<String, String>> {
        Ok(self.hosts().get_opt(HOSTS).await?.and_then(|map| map.data).unwrap_or_default())
    }

    /// Sets or removes the database of a host.
    async fn patch_hosts(&self, host: &str, database: Option<String>) -> Outcome {
        let patch = json!({"data": {host: database}});
        self.hosts().patch(HOSTS, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn register(&self, database: &Database) -> Outcome {
        let (host, name) = (&database.spec.host, database.name_any());
        if self.read_hosts().await?.get(host) == Some(&name) {
            return Ok(());
        }
        self.patch_hosts(host, Some(name)).await
    }

    /// Removes hosts that no database has.
    async fn remove_hosts_of_none(&self) -> Outcome {
        for host in self.read_hosts().await?.keys() {
            if !self.databases.state().iter().any(|database| database.spec.host == *host) {
                self.patch_hosts(host, None).await?;
            }
        }
        Ok(())
    }

    async fn report(&self, database: &Database) -> Outcome {
        let status = DatabaseStatus { ready: true, host: database.spec.host.clone() };
        if database.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"status": status}));
        let api = self.api::<Database>(database);
        api.patch_status(&database.name_any(), &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

fn is_owned<K: Resource>(object: &K, database: &Database) -> bool {
    object.owner_references().iter().any(|owner| Some(&owner.uid) == database.uid().as_ref())
}

fn owned(database: &Database, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: database.namespace(),
        owner_references: Some(database.controller_owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    }
}

fn settings_name(database: &Database) -> String {
    format!("{}-settings", database.name_any())
}

fn settings(database: &Database) -> ConfigMap {
    let data = [("host".to_owned(), database.spec.host.clone())].into();
    ConfigMap {
        metadata: owned(database, &settings_name(database)),
        data: Some(data),
        ..ConfigMap::default()
    }
}

fn service(database: &Database) -> Service {
    let port = ServicePort { port: 5432, ..ServicePort::default() };
    Service {
        metadata: owned(database, &database.name_any()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
